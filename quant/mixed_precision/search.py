"""Mixed-precision search: choose formats within a budget that minimise the model's divergence.

The error of a format in a weight is measured on rows of the weight (`errors`). The sensitivity of
the model to errors in a weight is measured on some weights (`sensitivity`): only that weight is
quantized and the logits are compared with the float model. The divergence is assumed to be
proportional to the weighted squared error, for all formats. A knapsack then selects the formats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, product
from math import ceil

from torch import Tensor

from ostro.checkpoints import (
    FLOAT_FORMAT,
    Maker,
    PlanInterrupted,
    PlannedFormats,
    PlannedWeight,
    PlanRequest,
    format_bytes,
)
from ostro.errors import UsageError
from ostro.quant.mixed_precision.budget import Budget, read_budget
from ostro.quant.mixed_precision.errors import FormatErrors
from ostro.quant.mixed_precision.knapsack import Knapsack, Option, combine, hull
from ostro.quant.mixed_precision.sensitivity import Sensitivities

SPLIT_PENALTY = 1.05
"""Factor on the errors of a unit whose parts have different formats: it needs several matmuls, so
the gain must be worth it."""

UNREPEATED = (
    "; --topology with these formats does not repeat the result, because the search also measured "
    "importances: `ostro quantize --quant {budget}` writes a model with both"
)
"""The end of the line for --explain, if the search measured the importances."""


def plan(request: PlanRequest) -> PlannedFormats:
    """Choose the formats for the budget in `--quant`.

    Raises UsageError for a budget that is too small, with the smallest possible one, and
    PlanInterrupted on Ctrl-C once the errors of all formats are known.
    """
    budget = read_budget(request.text)
    table = CostTable.measure(request)
    planned = table.plan(budget)
    if table.interrupted:
        raise PlanInterrupted(planned)
    return planned


@dataclass(frozen=True)
class CostTable:
    """The cost of each format of each weight, in bytes and in divergence.

    `units` are groups of weights that can be fused. `measured` is the number of weights whose
    sensitivity was measured. It is 0 if the float model could not run: costs are then relative
    errors of weights. `interrupted` is true if Ctrl-C ended the measurement.
    """

    request: PlanRequest
    importance: Mapping[str, Tensor]
    units: Sequence[Sequence[PlannedWeight]]
    knapsack: Knapsack
    measured: int
    interrupted: bool = False

    @classmethod
    def measure(cls, request: PlanRequest) -> CostTable:
        """Measure the costs of the weights of a request."""
        interrupted = False
        with request.probe() as probe:
            importance = request.importance
            if not importance and probe is not None:
                request.report("measuring importances", 0, 0)
                importance = probe.importance()
            errors = FormatErrors(request, importance)
            errors.measure_all()
            sensitivities = Sensitivities(errors)
            try:
                if probe is not None:
                    sensitivities.measure(probe)
            except KeyboardInterrupt:
                interrupted = True
        units = [list(group) for _, group in groupby(request.weights, key=lambda each: each.path)]
        known = sensitivities.all()
        knapsack = Knapsack([options(unit, errors, known) for unit in units])
        return cls(request, importance, units, knapsack, len(sensitivities.measured), interrupted)

    def plan(self, budget: Budget) -> PlannedFormats:
        """The formats with the least divergence within a budget. Raises UsageError like `plan`."""
        capacity = capacity_of(budget, self.request, self.knapsack.min_nbytes)
        # Also start from the sizes of uniform formats: if estimates hardly differ, solutions near a
        # uniform format are safer.
        makers = self.request.makers.values()
        caps = [uniform(maker, self.units, self.request) for maker in makers]
        picked = self.knapsack.solve(capacity, caps)
        formats = {
            weight: name
            for unit, option in zip(self.units, picked, strict=True)
            for weight, name in zip(unit, option.formats, strict=True)
        }
        outcome = describe(budget, self.request, picked, self.measured)
        if self.importance and not self.request.importance:
            outcome += UNREPEATED.format(budget=budget.text)
        return PlannedFormats(formats, outcome, self.importance)


def options(
    unit: Sequence[PlannedWeight],
    errors: FormatErrors,
    sensitivities: Mapping[PlannedWeight, float],
) -> list[Option]:
    """The options of a unit: all parts in one format, or different formats."""
    each = [list(single(weight, errors, sensitivities[weight])) for weight in unit]
    if len(each) == 1:
        return each[0]
    found = []
    for name in dict.fromkeys(option.formats[0] for option in each[0]):
        same = [option for group in each for option in group if option.formats == (name,)]
        found += [combine(same)] if len(same) == len(each) else []
    mixed = reduce(lambda a, b: hull(combine(pair) for pair in product(a, b)), map(hull, each))
    split = [option for option in mixed if len(set(option.formats)) > 1]
    return found + [replace(option, error=SPLIT_PENALTY * option.error) for option in split]


def single(weight: PlannedWeight, errors: FormatErrors, sensitivity: float) -> Iterator[Option]:
    makers = errors.makers[weight.shape]
    measured = errors.measure(weight, makers)
    for maker in (None, *makers):
        name = maker.format.name if maker else FLOAT_FORMAT
        nbytes = errors.request.nbytes(weight, maker)
        yield Option((name,), nbytes, sensitivity * measured.get(name, 0.0))


def uniform(
    maker: Maker, units: Sequence[Sequence[PlannedWeight]], request: PlanRequest
) -> list[int]:
    """The bytes of each unit if the whole model uses one format."""
    return [
        sum(request.nbytes(weight, request.uniform(weight, maker)) for weight in unit)
        for unit in units
    ]


def capacity_of(budget: Budget, request: PlanRequest, min_nbytes: int) -> int:
    """The bytes available for the chosen weights. Raises UsageError if they are too few."""
    count = sum(weight.count for weight in request.weights)
    fixed = 0 if budget.bits else request.fixed
    capacity = int(budget.bits * count / 8) if budget.bits else budget.nbytes - fixed
    if capacity >= min_nbytes:
        return capacity
    needed = (
        f"{ceil(800 * min_nbytes / count) / 100}bpw"
        if budget.bits
        else round_up_size(fixed + min_nbytes)
    )
    raise UsageError(f"--quant {budget.text}: {request.name} needs at least {needed}")


def round_up_size(nbytes: int) -> str:
    """A size rounded up to three digits, in the syntax of `--quant`."""
    unit, scale = next((u for u in (("GB", 10**9), ("MB", 10**6)) if nbytes >= u[1]), ("KB", 10**3))
    return f"{ceil(100 * nbytes / scale) / 100}{unit}"


def describe(budget: Budget, request: PlanRequest, picked: Sequence[Option], measured: int) -> str:
    """The line for --explain."""
    count = sum(weight.count for weight in request.weights)
    nbytes = sum(option.nbytes for option in picked)
    names = Counter(name for option in picked for name in option.formats)
    formats = ", ".join(f"{n} x {name}" for name, n in names.most_common())
    divergence = sum(option.error for option in picked)
    basis = (
        f"estimated divergence {divergence:.2g} nats per token, from the sensitivities of "
        f"{measured} of {len(request.weights)} weights"
        if measured
        else "chosen by the errors of weights only: the float model did not run"
    )
    return (
        f"budget {budget.text}: {format_bytes(nbytes + request.fixed)} of weights, "
        f"{8 * nbytes / count:.2f} bits per chosen weight ({formats}); {basis}"
    )
