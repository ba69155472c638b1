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
    for). The table has one row per position up to the context in force, which `settle` fixes.
    """

    table: Tensor

    def __init__(
        self,
        rule: Mapping[str, Any],
        head_dim: int,
        context: int,
        *,
        interleaved: bool = False,
        sections: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.rule, self.head_dim = dict(rule), head_dim
        self.interleaved = interleaved
        self.sections = tuple(sections) if sections else None
        self.rotate = Op(rope.KERNELS, head_dim=head_dim, interleaved=interleaved)
        self.register_buffer("table", torch.empty(0), persistent=False)
        self.context = context

    def settle(self, context: int, device: torch.device) -> None:
        """Make the table for `context` positions."""
        self.context = context
        self.table = table(self.rule, self.head_dim, context).to(device)

    def forward(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """q [T, h, d], k [T, kv, d], positions [c, T] -> the two, rotated."""
        out: tuple[Tensor, Tensor] = self.rotate(
            q, k, positions, self.table, self.interleaved, self.sections
        )
        return out
