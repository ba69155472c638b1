"""Mixed-precision search: a format for each weight, within a budget, so that the output of the
model differs least from its output in floats.

The error that a format makes in a weight is measured on rows of the weight itself (`errors`). The
sensitivity of the model to errors in a weight is measured once for each: that weight alone is
quantized, and the logits are compared with those before; over all formats, the divergence grows in
proportion to the weighed squared error. A knapsack then picks the formats.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, product
from math import ceil
from statistics import median

from torch import Tensor

from ostro.checkpoints import FLOAT_FORMAT as FLOAT
from ostro.checkpoints import Maker, PlanRequest, Probe, format_bytes
from ostro.checkpoints import PlannedFormats as Planned
from ostro.checkpoints import PlannedWeight as Weight
from ostro.errors import UsageError
from ostro.quant.mixed_precision.budget import Budget, read_budget
from ostro.quant.mixed_precision.errors import TINY, FormatErrors
from ostro.quant.mixed_precision.knapsack import Knapsack, Option, hull, joined

PROBE = 3.5
"""Bits at which sensitivities are measured: few enough for an error above the noise of the rest,
and enough for the divergence to grow in proportion to the squared error."""

APART = 1.05
"""The factor on the errors of parts with formats of their own: they then run one by one, for which
they must gain that much."""

SENSITIVE = 4.0
"""The sensitivity of embeddings, heads and what an architecture calls sensitive, relative to the
others, where none was measured."""

logger = logging.getLogger(__name__)


def plan(request: PlanRequest) -> Planned:
    """The formats within the budget that `--quant` names.

    Raises UsageError for a budget that is too small; the message names one that is not.
    """
    budget = read_budget(request.text)
    return CostTable.of(request).plan(budget)


@dataclass(frozen=True)
class CostTable:
    """The cost of each format of each weight, in bytes and in divergence.

    `units` are the weights that run as one. `measured` is False where the model could not run in
    floats: costs are then the errors of weights alone.
    """

    request: PlanRequest
    importance: Mapping[str, Tensor]
    units: Sequence[Sequence[Weight]]
    knapsack: Knapsack
    measured: bool

    @classmethod
    def of(cls, request: PlanRequest) -> CostTable:
        """Measure the costs of the weights of a request."""
        logger.info("%s: measuring the errors of formats", request.name)
        with request.probe() as probe:
            importance = request.importance
            if not importance and probe is not None:
                importance = probe.importance()
            errors = FormatErrors(request, importance)
            sensitivities = measure(errors, probe)
        units = [list(mine) for _, mine in groupby(request.weights, key=lambda each: each.path)]
        knapsack = Knapsack([options(unit, errors, sensitivities) for unit in units])
        return cls(request, importance, units, knapsack, probe is not None)

    def plan(self, budget: Budget) -> Planned:
        """The formats with the least divergence within a budget. Raises UsageError as `plan`."""
        room = room_of(budget, self.request, self.knapsack.least)
        # Solutions that begin at what one format would take: where estimates hardly differ, those
        # near it are the safer ones.
        makers = self.request.makers.values()
        caps = [uniform(maker, self.units, self.request) for maker in makers]
        picked = self.knapsack.solve(room, caps)
        formats = {
            weight: name
            for unit, option in zip(self.units, picked, strict=True)
            for weight, name in zip(unit, option.formats, strict=True)
        }
        outcome = describe(budget, self.request, picked, self.measured)
        return Planned(formats, outcome, self.importance)


def measure(errors: FormatErrors, probe: Probe | None) -> dict[Weight, float]:
    """The sensitivity to each weight: divergence in nats per token, per squared error as a share of
    the weight's own square.

    Weights that no token passed while it was measured get the median of the others.
    """
    weights = errors.request.weights
    found = {weight: sensitivity(weight, errors, probe) for weight in weights}
    known = [value for value in found.values() if value > 0]
    usual = median(known) if known else 1.0
    extra = 1.0 if known else SENSITIVE
    return {
        weight: value or usual * (extra if weight.sensitive else 1.0)
        for weight, value in found.items()
    }


def sensitivity(weight: Weight, errors: FormatErrors, probe: Probe | None) -> float:
    makers = errors.makers[weight.shape]
    if probe is None or not makers:
        return 0.0
    maker = min(makers, key=lambda maker: abs(maker.format.bits - PROBE))
    with probe.replaced(weight, maker, errors.importance):
        divergence = probe.divergence()
    error = errors.measure(weight, [maker])[maker.format.name]
    return max(divergence, 0.0) / max(error, TINY)


def options(
    unit: Sequence[Weight], errors: FormatErrors, sensitivities: Mapping[Weight, float]
) -> list[Option]:
    """The options of a unit's parts: all in one format, or each in its own."""
    each = [list(single(weight, errors, sensitivities[weight])) for weight in unit]
    if len(each) == 1:
        return each[0]
    found = []
    for name in dict.fromkeys(option.formats[0] for option in each[0]):
        same = [option for mine in each for option in mine if option.formats == (name,)]
        found += [joined(same)] if len(same) == len(each) else []
    mixed = reduce(lambda a, b: hull(joined(pair) for pair in product(a, b)), map(hull, each))
    apart = [option for option in mixed if len(set(option.formats)) > 1]
    return found + [replace(option, error=APART * option.error) for option in apart]


