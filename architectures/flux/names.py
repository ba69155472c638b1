"""FLUX's names: diffusers' folders, and the single files of Black Forest Labs.

Tensors of a folder have the component's name as prefix. BFL's transformer and autoencoder may have
that prefix, none, or the prefix of larger files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostro import HeadRows, Names, Pair
from ostro.architectures.clip import model as clip
from ostro.architectures.flux.config import Config, TransformerConfig, VAEConfig
from ostro.architectures.flux.transformer import MLP_RATIO
from ostro.architectures.t5 import names as t5
from ostro.errors import CheckpointError

TRANSFORMER = ("transformer.", "", "model.diffusion_model.")
AUTOENCODER = ("vae.", "", "first_stage_model.")
"""The possible prefixes of BFL's names."""


@dataclass(frozen=True)
class SwapHalves:
    """The checkpoint has shift before scale, the model scale before shift."""

    packed: bool = field(default=True, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.dim() == 0 or tensor.shape[0] % 2:
            raise CheckpointError(
                f"a weight of shape {tuple(tensor.shape)} cannot be split into halves"
            )
        return torch.cat(tensor.chunk(2)[::-1])

    def write(self, tensor: Tensor) -> Tensor:
        return torch.cat(tensor.chunk(2)[::-1])


@dataclass(frozen=True)
class Pointwise:
    """The checkpoint has a convolution [n, k, 1, 1] where the model has a linear [n, k]."""

    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.shape[2:] not in ((), (1, 1)):
            raise CheckpointError(f"a convolution of shape {tuple(tensor.shape)} is not pointwise")
        return tensor.flatten(1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor[..., None, None]


BLOCKS = {"encoder": ("down", "down_blocks"), "decoder": ("up", "up_blocks")}
SAME = (
    *(
        f"transformer.{name}"
        for name in (
            "transformer_blocks single_transformer_blocks time_text_embed context_embedder "
            "x_embedder norm_out proj_out"
        ).split()
    ),
    *(
        f"vae.{side}.{name}"
        for side, (_, blocks) in BLOCKS.items()
        for name in ("conv_in", blocks, "mid_block", "conv_norm_out", "conv_out")
    ),
)
"""Names that equal those of diffusers; first, so that writing uses them."""


def names(config: Config) -> Names:
    parts = {
        "text_encoder": clip.names(config.text_encoder),
        "text_encoder_2": t5.names(config.text_encoder_2),
    }
    pairs = (
        *feed_forwards(),
        *(Pair(name, name) for name in SAME),
        *(
            Pair(f"{part}.{pair.theirs}", f"{part}.{pair.ours}", pair.transform)
            for part, found in parts.items()
            for pair in found.hub
        ),
        *(pair for prefix in TRANSFORMER for pair in bfl_transformer(config.transformer, prefix)),
        *(pair for prefix in AUTOENCODER for pair in bfl_vae(config.vae, prefix)),
    )
    unused = [f"{part}.{name}" for part, found in parts.items() for name in found.ignore]
    return Names(hub=pairs, ignore=unused)


def feed_forwards() -> Iterator[Pair]:
    for ff in ("ff", "ff_context"):
        block = f"transformer.transformer_blocks.{{i}}.{ff}"
        yield Pair(f"{block}.net.0.proj", f"{block}.fc1")
        yield Pair(f"{block}.net.2", f"{block}.fc2")


def bfl_transformer(config: TransformerConfig, prefix: str) -> Iterator[Pair]:
    """The names of flux1-*.safetensors, with fused q, k, v and feed-forward."""
    for theirs, ours in (
        ("time_in", "timestep_embedder"),
        ("guidance_in", "guidance_embedder"),
        ("vector_in", "text_embedder"),
    ):
        for number, layer in enumerate(("in_layer", "out_layer"), 1):
            full = f"transformer.time_text_embed.{ours}.linear_{number}"
            yield Pair(f"{prefix}{theirs}.{layer}", full)
    yield Pair(f"{prefix}txt_in", "transformer.context_embedder")
    yield Pair(f"{prefix}img_in", "transformer.x_embedder")
    yield Pair(f"{prefix}final_layer.linear", "transformer.proj_out")
    swapped = f"{prefix}final_layer.adaLN_modulation.1"
    yield Pair(swapped, "transformer.norm_out.linear", SwapHalves())
    yield from bfl_double(config, prefix)
    yield from bfl_single(config, prefix)


def bfl_double(config: TransformerConfig, prefix: str) -> Iterator[Pair]:
    d = config.hidden_size
    theirs, ours = f"{prefix}double_blocks.{{i}}", "transformer.transformer_blocks.{i}"
    image, text = ("to_q", "to_k", "to_v"), ("add_q_proj", "add_k_proj", "add_v_proj")
    for stream, end, qkv, norm, out in (
        ("img", "", image, "norm", "to_out.0"),
        ("txt", "_context", text, "norm_added", "to_add_out"),
    ):
        yield Pair(f"{theirs}.{stream}_mod.lin", f"{ours}.norm1{end}.linear")
        fused = [f"{ours}.attn.{part}" for part in qkv]
        yield from rows(f"{theirs}.{stream}_attn.qkv", fused, [d, d, d])
        for long, short in (("query", "q"), ("key", "k")):
            scale = f"{theirs}.{stream}_attn.norm.{long}_norm.scale"
            yield Pair(scale, f"{ours}.attn.{norm}_{short}.weight")
        yield Pair(f"{theirs}.{stream}_attn.proj", f"{ours}.attn.{out}")
        yield Pair(f"{theirs}.{stream}_mlp.0", f"{ours}.ff{end}.fc1")
        yield Pair(f"{theirs}.{stream}_mlp.2", f"{ours}.ff{end}.fc2")


def bfl_single(config: TransformerConfig, prefix: str) -> Iterator[Pair]:
    d = config.hidden_size
    theirs, ours = f"{prefix}single_blocks.{{i}}", "transformer.single_transformer_blocks.{i}"
    yield Pair(f"{theirs}.modulation.lin", f"{ours}.norm.linear")
    fused = [f"{ours}.{part}" for part in ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")]
    yield from rows(f"{theirs}.linear1", fused, [d, d, d, MLP_RATIO * d])
    yield Pair(f"{theirs}.linear2", f"{ours}.proj_out")
    yield Pair(f"{theirs}.norm.query_norm.scale", f"{ours}.attn.norm_q.weight")
    yield Pair(f"{theirs}.norm.key_norm.scale", f"{ours}.attn.norm_k.weight")


def rows(theirs: str, ours: Sequence[str], sizes: Sequence[int]) -> Iterator[Pair]:
    """The consecutive row ranges of one of their tensors."""
    start = 0
    for name, size in zip(ours, sizes, strict=True):
        yield Pair(theirs, name, HeadRows(1, sum(sizes), start, start + size))
        start += size


def bfl_vae(config: VAEConfig, prefix: str) -> Iterator[Pair]:
    """The names of ae.safetensors, which counts decoder blocks from the end."""
    last = len(config.block_out_channels) - 1
    for side, (short, blocks) in BLOCKS.items():
        theirs, ours = f"{prefix}{side}", f"vae.{side}"
        for i in range(last + 1):
            j = i if side == "encoder" else last - i
            block, mine = f"{theirs}.{short}.{j}", f"{ours}.{blocks}.{i}"
            resnet = f"{mine}.resnets.{{k}}"
            yield Pair(f"{block}.block.{{k}}.nin_shortcut", f"{resnet}.conv_shortcut")
            yield Pair(f"{block}.block.{{k}}", resnet)
            yield Pair(f"{block}.{short}sample.conv", f"{mine}.{short}samplers.0.conv")
        yield from bfl_middle(f"{theirs}.mid", f"{ours}.mid_block")
        yield Pair(f"{theirs}.conv_in", f"{ours}.conv_in")
        yield Pair(f"{theirs}.norm_out", f"{ours}.conv_norm_out")
        yield Pair(f"{theirs}.conv_out", f"{ours}.conv_out")


def bfl_middle(theirs: str, ours: str) -> Iterator[Pair]:
    for i in range(2):
        yield Pair(f"{theirs}.block_{i + 1}", f"{ours}.resnets.{i}")
    attention = f"{ours}.attentions.0"
    yield Pair(f"{theirs}.attn_1.norm", f"{attention}.group_norm")
    for name, part in (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("proj_out", "to_out.0")):
        full = f"{theirs}.attn_1.{name}"
        yield Pair(f"{full}.weight", f"{attention}.{part}.weight", Pointwise())
        yield Pair(f"{full}.bias", f"{attention}.{part}.bias")
