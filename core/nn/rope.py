"""Rope: one table of angles, shared by all layers that rotate alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.ops import Op, rope
from ostro.core.ops.rope.scaling import table


class Rope(Module):
    """Rotary position embedding (Su et al. 2021) by a config's `rule`.

    rule: transformers' `rope_parameters` ("rope_theta", "rope_type", and what the rule asks
    for). The table has one row per position up to the context in force, which `finalize` fixes.
    Where a token has several positions (multimodal rope), `sections` say how many pairs turn by
    each: one section after the other (Wang et al. 2024, Qwen2-VL), or `woven`, pair by pair in
    turn, the first position taking over from those whose section is used up (Qwen3-VL).
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
        self.table = table(self.rule, self.head_dim, context).to(device)
        if self.woven and self.sections:
            # cosines and sines alike
            self.axes = torch.tensor(weave(self.sections) * 2, device=device)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, h, d], k [T, kv, d], positions [c, T] -> the two, rotated."""
        positions, table = self.angles(positions)
        sections = None if self.woven else self.sections
        out: tuple[Tensor, Tensor] = self.rotate(q, k, positions, table, self.interleaved, sections)
        return out

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Positions, and the table that they index.

        Woven positions [c, T] become [1, T], into a table of this batch's own with a row to a
        token, so that what knows one position per token does for them as well.
        """
        if not self.woven:
            return positions, self.table
        rows = torch.arange(positions.shape[1], device=positions.device)
        return rows[None], self.table.gather(0, positions[self.axes].t())


def weave(sections: Sequence[int]) -> list[int]:
    """Which position each pair turns by, the sections taking turns."""
    c = len(sections)
    return [j % c if j < c * sections[j % c] else 0 for j in range(sum(sections))]
