"""Qwen2.5-VL: Qwen2 with mrope and a vision encoder (Qwen team 2025).

Reference class Qwen2_5_VLForConditionalGeneration of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostro import Medium, Names, Pair, Step, nn
from ostro.architectures.llama import model as llama
from ostro.architectures.qwen2 import model as qwen2
from ostro.architectures.qwen2_5_vl.config import Config as Config
from ostro.architectures.qwen2_5_vl.config import SightedConfig, Text
from ostro.architectures.qwen2_5_vl.grid import Grid
from ostro.architectures.qwen2_5_vl.vision import Tower
from ostro.errors import CheckpointError


class Sighted(llama.Model):
    """A decoder with a vision encoder."""

    layers = ("model.layers", "visual.blocks")
    axes = 3
    visual: nn.Module

    def encode(self, media: Sequence[Medium], step: Step) -> list[tuple[Tensor, ...]]:
        """The features of media, one tensor per level: the merged rows, then any deepstack levels.

        Media hold "patches" [n, k] and "grid" [3].
        """
        grids: list[Grid] = [tuple(medium.arrays["grid"].tolist()) for medium in media]
        patches = torch.cat([medium.arrays["patches"] for medium in media])
        levels = self.visual(patches, grids, step)
        sizes = [t * h * w // self.visual.merge**2 for t, h, w in grids]
        return list(zip(*(level.split(sizes) for level in levels), strict=True))

    def embed(self, step: Step) -> Tensor:
        x = super().embed(step)
        if step.features is None:
            return x
        return x.index_copy(0, step.features.rows, step.features.values)


class Block(qwen2.Block):
    @staticmethod
    def rope(config: Text) -> nn.Rope:
        context = config.max_position_embeddings
        return nn.Rope(config.rope_parameters, config.head_dim, context, sections=config.sections)


class Model(Sighted, qwen2.Model):
    block = Block

    def __init__(self, config: Config) -> None:
        super().__init__(config.text)
        self.visual = Tower(config.vision)


@dataclass(frozen=True)
class Flatten:
    """A convolution's kernel [n, *shape] as a linear's weight [n, k]."""

    shape: tuple[int, ...]
    packed: bool = field(default=False, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        if tuple(tensor.shape[1:]) != self.shape:
            raise CheckpointError(
                f"a patch embedding of shape {tuple(tensor.shape)}, expected {list(self.shape)} "
                "per row"
            )
        return tensor.flatten(1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, self.shape)


def names(config: SightedConfig) -> Names:
    """Checkpoints have the vision encoder at `visual`, transformers 5 below `model`."""
    kernel = Flatten(config.vision.patch_shape)
    pairs = [
        pair
        for tower in ("visual", "model.visual")
        for pair in (
            Pair(f"{tower}.patch_embed.proj.weight", "visual.patch_embed.proj.weight", kernel),
            Pair(f"{tower}.merger.ln_q", "visual.merger.norm"),
            Pair(f"{tower}.merger.mlp.0", "visual.merger.linear_fc1"),
            Pair(f"{tower}.merger.mlp.2", "visual.merger.linear_fc2"),
            Pair(tower, "visual"),
        )
    ]
    return Names(hub=(*pairs, Pair("model.language_model", "model")))
