"""Rotary position embeddings, with one table of cosines and sines shared by all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.ops import Op, rope
from ostro.core.ops.rope.scaling import rope_table


class Rope(Module):
    """Rotary position embedding (Su et al. 2021).

    rule      transformers' `rope_parameters`: "rope_theta", "rope_type" and the type's parameters
    sections  for tokens with several positions (multimodal rope): the number of pairs that rotate
              by each position, one section after the other (Wang et al. 2024, Qwen2-VL)
    woven     interleave the sections pair by pair; pairs beyond the end of a section rotate by the
              first position (Qwen3-VL's interleaved mrope)

    The table has one row per position; `finalize` sets its length to the model's context.
    """

    table: Tensor
    axes: Tensor

    def __init__(
        self,
        rule: Mapping[str, Any],
        head_dim: int,
        context: int,
        *,
        interleaved: bool = False,
        sections: Sequence[int] | None = None,
        woven: bool = False,
    ) -> None:
        super().__init__()
        self.rule, self.head_dim = dict(rule), head_dim
        self.interleaved, self.woven = interleaved, woven
        self.sections = tuple(sections) if sections else None
        self.rotate = Op(rope.KERNELS, head_dim=head_dim, interleaved=interleaved)
        self.register_buffer("table", torch.empty(0), persistent=False)
        self.register_buffer("axes", torch.empty(0), persistent=False)
        self.context = context

    def finalize(self, context: int, device: torch.device) -> None:
        """Make the table for `context` positions."""
        self.context = context
        self.table = rope_table(self.rule, self.head_dim, context).to(device)
        if self.woven and self.sections:
            # Cosines and sines use the same axes.
            self.axes = torch.tensor(weave(self.sections) * 2, device=device)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, h, d], k [T, kv, d], positions [c, T] -> rotated q and k."""
        positions, table = self.angles(positions)
        sections = None if self.woven else self.sections
        out: tuple[Tensor, Tensor] = self.rotate(q, k, positions, table, self.interleaved, sections)
        return out

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Positions and the table that they index.

        Woven positions [c, T] become [1, T] with a table of one row per token of this batch, for
        kernels that support one position per token.
        """
        if not self.woven:
            return positions, self.table
        rows = torch.arange(positions.shape[1], device=positions.device)
        return rows[None], self.table.gather(0, positions[self.axes].t())


def weave(sections: Sequence[int]) -> list[int]:
    """The position axis of each pair for interleaved sections."""
    c = len(sections)
    return [j % c if j < c * sections[j % c] else 0 for j in range(sum(sections))]
