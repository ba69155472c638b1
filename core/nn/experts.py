"""Experts: many gated MLPs, stacked, of which each row takes a few."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.nn.linear import Delta, Slot
from ostro.core.nn.mlp import activation
from ostro.core.nn.storage import Storage
from ostro.core.ops import Op, act_mul
from ostro.core.step import Step


class Stack(Module):
    """The same linear of every expert: weights [experts, n, k], one storage per part or a fused
    one.
    """

    def __init__(self, experts: int, n_in: int, parts: dict[str, int]) -> None:
        super().__init__()
        self.experts, self.n_in, self.parts = experts, n_in, parts
        self.n_out = sum(parts.values())
        self.read: dict[tuple[int, str], Storage] = {}
        self.storages: dict[str, Storage] = {}
        self.deltas: list[Delta] = []

    def forward(self, x: Tensor, expert_of_row: Tensor, step: Step) -> Tensor:
        """x [t, k], expert_of_row [t] int64 -> [t, n]."""
        y = torch.cat([s.grouped(x, expert_of_row) for s in self.storages.values()], -1)
        for delta in self.deltas:
            y = delta.grouped(x, y, expert_of_row, step)
        return y

    def slots(self, path: str) -> Iterator[Slot]:
        parent = path.rpartition(".")[0]
        for expert in range(self.experts):
            for part, size in self.parts.items():
                yield Slot(
                    f"{parent}.{expert}.{part}", "storage", (size, self.n_in), self, part, expert
                )

    def fill(self, slot: Slot, value: Storage) -> None:
        assert slot.expert is not None, f"{slot = } names no expert"
        self.read[slot.expert, slot.part] = value

    def settle(self, deterministic: bool = False) -> str:
        reasons = []
        for part in self.parts:
            singles = [self.read.pop((e, part)) for e in range(self.experts)]
            stacked = type(singles[0]).stack(singles)
            assert stacked is not None, f"experts of formats {[s.format for s in singles][:3]}"
            self.storages[part] = stacked
            reasons.append(stacked.settle(deterministic))
        return "; ".join(dict.fromkeys(reasons))

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes for storage in self.storages.values())


class Experts(Module):
    """Gated MLPs of which row t uses chosen[t], weighted by weights[t] (Shazeer et al. 2017).

    Checkpoint names are `{path}.{expert}.gate_proj.weight` and so on; an architecture's name rules
    bring others to these.
    """

    def __init__(self, experts: int, d: int, hidden: int, act: str) -> None:
        super().__init__()
        self.gate_up = Stack(experts, d, {"gate_proj": hidden, "up_proj": hidden})
        self.down = Stack(experts, hidden, {"down_proj": d})
        self.act = activation(act)
        self.act_mul = Op(act_mul.KERNELS)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor, step: Step) -> Tensor:
        """x [T, d], chosen [T, k] int64, weights [T, k] -> [T, d]; sums in float32."""
        rows, k = chosen.shape
        expert_of_row, order = chosen.flatten().sort(stable=True)
        row_of_copy = order // k
        routed = step.rows(row_of_copy)
        y = self.gate_up(x[row_of_copy], expert_of_row, routed)
        y = self.down(self.act_mul(y, self.act), expert_of_row, routed)
        y = y.float() * weights.flatten()[order].float()[:, None]
        out = torch.zeros(rows, x.shape[-1], dtype=torch.float32, device=x.device)
        return out.index_add_(0, row_of_copy, y).to(x.dtype)
