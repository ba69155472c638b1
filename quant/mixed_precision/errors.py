"""Cells: what each format would make of each weight, measured on rows of the weight itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from ostro.core.load.describe import ModelOutline
from ostro.core.load.quantize import Maker, QuantizationPlan, means
from ostro.core.load.sizes import Shape, Sizes
from ostro.core.load.weights import slots
from ostro.core.nn import Embedding, Linear, Router
from ostro.core.nn.experts import Stack
from ostro.core.nn.linear import Slot

ROWS, EXPERTS = 32, 4
"""Rows of a weight that are quantized to see what a format does to it, and experts that they are
of: proportions between formats hardly differ from row to row."""

PILOTS = 3
"""Weights of each length of rows that every format is tried on. Those formats are left out there
that none of them is the better for."""

TINY = 1e-30
"""What nothing is divided by less than: a weight may be all zeros."""


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight that gets one format: a part of a linear, of all experts where it has several."""

    path: str
    slots: tuple[Slot, ...]
    shape: Shape

    @property
    def rows(self) -> int:
        return sum(prod(slot.shape[:-1]) for slot in self.slots)

    @property
    def count(self) -> int:
        return self.rows * self.shape[0]


class Cells:
    """The weights of a checkpoint that a plan leaves to be chosen for, and what formats make of
    them: bytes, and errors weighed by how large the inputs of each column are.
    """

    def __init__(self, found: ModelOutline, plan: QuantizationPlan, sizes: Sizes) -> None:
        self.found, self.plan, self.sizes = found, plan, sizes
        self.weights = list(self.find())
        self.makers: Mapping[Shape, Sequence[Maker]] = self.choose()

    def find(self) -> Iterator[Weight]:
        """The float weights of linears, embeddings and experts that no rule of the plan names."""
        for path, module in self.found.model.named_modules():
            parts: dict[str, list[Slot]] = {}
            for slot in places(path, module):
                if self.is_open(slot):
                    parts.setdefault(slot.part, []).append(slot)
            for mine in parts.values():
                yield Weight(path, tuple(mine), self.sizes.shape_of(mine[0]))

    def is_open(self, slot: Slot) -> bool:
        """Whether a slot's format is to be chosen."""
        named = any(means(pattern, slot) for pattern, _ in self.plan.named)
        return self.sizes.is_float(slot) and not named

    def choose(self) -> dict[Shape, list[Maker]]:
        """The formats worth trying for each length of rows: those with kernels, if there are any,
        whose errors no smaller one beats in all pilots.
        """
        found = {}
        for shape in dict.fromkeys(weight.shape for weight in self.weights):
            fits = [m for m in self.plan.known.values() if shape[0] % m.format.block == 0]
            for maker in fits:
                self.sizes.of_rows(maker, shape)
            fast = [m for m in fits if self.sizes.fast[m.format.name]] or fits
            mine = [weight for weight in self.weights if weight.shape == shape]
            pilots = mine[:: max(1, len(mine) // PILOTS)][:PILOTS]
            best = {name for pilot in pilots for name in self.unbeaten(pilot, fast)}
            found[shape] = [maker for maker in fast if maker.format.name in best]
        return found

    def unbeaten(self, weight: Weight, among: Sequence[Maker]) -> Iterator[str]:
        """The formats of a weight that are better than all that take no more bytes."""
        errors = self.errors(weight, among)
        size = {m.format.name: self.sizes.of_rows(m, weight.shape) for m in among}
        least = float("inf")
        for name in sorted(errors, key=lambda name: (size[name], errors[name])):
            if errors[name] < least:
                least = errors[name]
                yield name

    @torch.inference_mode()
    def errors(self, weight: Weight, among: Sequence[Maker]) -> dict[str, float]:
        """The sum over rows of a weight of sum_j importance_j (W_j - W'_j)^2, as a share of that of
        importance_j W_j^2, by format.
        """
        found, whole = dict.fromkeys((maker.format.name for maker in among), 0.0), TINY
        for rows, importance in self.samples(weight):
            weighs = torch.ones_like(rows[0]) if importance is None else importance
            whole += float((rows.float().square() @ weighs.float()).sum())
            for maker in among:
                made = maker.make(rows, self.found.dtype, importance).dequantize()
                off = (made.float() - rows.float()).square() @ weighs.float()
                found[maker.format.name] += float(off.sum())
        return {name: error / whole for name, error in found.items()}

    @cached_property
    def fixed(self) -> int:
        """Bytes of all weights that are not chosen for: routers, what rules name, what has few bits
        already.
        """
        mine = {slot.name for weight in self.weights for slot in weight.slots}
        rest = [s for s in slots(self.found.model) if s.kind == "storage" and s.name not in mine]
        return sum(self.sizes.of([slot], self.plan) for slot in rest)

    def nbytes(self, weight: Weight, maker: Maker | None) -> int:
        """Bytes of a weight in a format, or as floats."""
        rows = prod(weight.slots[0].shape[:-1])
        return len(weight.slots) * self.sizes.of_rows(maker, weight.shape, rows)

    def samples(self, weight: Weight) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Rows [r, k] of a weight, spread evenly, with the importance of their columns."""
        some = spread(len(weight.slots), EXPERTS)
        for i in some:
            slot = weight.slots[i]
            named, info = self.sizes.below[slot.name]["weight"], self.sizes.infos(slot)["weight"]
            whole = self.sizes.reader.tensor(named, info)
            rows = whole[spread(len(whole), ROWS // len(some))].to(self.found.device)
            importance = self.plan.importance.get(slot.name)
            yield rows, None if importance is None else importance.to(rows.device)


def places(path: str, module: Any) -> Iterator[Slot]:
    """The slots of a module for weights that may be quantized."""
    if isinstance(module, Linear | Embedding | Stack) and not isinstance(module, Router):
        yield from (slot for slot in module.slots(path) if slot.kind == "storage")


def spread(count: int, some: int) -> list[int]:
    """Indices, at most so many, spread evenly over all."""
    some = max(1, min(some, count))
    return [i * count // some for i in range(some)]
