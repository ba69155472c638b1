"""Sensitivity of a model to the errors of its weights, measured on a few weights of each kind.

A measurement runs the model with one quantized weight. Sensitivities change little from layer to
layer, except at both ends. They are interpolated between measured layers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from math import exp, log
from statistics import median

from ostro.checkpoints import PlannedWeight, Probe
from ostro.quant.mixed_precision.errors import TINY, FormatErrors

DEPTHS = 5
"""Weights of each kind whose sensitivity is measured."""

PROBE_BITS = 3.5
"""Bits at which sensitivities are measured: few enough for an error above the numerical noise, and
enough for the divergence to be proportional to the squared error."""

SENSITIVE = 4.0
"""The relative sensitivity of embeddings, heads and weights that an architecture calls sensitive,
if none was measured."""


class Sensitivities:
    """Sensitivities of weights: divergence in nats per token, per relative squared error.

    measured: the sensitivities of weights that were measured.
    """

    def __init__(self, errors: FormatErrors) -> None:
        self.errors = errors
        self.kinds = kinds(errors.request.weights)
        self.measured: dict[PlannedWeight, float] = {}

    def measure(self, probe: Probe) -> None:
        """Measure some weights of each kind, the ends and the middle of the model first."""
        chosen = list(pilots(self.kinds))
        for done, weight in enumerate(chosen):
            self.errors.request.report("measuring sensitivities", done, len(chosen))
            value = self.sensitivity(weight, probe)
            if value > 0:  # else noise, or experts that the texts do not use
                self.measured[weight] = value

    def sensitivity(self, weight: PlannedWeight, probe: Probe) -> float:
        """Quantize one weight and measure the divergence per relative squared error."""
        makers = self.errors.makers[weight.shape]
        if not makers:
            return 0.0
        maker = min(makers, key=lambda maker: abs(maker.format.bits - PROBE_BITS))
        with probe.replaced(weight, maker, self.errors.importance):
            divergence = probe.divergence()
        error = self.errors.measure(weight, [maker])[maker.format.name]
        return divergence / max(error, TINY)

    def all(self) -> Mapping[PlannedWeight, float]:
        """The sensitivity of each weight, interpolated within its kind.

        Weights of kinds without a measurement get the median of the others.
        """
        found: dict[PlannedWeight, float] = {}
        for weights in self.kinds:
            found |= interpolated(weights, self.measured)
        default = median(found.values()) if found else 1.0
        extra = 1.0 if found else SENSITIVE
        return {
            weight: found.get(weight, default * (extra if weight.sensitive else 1.0))
            for weight in self.errors.request.weights
        }


def kinds(weights: Sequence[PlannedWeight]) -> list[list[PlannedWeight]]:
    """Weights of the same part and shape, whose paths differ by numbers, in the model's order."""
    found = defaultdict(list)
    for weight in weights:
        found[re.sub(r"\d+", "*", weight.path), weight.slots[0].part, weight.shape].append(weight)
    return list(found.values())


def pilots(kinds: Sequence[Sequence[PlannedWeight]]) -> Iterator[PlannedWeight]:
    """Up to `DEPTHS` weights of each kind, in turns over the kinds, so that few cover all kinds."""
    orders = [[kind[i] for i in coarse_to_fine(len(kind))] for kind in kinds]
    for turn in zip_longest(*orders):
        yield from (weight for weight in turn if weight is not None)


def coarse_to_fine(count: int) -> list[int]:
    """Up to `DEPTHS` numbers below `count`: two at each end, then the middle of the widest gap."""
    found = list(dict.fromkeys(i for i in (0, count - 1, 1, count - 2) if 0 <= i < count))
    while len(found) < min(count, DEPTHS):
        low, high = max(pairwise(sorted(found)), key=lambda gap: gap[1] - gap[0])
        found.append((low + high) // 2)
    return found


def interpolated(
    weights: Sequence[PlannedWeight], measured: Mapping[PlannedWeight, float]
) -> dict[PlannedWeight, float]:
    """The sensitivity of each weight of a kind: geometric between measured ones, constant beyond.

    Empty if none was measured.
    """
    known = [i for i, weight in enumerate(weights) if weight in measured]
    if not known:
        return {}
    found = {}
    for i, weight in enumerate(weights):
        at = bisect_left(known, i)
        low, high = known[max(at - 1, 0)], known[min(at, len(known) - 1)]
        share = (i - low) / (high - low) if low < high else 0.0
        a, b = (log(measured[weights[j]]) for j in (low, high))
        found[weight] = exp(a + share * (b - a))
    return found
