"""The errors that formats make in each weight, measured on rows sampled from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ostro.checkpoints import Maker, PlanRequest
from ostro.checkpoints import PlannedWeight as Weight
from ostro.checkpoints import WeightShape as Shape

ROWS, EXPERTS = 32, 4
"""Rows of a weight that are quantized to measure a format, and the experts that they are taken
from: ratios between formats hardly differ from row to row."""

PILOTS = 3
"""Weights of each shape that every format is tried on. A format that is best for none of them is
left out for that shape."""

TINY = 1e-30
"""A lower bound of divisors: a weight may be all zeros."""


class FormatErrors:
    """What formats make of the weights of a request: errors weighed by the importance of columns.

    `makers` are the formats worth trying, by the shape of a weight.
    """

    def __init__(self, request: PlanRequest, importance: Mapping[str, Tensor]) -> None:
        self.request, self.importance = request, importance
        shapes = dict.fromkeys(weight.shape for weight in request.weights)
        self.makers = {shape: self.choose(shape) for shape in shapes}

    def choose(self, shape: Shape) -> Sequence[Maker]:
        """The formats worth trying for a shape: those with kernels, if there are any, that no
        format of fewer bytes beats in all pilots.
        """
        mine = [weight for weight in self.request.weights if weight.shape == shape]
        columns = mine[0].columns
        fits = [m for m in self.request.makers.values() if columns % m.format.block == 0]
        fast = [m for m in fits if self.request.has_kernel(mine[0], m)] or fits
        pilots = mine[:: max(1, len(mine) // PILOTS)][:PILOTS]
        best = {name for pilot in pilots for name in self.unbeaten(pilot, fast)}
        return [maker for maker in fast if maker.format.name in best]

    def unbeaten(self, weight: Weight, among: Sequence[Maker]) -> Iterator[str]:
        """The formats with a smaller error than all that take no more bytes."""
        errors = self.measure(weight, among)
        size = {m.format.name: self.request.nbytes(weight, m) for m in among}
        least = float("inf")
        for name in sorted(errors, key=lambda name: (size[name], errors[name])):
            if errors[name] < least:
                least = errors[name]
                yield name

    @torch.inference_mode()
    def measure(self, weight: Weight, among: Sequence[Maker]) -> dict[str, float]:
        """The sum over rows of a weight of sum_j importance_j (W_j - W'_j)^2, as a share of that of
        importance_j W_j^2, by format.
        """
        found, whole = dict.fromkeys((maker.format.name for maker in among), 0.0), TINY
        for name, rows in self.request.sample(weight, ROWS, EXPERTS):
            importance = self.importance.get(name)
            if importance is not None:
                importance = importance.to(rows.device)
            weighs = torch.ones_like(rows[0]) if importance is None else importance
            whole += float((rows.float().square() @ weighs.float()).sum())
            for maker in among:
                made = self.request.quantized(rows, maker, importance)
                off = (made.float() - rows.float()).square() @ weighs.float()
                found[maker.format.name] += float(off.sum())
        return {name: error / whole for name, error in found.items()}
