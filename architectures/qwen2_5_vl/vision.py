"""Qwen2.5-VL's vision encoder: images and videos of any size, with window attention.

Reference class Qwen2_5_VisionTransformerPretrainedModel of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Step, nn
from ostro.architectures.qwen2_5_vl import config as configs
from ostro.architectures.qwen2_5_vl.grid import SIDE, Grid, frames, places, windows
from ostro.ops import Op, rope_table, varlen_attention

EPS = 1e-6


class AxialRope(nn.Rope):
    """Rope with the patch's row on one half of a head's pairs and its column on the other."""

    def __init__(self, config: configs.Tower) -> None:
        half = config.head_dim // 4
        rule = {"rope_theta": config.rope_parameters.get("rope_theta", 10000.0)}
        super().__init__(rule, config.head_dim, SIDE, sections=(half, half))

    def finalize(self, context: int, device: torch.device) -> None:
        """Build the table, independent of the text's context."""
        cos, sin = rope_table(self.rule, self.head_dim // 2, self.context).chunk(2, -1)
        self.table = torch.cat((cos, cos, sin, sin), -1).to(device)


class Attention(nn.Module):
    """Attention within the segments of `step.bounds`."""

    def __init__(self, config: configs.Tower, rope: nn.Rope) -> None:
        super().__init__()
        d, self.heads, self.rope = config.hidden_size, config.num_heads, rope
        self.qkv = nn.Linear(d, 3 * d, bias=True, shard=None)
        self.proj = nn.Linear(d, d, bias=True, shard=None)
        self.scale = config.head_dim**-0.5
        self.attend = Op(varlen_attention.KERNELS)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, d] -> [n, d]; `step.positions` [2, n] are the patches' rows and columns."""
        q, k, v = self.qkv(x, step).view(len(x), 3, self.heads, -1).unbind(1)
        q, k = self.rope(q, k, step.positions)
        y = self.attend(q, k, v, step.bounds, self.scale)
        return self.proj(y.flatten(1), step)


class Block(nn.Module):
    def __init__(self, config: configs.WindowTower, rope: nn.Rope) -> None:
        super().__init__()
        d = config.hidden_size
        self.norm1 = nn.RMSNorm(d, EPS)
        self.attn = Attention(config, rope)
        self.norm2 = nn.RMSNorm(d, EPS)
        self.mlp = nn.GatedMLP(d, config.intermediate_size, config.hidden_act, bias=True)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        x = x + self.attn(self.norm1(x)[0], step)
        return x + self.mlp(self.norm2(x)[0], step)


class Merger(nn.Module):
    """Merges a cell of neighbouring patches to one row of the language model."""

    def __init__(self, config: configs.Tower) -> None:
        super().__init__()
        self.cell = config.spatial_merge_size**2
        self.width = config.hidden_size * self.cell
        self.norm: nn.Module = nn.RMSNorm(config.hidden_size, EPS)
        self.linear_fc1 = nn.Linear(self.width, self.width, bias=True)
        self.linear_fc2 = nn.Linear(self.width, config.out_hidden_size, bias=True, shard="rowwise")

    def gather(self, x: Tensor) -> Tensor:
        """Norm the patches [n, d] and concatenate those of a cell."""
        return self.norm(x)[0].view(-1, self.width)

    def forward(self, x: Tensor, step: Step) -> Tensor:
        """x [n, d] -> [n / cell, out]."""
        step = step.rows(torch.arange(0, len(x), self.cell, device=x.device))
        return self.linear_fc2(F.gelu(self.linear_fc1(self.gather(x), step)), step)


class PatchEmbed(nn.Module):
    """Patch embedding: a convolution whose stride is its kernel size, as a linear."""

    def __init__(self, config: configs.Tower, *, bias: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(prod(config.patch_shape), config.hidden_size, bias=bias)

    def forward(self, patches: Tensor, step: Step) -> Tensor:
        return self.proj(patches, step)


class Tower(nn.Module):
    def __init__(self, config: configs.WindowTower) -> None:
        super().__init__()
        self.merge, self.window = config.spatial_merge_size, config.window
        self.whole = frozenset(config.fullatt_block_indexes)
        rope = AxialRope(config)
        self.patch_embed = PatchEmbed(config, bias=False)
        self.blocks = nn.ModuleList(Block(config, rope) for _ in range(config.depth))
        self.merger = Merger(config)

    def forward(self, patches: Tensor, grids: Sequence[Grid], step: Step) -> tuple[Tensor, ...]:
        """Patches [n, c * t * p * p] of consecutive media -> their rows [n / cell, out].

        Internally the cells of a window are contiguous, as are the windows of a frame.
        """
        order, bounds = windows(grids, self.merge, self.window)
        cells = torch.from_numpy(order).to(patches.device)
        spots = torch.from_numpy(places(grids, self.merge)).to(patches.device)
        x = self.patch_embed(patches, step)
        frame = replace(step, positions=self.reorder(spots.t(), cells).t(), bounds=frames(grids))
        window = replace(frame, bounds=bounds)
        x = self.reorder(x, cells)
        for i, block in enumerate(self.blocks):
            x = block(x, frame if i in self.whole else window)
        return (self.merger(x, step)[cells.argsort()],)

    def reorder(self, x: Tensor, cells: Tensor) -> Tensor:
        """Reorder the cells of x [n, d]."""
        return x.unflatten(0, (-1, self.merge**2))[cells].flatten(0, 1)
