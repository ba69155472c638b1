"""Gemma 4 with media in two GGUF files: the config and the names of text and projector (mmproj).

Source: llama.cpp's converter and tools/mtmd, 2026.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Container, Pair
from ostro.architectures.gemma4 import names as gemma4
from ostro.architectures.gemma4 import vision
from ostro.architectures.gemma4.names import Gemma4Names
from ostro.architectures.llava import projector as llava
from ostro.errors import CheckpointError, ConfigError

CAUSAL = (1536, 2560)
"""Hidden sizes of the models (E2B, E4B) whose rows of an image do not attend to later ones; no key
states it (llama.cpp's mtmd_decode_use_non_causal).
"""

NORMS = {
    "ln1": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
LINEARS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
SOUND = {
    "ffn_norm": "feed_forward1.pre_layer_norm",
    "ffn_post_norm": "feed_forward1.post_layer_norm",
    "ffn_norm_1": "feed_forward2.pre_layer_norm",
    "ffn_post_norm_1": "feed_forward2.post_layer_norm",
    "attn_pre_norm": "norm_pre_attn",
    "attn_post_norm": "norm_post_attn",
    "ln2": "norm_out",
    "conv_norm": "lconv1d.pre_layer_norm",
    "norm_conv": "lconv1d.conv_norm",
    "attn_k_rel": "self_attn.relative_k_proj",
}
SOUND_LINEARS = {
    "ffn_up": "feed_forward1.ffw_layer_1",
    "ffn_down": "feed_forward1.ffw_layer_2",
    "ffn_up_1": "feed_forward2.ffw_layer_1",
    "ffn_down_1": "feed_forward2.ffw_layer_2",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.post",
    "conv_pw1": "lconv1d.linear_start",
    "conv_pw2": "lconv1d.linear_end",
}
BOUNDS = ("input_min", "input_max", "output_min", "output_max")


@dataclass(frozen=True)
class Scalar:
    """A vector of one element as a scalar."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.numel() != 1:
            raise CheckpointError(f"a bound of shape {tuple(tensor.shape)}, expected one number")
        return tensor.reshape(())

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.reshape(1)


@dataclass(frozen=True)
class ChannelsLast:
    """A convolution's kernel [n, 3, size, size] as a matrix [n, size * size * 3]."""

    size: int
    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        if tuple(tensor.shape[1:]) != (3, self.size, self.size):
            raise CheckpointError(
                f"a patch embedding of shape {tuple(tensor.shape)}, expected [n, 3, {self.size}, "
                f"{self.size}]"
            )
        return tensor.permute(0, 2, 3, 1).flatten(1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, (self.size, self.size, 3)).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class InverseSoftplus:
    """The file stores softplus(w)."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        tensor = tensor.float()
        return tensor + torch.log(-torch.expm1(-tensor))

    def write(self, tensor: Tensor) -> Tensor:
        return F.softplus(tensor.float())


@dataclass(frozen=True)
class Depthwise:
    """A kernel per channel [n, size], without the axis of input channels [n, 1, size]."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return tensor.unsqueeze(1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.squeeze(1)


def shape(container: Container, name: str) -> tuple[int, ...]:
    """The shape of a tensor of the projector. Raises ConfigError if it is missing."""
    if name not in container.tensors:
        raise ConfigError(f"{container.path.name}: its projector has no {name}; convert it again")
    return container.tensors[name].shape


def gguf_config(container: Container) -> dict[str, Any]:
    """The config.json, with image preprocessing. Raises ConfigError for missing keys."""
    text, cell = gemma4.gguf_config(container), 3
    if text["hidden_size"] not in CAUSAL:
        text["use_bidirectional_attention"] = "vision"
    if "clip.vision.projector.scale_factor" in container.metadata:
        cell = llava.stated(container, "vision.projector.scale_factor")
    heads = llava.stated(container, "vision.attention.head_count")
    patch = shape(container, "mmproj.v.patch_embd.weight")[-1]
    d = shape(container, "mmproj.v.blk.0.attn_q.weight")[0] // heads
    tower = {
        "hidden_size": llava.stated(container, "vision.embedding_length"),
        "intermediate_size": llava.stated(container, "vision.feed_forward_length"),
        "num_hidden_layers": llava.stated(container, "vision.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": shape(container, "mmproj.v.blk.0.attn_k.weight")[0] // max(d, 1),
        "head_dim": d,
        "rms_norm_eps": llava.stated(container, "vision.attention.layer_norm_epsilon", float),
        "patch_size": patch,
        "pooling_kernel_size": cell,
        "position_embedding_size": shape(container, "mmproj.v.position_embd.weight")[-2],
        "use_clipped_linears": "mmproj.v.blk.0.attn_q.input_max" in container.tensors,
        "standardize": "mmproj.v.std_bias" in container.tensors,
    }
    return {
        "text_config": text,
        "vision_config": tower,
        "image_token_id": llava.token(container, "<|image|>"),
        "video_token_id": llava.token(container, "<|video|>", "<|image|>"),
        "boi_token_id": llava.token(container, "<|image>"),
        "eoi_token_id": llava.token(container, "<image|>"),
        "preprocessor_config": {"patch_size": patch, "pooling_kernel_size": cell},
        **(sound(container) if "mmproj.a.conv1d.0.weight" in container.tensors else {}),
    }


def sound(container: Container) -> dict[str, Any]:
    """The config of the sound encoder, its tokens and its preprocessing.

    The bins of spectra follow from the weights: not all files state them. Sizes that no key states
    have the values of the published models, as in llama.cpp.
    """
    channels = [shape(container, f"mmproj.a.conv1d.{i}.weight")[0] for i in range(2)]
    columns = shape(container, "mmproj.a.input_projection.weight")[-1]
    encoder = {
        "hidden_size": llava.stated(container, "audio.embedding_length"),
        "num_hidden_layers": llava.stated(container, "audio.block_count"),
        "num_attention_heads": llava.stated(container, "audio.attention.head_count"),
        "subsampling_conv_channels": channels,
        "conv_kernel_size": shape(container, "mmproj.a.blk.0.conv_dw.weight")[-1],
        "use_clipped_linears": "mmproj.a.blk.0.attn_q.input_max" in container.tensors,
        "output_proj_dims": shape(container, "mmproj.a.pre_encode.out.weight")[0],
    }
    return {
        "audio_config": encoder,
        "audio_token_id": llava.token(container, "<|audio|>"),
        "boa_token_id": llava.token(container, "<|audio>"),
        "eoa_token_index": llava.token(container, "<audio|>"),
        "feature_extractor": {"feature_size": 4 * columns // max(channels[1], 1)},
    }


SIDE, BINS = 224, 128
"""The size of an image, which has no effect, and the bins of the published models."""


def gguf_metadata(config: vision.Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of the projector. Pixels are not normalised."""
    tower, sound = config.vision, config.audio
    image = {
        "projector_type": "gemma4v",
        "projection_dim": config.text.hidden_size,
        "image_size": SIDE,
        "patch_size": tower.patch_size,
        "embedding_length": tower.hidden_size,
        "feed_forward_length": tower.intermediate_size,
        "block_count": tower.num_hidden_layers,
        "attention.head_count": tower.num_attention_heads,
        "attention.layer_norm_epsilon": tower.rms_norm_eps,
        "image_mean": [0.0] * 3,
        "image_std": [1.0] * 3,
        "projector.scale_factor": tower.pooling_kernel_size,
    }
    found: dict[str, Any] = {"clip.has_vision_encoder": True}
    found |= {f"clip.vision.{key}": value for key, value in image.items()}
    return found if sound is None else {**found, **sound_keys(config, sound)}


def sound_keys(config: vision.Config, sound: Any) -> dict[str, Any]:
    """The keys of the sound encoder."""
    audio = {
        "projector_type": "gemma4a",
        "projection_dim": config.text.hidden_size,
        "embedding_length": sound.hidden_size,
        "feed_forward_length": 4 * sound.hidden_size,
        "block_count": sound.num_hidden_layers,
        "attention.head_count": sound.num_attention_heads,
        "attention.layer_norm_epsilon": sound.rms_norm_eps,
        "num_mel_bins": BINS,
    }
    keys = {f"clip.audio.{key}": value for key, value in audio.items()}
    return {"clip.has_audio_encoder": True, **keys}


def linear_pairs(theirs: str, ours: str, linears: Mapping[str, str]) -> Iterator[Pair]:
    """The pairs of linears and of their bounds."""
    for a, b in linears.items():
        yield Pair(f"{theirs}.{a}.weight", f"{ours}.{b}.linear.weight")
        for bound in BOUNDS:
            yield Pair(f"{theirs}.{a}.{bound}", f"{ours}.{b}.{bound}", Scalar())


def seeing(size: int) -> Iterator[Pair]:
    """The pairs of the vision encoder, with patches of `size` pixels."""
    at, embedder = "mmproj.v", "vision_tower.patch_embedder"
    block, layer = f"{at}.blk.{{i}}", "vision_tower.encoder.layers.{i}"
    yield from linear_pairs(block, layer, LINEARS)
    yield from (Pair(f"{block}.{theirs}", f"{layer}.{ours}") for theirs, ours in NORMS.items())
    yield Pair(f"{at}.patch_embd.weight", f"{embedder}.input_proj.weight", ChannelsLast(size))
    yield Pair(f"{at}.position_embd.weight", f"{embedder}.position_embedding_table")
    yield Pair(f"{at}.std_bias", "vision_tower.std_bias")
    yield Pair(f"{at}.std_scale", "vision_tower.std_scale")
    yield Pair("mmproj.mm.input_projection", "embed_vision.embedding_projection")


def hearing() -> Iterator[Pair]:
    """The pairs of the sound encoder."""
    at, convolutions = "mmproj.a", "audio_tower.subsample_conv_projection"
    block, layer = f"{at}.blk.{{i}}", "audio_tower.layers.{i}"
    yield from linear_pairs(block, layer, SOUND_LINEARS)
    yield from (Pair(f"{block}.{theirs}", f"{layer}.{ours}") for theirs, ours in SOUND.items())
    scale = f"{layer}.self_attn.per_dim_scale"
    yield Pair(f"{block}.per_dim_scale.weight", scale, InverseSoftplus())
    kernel = f"{layer}.lconv1d.depthwise_conv1d.weight"
    yield Pair(f"{block}.conv_dw.weight", kernel, Depthwise())
    for i in range(2):
        yield Pair(f"{at}.conv1d.{i}.weight", f"{convolutions}.layer{i}.conv.weight")
        yield Pair(f"{at}.conv1d.{i}.norm", f"{convolutions}.layer{i}.norm")
    yield Pair(f"{at}.input_projection", f"{convolutions}.input_proj_linear")
    yield Pair(f"{at}.pre_encode.out", "audio_tower.output_proj")
    yield Pair("mmproj.mm.a.input_projection", "embed_audio.embedding_projection")


def names(config: vision.Config) -> Gemma4Names:
    """The names on the hub, and in the two GGUF files."""
    found = vision.names(config)
    towers = (*seeing(config.vision.patch_size), *(hearing() if config.audio else ()))
    return replace(found, gguf=(*towers, *found.gguf))
