"""Quantization errors of formats, measured on rows sampled from each weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from ostro.checkpoints import Maker, PlannedWeight, PlanRequest, WeightShape

ROWS, EXPERTS = 32, 4
"""Rows sampled per weight, and the experts they are sampled from. Few are enough: the ratios
between formats hardly differ from row to row."""

PILOTS = 3
"""Weights of each shape on which all formats are measured. A format that is best for none of them
is not considered for that shape."""

TINY = 1e-30
"""A lower bound of divisors: a weight may be all zeros."""


class FormatErrors:
    """Errors of formats on the weights of a request, weighted by the importance of columns.

    `makers` are the candidate formats, by the shape of a weight.
    """

    def __init__(self, request: PlanRequest, importance: Mapping[str, Tensor]) -> None:
        self.request, self.importance = request, importance
        self.measured: dict[tuple[PlannedWeight, str], float] = {}
        self.makers: dict[WeightShape, Sequence[Maker]] = {}
        shapes = dict.fromkeys(weight.shape for weight in request.weights)
        for done, shape in enumerate(shapes):
            request.report("choosing candidate formats", done, len(shapes))
            self.makers[shape] = self.choose(shape)

    def choose(self, shape: WeightShape) -> Sequence[Maker]:
        """The candidate formats of a shape: formats with kernels, if there are any, that are
        Pareto-optimal (bytes, error) for at least one pilot.
        """
        weights = [weight for weight in self.request.weights if weight.shape == shape]
        columns = weights[0].columns
        fits = [m for m in self.request.makers.values() if columns % m.format.block == 0]
        fast = [m for m in fits if self.request.has_kernel(weights[0], m)] or fits
        pilots = weights[:: max(1, len(weights) // PILOTS)][:PILOTS]
        best = {name for pilot in pilots for name in self.unbeaten(pilot, fast)}
        return [maker for maker in fast if maker.format.name in best]

    def unbeaten(self, weight: PlannedWeight, makers: Sequence[Maker]) -> Iterator[str]:
        """The Pareto-optimal formats: each has a smaller error than all formats of fewer bytes."""
        errors = self.measure(weight, makers)
        size = {m.format.name: self.request.nbytes(weight, m) for m in makers}
        least = float("inf")
        for name in sorted(errors, key=lambda name: (size[name], errors[name])):
            if errors[name] < least:
                least = errors[name]
                yield name

    def measure_all(self) -> None:
        """Measure the candidate formats of every weight, so that later calls only look them up."""
        weights = self.request.weights
        for done, weight in enumerate(weights):
            self.request.report("measuring the errors of formats", done, len(weights))
            self.measure(weight, self.makers[weight.shape])

    def measure(self, weight: PlannedWeight, makers: Sequence[Maker]) -> dict[str, float]:
        """The relative error by format: the sum of importance_j (W_j - W'_j)^2 over sampled rows,
        divided by the sum of importance_j W_j^2. Each is measured once.
        """
        new = [m for m in makers if (weight, m.format.name) not in self.measured]
        if new:
            found = self.sampled_errors(weight, new)
            self.measured |= {(weight, name): error for name, error in found.items()}
        return {m.format.name: self.measured[weight, m.format.name] for m in makers}

    @torch.inference_mode()
    def sampled_errors(self, weight: PlannedWeight, makers: Sequence[Maker]) -> dict[str, float]:
        """The errors of `measure`, not cached."""
        found, total = dict.fromkeys((maker.format.name for maker in makers), 0.0), TINY
        for name, rows in self.request.sample(weight, ROWS, EXPERTS):
            importance = self.importance.get(name)
            if importance is not None:
                importance = importance.to(rows.device)
            column_weights = torch.ones_like(rows[0]) if importance is None else importance
            total += float((rows.float().square() @ column_weights.float()).sum())
            for maker in makers:
                quantized = self.request.quantized(rows, maker, importance)
                squared = (quantized.float() - rows.float()).square() @ column_weights.float()
                found[maker.format.name] += float(squared.sum())
        return {name: error / total for name, error in found.items()}
