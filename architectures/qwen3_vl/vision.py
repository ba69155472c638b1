"""Qwen3-VL's vision encoder: attention within frames, with deepstack features of some layers.

Reference class Qwen3VLVisionModel of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.qwen2_5_vl import config as configs
from ostro.architectures.qwen2_5_vl import vision as qwen2_5_vl
from ostro.architectures.qwen2_5_vl.grid import Grid, Ints, frames, places
from ostro.architectures.qwen2_5_vl.vision import EPS, Attention, AxialRope, PatchEmbed
from ostro.architectures.qwen3_vl.config import DeepTower

Floats = NDArray[np.float32]


class Block(nn.Module):
    def __init__(self, config: configs.Tower, rope: nn.Rope) -> None:
        super().__init__()
        d = config.hidden_size
        self.norm1 = nn.LayerNorm(d, EPS)
        self.attn = Attention(config, rope)
        self.norm2 = nn.LayerNorm(d, EPS)
        self.mlp = nn.MLP(d, config.intermediate_size, config.hidden_act)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        y, x = self.norm2(self.attn(self.norm1(x)[0], step), x)
        return x + self.mlp(y, step)


class Merger(qwen2_5_vl.Merger):
    """The merger of the last layer, which norms patches."""

    def __init__(self, config: configs.Tower) -> None:
        super().__init__(config)
        self.norm = nn.LayerNorm(config.hidden_size, EPS)

    def gather(self, x: Tensor) -> Tensor:
        return self.norm(x)[0].view(-1, self.width)


class LevelMerger(Merger):
    """The merger of a deepstack layer, which norms cells."""

    def __init__(self, config: DeepTower) -> None:
        super().__init__(config)
        self.norm = nn.LayerNorm(self.width, EPS)

    def gather(self, x: Tensor) -> Tensor:
        return self.norm(x.view(-1, self.width))[0]


class Tower(nn.Module):
    def __init__(self, config: DeepTower) -> None:
        super().__init__()
        self.merge, self.side = config.spatial_merge_size, config.side
        rope = AxialRope(config)
        self.patch_embed = PatchEmbed(config, bias=True)
        self.pos_embed = nn.Embedding(config.num_position_embeddings, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, rope) for _ in range(config.depth))
        self.merger = Merger(config)
        self.speaking = config.deepstack_visual_indexes
        self.deepstack_merger_list = nn.ModuleList(LevelMerger(config) for _ in self.speaking)

    def forward(self, patches: Tensor, grids: Sequence[Grid], step: Step) -> tuple[Tensor, ...]:
        """Patches [n, c * t * p * p] of consecutive media -> their rows [n / cell, out], and
        deepstack rows of the same shape for each of the language model's first layers.
        """
        spots, device = places(grids, self.merge), patches.device
        index, share = (torch.from_numpy(a).to(device) for a in stretch(grids, spots, self.side))
        x = self.patch_embed(patches, step)
        x = x + self.positions(index, share, step).to(x.dtype)
        rows = torch.from_numpy(spots).to(device)
        frame = replace(step, positions=rows, bounds=frames(grids))
        mergers, levels = iter(self.deepstack_merger_list), []
        for i, block in enumerate(self.blocks):
            x = block(x, frame)
            if i in self.speaking:
                levels.append(next(mergers)(x, step))
        return self.merger(x, step), *levels

    def positions(self, index: Tensor, share: Tensor, step: Step) -> Tensor:
        """The sum of learned positions of indices [4, n] with weights [4, n]: [n, d]."""
        found = self.pos_embed(index.flatten(), step).view(*index.shape, -1)
        return (found * share[..., None]).sum(0)


def stretch(grids: Sequence[Grid], spots: Ints, side: int) -> tuple[Ints, Floats]:
    """Bilinear interpolation of side * side learned positions: indices and weights, each [4, n].

    The corners of a frame are the corners of the learned grid.
    """
    ends = [np.full((2, t * h * w), [[h], [w]]) for t, h, w in grids]
    last = np.maximum(np.concatenate(ends, 1) - 1, 1).astype(np.float32)
    exact = spots.astype(np.float32) * np.float32(side - 1) / last
    low = exact.astype(np.int64)
    taps = np.stack([low, np.minimum(low + 1, side - 1)])
    share = exact - low.astype(np.float32)
    shares = np.stack([1 - share, share])
    index = taps[:, None, 0] * side + taps[None, :, 1]
    weight = shares[:, None, 0] * shares[None, :, 1]
    return index.reshape(4, -1), weight.reshape(4, -1)
