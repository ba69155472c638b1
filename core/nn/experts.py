"""Mixture of experts: a router selects a few experts per row; the experts are stacked MLPs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, Parameter, ParameterDict

from ostro.core.errors import CheckpointError, InvalidTensor
from ostro.core.nn.linear import Delta, Linear, WeightSlot
from ostro.core.nn.mlp import activation
from ostro.core.nn.storage import Storage
from ostro.core.ops import Op, Target, act_mul, moe_route
from ostro.core.ops.moe_route import RoutingRule
from ostro.core.step import Step


class Router(Linear):
    """Selects experts for each row, and their weights, by a rule.

    With `correction_bias`, the parameter `e_score_correction_bias` [experts] float32 is added to
    the scores for the selection only.
    """

    def __init__(
        self,
        d: int,
        experts: int,
        rule: RoutingRule,
        *,
        bias: bool = False,
        correction_bias: bool = False,
    ) -> None:
        super().__init__(d, experts, bias=bias)
        self.rule = rule
        self.e_score_correction_bias = correction(experts) if correction_bias else None
        self.route = Op(moe_route.KERNELS)

    def slots(self, path: str) -> Iterator[WeightSlot]:
        yield from super().slots(path)
        if (bias := self.e_score_correction_bias) is not None:
            name = "e_score_correction_bias"
            yield WeightSlot(f"{path}.{name}", "tensor", tuple(bias.shape), self, name)

    def fill(self, slot: WeightSlot, value: Storage | Tensor) -> None:
        bias = self.e_score_correction_bias
        if bias is not None and slot.part == "e_score_correction_bias":
            assert isinstance(value, Tensor), f"{slot.name} is a parameter"
            bias.data.copy_(value)
        else:
            super().fill(slot, value)

    def choose(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """x [T, d] -> (experts [T, k] int64, best first, weights [T, k] float32)."""
        chosen, weights = self.route(self(x, step), self.rule, self.e_score_correction_bias)
        return chosen, weights


class Float32Router(Module):
    """A `Router` with a float32 weight [experts, d], which formats and adapters leave as it is."""

    def __init__(
        self, d: int, experts: int, rule: RoutingRule, *, correction_bias: bool = False
    ) -> None:
        super().__init__()
        self.n_out, self.rule = experts, rule
        self.weight = Parameter(torch.zeros(experts, d), requires_grad=False)
        self.e_score_correction_bias = correction(experts) if correction_bias else None
        self.route = Op(moe_route.KERNELS)

    def choose(self, x: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """x [T, d] -> (experts [T, k] int64, best first, weights [T, k] float32)."""
        logits = F.linear(x.float(), self.weight.float())
        chosen, weights = self.route(logits, self.rule, self.e_score_correction_bias)
        return chosen, weights


def correction(experts: int) -> Parameter:
    return Parameter(torch.zeros(experts), requires_grad=False)


class ExpertLinear(Module):
    """The same linear of all experts: weights [experts, n, k] and biases [experts, n].

    The n rows are one or several named parts, fused into one storage if their formats agree.
    """

    def __init__(
        self, experts: int, n_in: int, parts: dict[str, int], *, bias: bool = False
    ) -> None:
        super().__init__()
        self.experts, self.n_in, self.parts = experts, n_in, parts
        self.n_out = sum(parts.values())
        self.read: dict[tuple[int, str], Storage] = {}
        self.storages: list[Any] = []
        zeros = {part: torch.zeros(experts, n) for part, n in parts.items() if bias}
        self.biases = ParameterDict(zeros).requires_grad_(False)
        self.bias: Tensor | None = None
        self.deltas: list[Delta] = []
        self.checked = False  # whether the storages have returned right results

    def forward(self, x: Tensor, expert_of_row: Tensor, step: Step) -> Tensor:
        """x [t, k], expert_of_row [t] int64, ascending -> [t, n], the parts concatenated.

        Raises InvalidTensor if the width of x is not `n_in`.
        """
        if x.shape[-1] != self.n_in:
            raise InvalidTensor(f"expects inputs of width {self.n_in}, got {x.shape[-1]}")
        found = [storage.grouped(x, expert_of_row) for storage in self.storages]
        if not self.checked:
            for storage, product in zip(self.storages, found, strict=True):
                storage.check("grouped", product, (len(x), storage.shape[-2]), x.dtype)
            self.checked = True
        y = found[0] if len(found) == 1 else torch.cat(found, -1)
        for delta in self.deltas:
            y = delta.grouped(x, y, expert_of_row, step)
        return y if self.bias is None else y + self.bias[expert_of_row]

    def slots(self, path: str) -> Iterator[WeightSlot]:
        parent = path.rpartition(".")[0]
        for expert in range(self.experts):
            for part, size in self.parts.items():
                name = f"{parent}.{expert}.{part}"
                yield WeightSlot(name, "storage", (size, self.n_in), self, part, expert)
        for part, bias in self.biases.items():
            yield WeightSlot(
                f"{parent}.{part}.bias", "tensor", tuple(bias.shape), self.biases, part
            )

    def fill(self, slot: WeightSlot, value: Storage) -> None:
        assert slot.expert is not None, f"{slot = } has no expert"
        self.read[slot.expert, slot.part] = value

    def finalize(self, target: Target) -> str:
        """Fuse the parts of each expert, stack the experts, and select kernels.

        Returns the choices. Raises CheckpointError if the experts have different formats.
        """
        self.checked = False
        rows = [self.pop_expert(expert) for expert in range(self.experts)]
        formats = sorted({" and ".join(storage.format for storage in row) for row in rows})
        columns = zip(*rows, strict=True) if len(formats) == 1 else ()
        self.storages = [type(column[0]).stack(column) for column in columns]
        if not self.storages or None in self.storages:
            raise CheckpointError(
                f"the experts of a layer are stored as {', '.join(formats)}, which cannot be "
                "stacked; use a checkpoint whose experts all have the same format"
            )
        if self.biases:
            biases = torch.cat(list(self.biases.values()), -1)
            self.bias = biases.to(self.storages[0].device, self.storages[0].dtype)
        reasons = [storage.finalize(target) for storage in self.storages]
        return "; ".join(dict.fromkeys(reasons))

    def pop_expert(self, expert: int) -> list[Any]:
        """Remove the storages read for one expert and return them, fused if possible.

        Removing them one expert at a time keeps peak memory below two copies of the layer.
        """
        parts = [self.read.pop((expert, part)) for part in self.parts]
        fused = None if len(parts) == 1 else type(parts[0]).fuse(parts)
        return parts if fused is None else [fused]

    @property
    def active_storages(self) -> list[Any]:
        return self.storages

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes for storage in self.storages)

    def extra_repr(self) -> str:
        return f"{self.experts} x ({self.n_in} -> {self.parts})"


class Experts(Module):
    """Stacked gated MLPs: row t uses the experts chosen[t] with weights[t] (Shazeer et al. 2017).

    Checkpoint names are `{path}.{expert}.gate_proj.weight` and so on, and `{path}.gate_proj.bias`
    [experts, n] for biases; an architecture's `Names` map other names to these. An architecture
    with another activation overrides `activate`.
    """

    def __init__(self, experts: int, d: int, hidden: int, act: str, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_up = ExpertLinear(experts, d, {"gate_proj": hidden, "up_proj": hidden}, bias=bias)
        self.down = ExpertLinear(experts, hidden, {"down_proj": d}, bias=bias)
        self.act = activation(act)
        self.sort, self.act_mul = Op(moe_route.SORT), Op(act_mul.KERNELS)

    def activate(self, gate_up: Tensor) -> Tensor:
        """[t, 2n], gates first -> [t, n]."""
        y: Tensor = self.act_mul(gate_up, self.act)
        return y

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor, step: Step) -> Tensor:
        """x [T, d], chosen [T, k] int64, weights [T, k] -> [T, d]; sums in float32."""
        expert_of_copy, row_of_copy, positions = self.sort(chosen, self.gate_up.experts)
        routed = step.rows(row_of_copy)
        y = self.gate_up(x[row_of_copy], expert_of_copy, routed)
        y = self.down(self.activate(y), expert_of_copy, routed)
        return (y[positions].float() * weights.float()[..., None]).sum(1).to(x.dtype)
