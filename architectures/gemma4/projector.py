"""Gemma 4 with images in two GGUF files: the config and the names of text and projector
(mmproj).

Source: llama.cpp's converter and tools/mtmd, 2026. The encoder of sound in the file is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

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
    }


def names(config: vision.Config) -> Gemma4Names:
    """The names on the hub, and in the two GGUF files."""
    found, at, layer = vision.names(config), "mmproj.v", "vision_tower.encoder.layers.{i}"
    linears = [
        pair
        for theirs, ours in LINEARS.items()
        for pair in (
            Pair(f"{at}.blk.{{i}}.{theirs}.weight", f"{layer}.{ours}.linear.weight"),
            *(
                Pair(f"{at}.blk.{{i}}.{theirs}.{bound}", f"{layer}.{ours}.{bound}", Scalar())
                for bound in BOUNDS
            ),
        )
    ]
    embedder = "vision_tower.patch_embedder"
    tower = (
        *linears,
        *(Pair(f"{at}.blk.{{i}}.{theirs}", f"{layer}.{ours}") for theirs, ours in NORMS.items()),
        Pair(
            f"{at}.patch_embd.weight",
            f"{embedder}.input_proj.weight",
            ChannelsLast(config.vision.patch_size),
        ),
        Pair(f"{at}.position_embd.weight", f"{embedder}.position_embedding_table"),
        Pair(f"{at}.std_bias", "vision_tower.std_bias"),
        Pair(f"{at}.std_scale", "vision_tower.std_scale"),
        Pair("mmproj.mm.input_projection", "embed_vision.embedding_projection"),
    )
    unused = ("mmproj.a.{rest}", "mmproj.mm.a.{rest}")
    return replace(found, gguf=(*tower, *found.gguf), ignore=(*found.ignore, *unused))