def single(weight: Weight, errors: FormatErrors, sensitivity: float) -> Iterator[Option]:
    makers = errors.makers[weight.shape]
    measured = errors.measure(weight, makers)
    for maker in (None, *makers):
        name = maker.format.name if maker else FLOAT
        nbytes = errors.request.nbytes(weight, maker)
        yield Option((name,), nbytes, sensitivity * measured.get(name, 0.0))


def uniform(maker: Maker, units: Sequence[Sequence[Weight]], request: PlanRequest) -> list[int]:
    """The bytes of each unit where `--quant` names one format for the whole model."""
    return [
        sum(request.nbytes(weight, request.uniform(weight, maker)) for weight in unit)
        for unit in units
    ]


def room_of(budget: Budget, request: PlanRequest, least: int) -> int:
    """The bytes for the weights that are chosen for. Raises UsageError where they are too few."""
    count = sum(weight.count for weight in request.weights)
    fixed = 0 if budget.bits else request.fixed
    room = int(budget.bits * count / 8) if budget.bits else budget.nbytes - fixed
    if room >= least:
        return room
    needed = f"{ceil(800 * least / count) / 100}bpw" if budget.bits else rounded_up(fixed + least)
    raise UsageError(f"--quant {budget.text}: {request.name} needs at least {needed}")


def rounded_up(nbytes: int) -> str:
    """A size of about three digits, as `--quant` takes it."""
    unit, scale = next((u for u in (("GB", 10**9), ("MB", 10**6)) if nbytes >= u[1]), ("KB", 10**3))
    return f"{ceil(100 * nbytes / scale) / 100}{unit}"


def describe(budget: Budget, request: PlanRequest, picked: Sequence[Option], measured: bool) -> str:
    """A line for --explain."""
    count = sum(weight.count for weight in request.weights)
    nbytes = sum(option.nbytes for option in picked)
    names = Counter(name for option in picked for name in option.formats)
    formats = ", ".join(f"{n} x {name}" for name, n in names.most_common())
    divergence = sum(option.error for option in picked)
    basis = (
        f"estimated divergence {divergence:.2g} nats per token"
        if measured
        else "chosen by the errors of weights alone: the model does not fit in memory in floats"
    )
    return (
        f"budget {budget.text}: {format_bytes(nbytes + request.fixed)} of weights, "
        f"{8 * nbytes / count:.2f} bits per chosen weight ({formats}); {basis}"
    )
