"""Spending a budget: every weight gets a format of its own, so that all keep to the budget and what
the model says differs least from what it says in floats.

What a format does to a weight is measured on rows of the weight itself (`cells`). How far errors of
a weight reach is measured once for each: it alone is brought to few bits, and what the model says
is compared with what it said before (`calibration`); over all formats, that divergence grows as the
weighed squared error does. A knapsack does the rest.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, product
from math import ceil
from pathlib import Path
from statistics import median

import torch

from ostro.core.device import format_bytes, free_bytes
from ostro.core.errors import UsageError
from ostro.core.load.budget import Budget
from ostro.core.load.calibration import Calibration, Fixed, calibrated
from ostro.core.load.cells import TINY, Cells, Weight
from ostro.core.load.describe import ModelOutline
from ostro.core.load.knapsack import Knapsack, Option, hull, joined
from ostro.core.load.quantize import FLOAT, Maker, QuantizationPlan
from ostro.core.load.sizes import Sizes
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import Settings

PROBE = 3.5
"""Bits at which it is measured how far errors reach: enough for the rest of the model to show them,
and few enough for the divergence to grow as the squared error does."""

APART = 1.05
"""What parts that run as one must gain by formats of their own, as they then run one by one."""

SENSITIVE = 4.0
"""How much more the errors of embeddings, heads and what an architecture calls sensitive count,
where nothing was measured."""

LEAVES = 0.9
"""The share of free memory that a float model may take to be calibrated on."""

logger = logging.getLogger(__name__)


def spend(
    found: ModelOutline, budget: Budget, path: Path, settings: Settings, plugins: PluginManager
) -> QuantizationPlan:
    """The plan that spends a budget on the checkpoint of an outline, beside what its rules say.

    Raises UsageError for a budget that is too small; it names one that is not.
    """
    return Prices.of(found, path, settings, plugins).spend(budget)


@dataclass(frozen=True)
class Prices:
    """What every format of every weight costs, in bytes and in divergence.

    `units` are the weights that run as one, `measured` says that the model was run in floats.
    """

    cells: Cells
    units: Sequence[Sequence[Weight]]
    knapsack: Knapsack
    measured: bool

    @classmethod
    def of(
        cls, found: ModelOutline, path: Path, settings: Settings, plugins: PluginManager
    ) -> Prices:
        """Measure them."""
        assert found.plan is not None, "nothing is to be quantized"
        logger.info("%s: measuring what formats do to its weights", path.name)
        floats, plan = float_settings(found, settings), found.plan
        with calibrated(path, floats, plugins) if floats else nullcontext() as calibration:
            if calibration is not None and not plan.importance:
                plan = replace(plan, importance=calibration.importance())
            cells = Cells(found, plan, Sizes(found, settings, plugins))
            reaches = measure(cells, calibration)
        units = [list(mine) for _, mine in groupby(cells.weights, key=lambda weight: weight.path)]
        knapsack = Knapsack([options(unit, cells, reaches) for unit in units])
        return cls(cells, units, knapsack, calibration is not None)

    def spend(self, budget: Budget) -> QuantizationPlan:
        """The plan with the least divergence within a budget. Raises UsageError as `spend`."""
        plan = self.cells.plan
        room = room_of(budget, self.cells, self.knapsack.least)
        # Solutions that begin at what one format would take: where estimates hardly differ, those
        # near it are the safer ones.
        caps = [uniform(maker, self.units, self.cells) for maker in plan.known.values()]
        picked = self.knapsack.solve(room, caps)
        chosen = {
            slot.name: plan.known.get(name)
            for unit, option in zip(self.units, picked, strict=True)
            for weight, name in zip(unit, option.formats, strict=True)
            for slot in weight.slots
        }
        outcome = describe(budget, self.cells, picked, self.measured)
        rules = (plan.rules, plan.sensitive, plan.importance)
        return Fixed(plan.known, None, *rules, chosen=chosen, outcome=outcome)


def float_settings(found: ModelOutline, settings: Settings) -> Settings | None:
    """How to load the model in floats, in float32 where there is room; None where there is none for
    it at all, or where it says no tokens.
    """
    if "text" not in found.architecture.tasks:
        return None
    nbytes = sum(replace(found, plan=None).weigh().values())
    room = LEAVES * free_bytes(found.device)
    wide = nbytes * torch.float32.itemsize // found.dtype.itemsize
    if nbytes > room:
        return None
    dtype = torch.float32 if wide <= room else found.dtype
    return replace(
        Settings(device=str(found.device), dtype=str(dtype).removeprefix("torch."), exact=True),
        reference=settings.reference,
        arch=settings.arch,
        allow_config=settings.allow_config,
        dummy_weights=settings.dummy_weights,
    )


def measure(cells: Cells, calibration: Calibration | None) -> dict[Weight, float]:
    """How far errors of each weight reach: divergence in nats per token, per squared error as a
    share of the weight's own square.

    Those that nothing passed while it was measured are taken to be as the others are.
    """
    found = {weight: reach(weight, cells, calibration) for weight in cells.weights}
    known = [value for value in found.values() if value > 0]
    usual = median(known) if known else 1.0
    extra = 1.0 if known else SENSITIVE
    return {
        weight: value or usual * (extra if cells.plan.is_sensitive(weight.slots[0]) else 1.0)
        for weight, value in found.items()
    }


def reach(weight: Weight, cells: Cells, calibration: Calibration | None) -> float:
    makers = cells.makers[weight.shape]
    if calibration is None or not makers:
        return 0.0
    probe = min(makers, key=lambda maker: abs(maker.format.bits - PROBE))
    chosen = {slot.name: probe for slot in weight.slots}
    plan = Fixed(cells.plan.known, None, importance=cells.plan.importance, chosen=chosen)
    with calibration.instead(weight.path, plan):
        divergence = calibration.divergence()
    error = cells.errors(weight, [probe])[probe.format.name]
    return max(divergence, 0.0) / max(error, TINY)


def options(unit: Sequence[Weight], cells: Cells, reaches: Mapping[Weight, float]) -> list[Option]:
    """What the parts of a module may become: all in one format, or each in its own."""
    each = [list(single(weight, cells, reaches[weight])) for weight in unit]
    if len(each) == 1:
        return each[0]
    found = []
    for name in dict.fromkeys(option.formats[0] for option in each[0]):
        same = [option for mine in each for option in mine if option.formats == (name,)]
        found += [joined(same)] if len(same) == len(each) else []
    mixed = reduce(lambda a, b: hull(joined(pair) for pair in product(a, b)), map(hull, each))
    apart = [option for option in mixed if len(set(option.formats)) > 1]
    return found + [replace(option, error=APART * option.error) for option in apart]


def single(weight: Weight, cells: Cells, reach: float) -> Iterator[Option]:
    makers = cells.makers[weight.shape]
    errors = cells.errors(weight, makers)
    for maker in (None, *makers):
        name = maker.format.name if maker else FLOAT
        yield Option((name,), cells.nbytes(weight, maker), reach * errors.get(name, 0.0))


def uniform(maker: Maker, units: Sequence[Sequence[Weight]], cells: Cells) -> list[int]:
    """The bytes of each unit, were this the format of all."""
    plan = QuantizationPlan(cells.plan.known, maker, sensitive=cells.plan.sensitive)
    return [
        sum(cells.nbytes(weight, plan.choose(weight.slots[0])) for weight in unit) for unit in units
    ]


def room_of(budget: Budget, cells: Cells, least: int) -> int:
    """The bytes for weights that are chosen for. Raises UsageError where they are too few."""
    count = sum(weight.count for weight in cells.weights)
    fixed = 0 if budget.bits else cells.fixed
    room = int(budget.bits * count / 8) if budget.bits else budget.nbytes - fixed
    if room >= least:
        return room
    needed = f"{ceil(800 * least / count) / 100}bpw" if budget.bits else rounded_up(fixed + least)
    name = cells.found.container.path.name
    raise UsageError(
        f"--quant {budget.text}: {name} takes {needed} at least; ask for that, or more"
    )


def rounded_up(nbytes: int) -> str:
    """A size that can be asked for, of about three digits."""
    unit, scale = next((u for u in (("GB", 10**9), ("MB", 10**6)) if nbytes >= u[1]), ("KB", 10**3))
    return f"{ceil(100 * nbytes / scale) / 100}{unit}"


def describe(budget: Budget, cells: Cells, picked: Sequence[Option], measured: bool) -> str:
    """What was reached."""
    count = sum(weight.count for weight in cells.weights)
    nbytes = sum(option.nbytes for option in picked)
    names = Counter(name for option in picked for name in option.formats)
    formats = ", ".join(f"{n} x {name}" for name, n in names.most_common())
    off = sum(option.error for option in picked)
    said = (
        f"divergence about {off:.2g} nats per token"
        if measured
        else ("by the errors of weights alone, for the model could not be run in floats")
    )
    return (
        f"budget {budget.text}: {format_bytes(nbytes + cells.fixed)} of weights, "
        f"{8 * nbytes / count:.2f} "
        f"bits for each that was chosen for ({formats}); {said}"
    )
