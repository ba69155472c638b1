"""The interface of planners, which choose the format of every weight (`--quant 4.5bpw`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, NoReturn, Protocol

from torch import Tensor

from ostro.core.errors import UsageError
from ostro.core.load.describe import ModelOutline, outline
from ostro.core.load.quantize import FLOAT_FORMAT, Maker, QuantizationPlan, matches
from ostro.core.load.sizes import Sizes, WeightShape
from ostro.core.load.weights import weight_slots
from ostro.core.nn import Embedding, Linear, Router
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.linear import WeightSlot
from ostro.core.plugins.manager import PluginManager
from ostro.core.records import resolve
from ostro.core.settings import ProgressCallback, Settings


@dataclass(frozen=True, eq=False)
class PlannedWeight:
    """A float weight that gets one format: a part of a linear, including all its experts.

    `path` is its module: weights of one path are fused if their formats are equal. Weights of equal
    `shape` take the same bytes per row. `sensitive` marks embeddings, heads, and weights that the
    architecture's record lists.
    """

    path: str
    slots: tuple[WeightSlot, ...]
    shape: WeightShape
    sensitive: bool

    @property
    def rows(self) -> int:
        return sum(prod(slot.shape[:-1]) for slot in self.slots)

    @property
    def columns(self) -> int:
        return self.shape[0]

    @property
    def count(self) -> int:
        return self.rows * self.columns


class Probe(Protocol):
    """The float model, run on calibration texts that it generated itself."""

    def importance(self) -> dict[str, Tensor]:
        """Mean squares [k] float32 of the inputs of each column, by slot name."""

    def divergence(self) -> float:
        """KL divergence of the model in its current state from the float model, nats per token."""

    def replaced(
        self, weight: PlannedWeight, maker: Maker, importance: Mapping[str, Tensor]
    ) -> AbstractContextManager[None]:
        """A context in which the model uses one weight in that format."""


OpenProbe = Callable[
    [ModelOutline, Path, Settings, PluginManager, ProgressCallback],
    AbstractContextManager[Probe | None],
]
"""Opens a context with the loaded float model; None if it cannot run here."""


@dataclass(frozen=True)
class PlannedFormats:
    """The result of a planner: the format name of each weight, `FLOAT` for not quantized.

    `outcome` is a line for --explain. `importance` weights the errors during quantization.
    """

    formats: Mapping[PlannedWeight, str]
    outcome: str
    importance: Mapping[str, Tensor] = field(default_factory=dict)


class FormatPlanner(Protocol):
    """`Planner.plan`: chooses the format of every weight."""

    def __call__(self, request: PlanRequest, /) -> PlannedFormats: ...


class PlanInterrupted(KeyboardInterrupt):
    """Ctrl-C during a search. `planned` is based on the measurements made before it."""

    def __init__(self, planned: PlannedFormats) -> None:
        super().__init__(planned.outcome)
        self.planned = planned


class PlanRequest:
    """The input of a planner.

    text        the value of `--quant`
    name        the file name of the checkpoint
    weights     the float weights that match no rule of `--topology`
    makers      the installed formats, by name
    importance  the user's importance matrix, by slot name
    report      receives the progress of the planner: (stage, steps done, steps in total)
    """

    def __init__(
        self,
        found: ModelOutline,
        settings: Settings,
        plugins: PluginManager,
        probe: Callable[[], AbstractContextManager[Probe | None]],
        report: ProgressCallback,
    ) -> None:
        assert found.plan is not None, "nothing is to be quantized"
        self.found, self.plan, self.probe, self.report = found, found.plan, probe, report
        self.sizes = Sizes(found, settings, plugins)
        self.text, self.name = settings.quant or "", found.container.path.name
        self.makers, self.importance = self.plan.known, self.plan.importance
        self.weights = list(self.find())

    def find(self) -> Iterator[PlannedWeight]:
        for path, module in self.found.model.named_modules():
            parts: dict[str, list[WeightSlot]] = {}
            for slot in quantizable_slots(path, module):
                # A rule of --topology sets the format of the weights that it names.
                named = any(matches(pattern, slot) for pattern, _ in self.plan.named)
                if self.sizes.is_float(slot) and not named:
                    parts.setdefault(slot.part, []).append(slot)
            for group in parts.values():
                sensitive = self.plan.is_sensitive(group[0])
                yield PlannedWeight(path, tuple(group), self.sizes.shape_of(group[0]), sensitive)

    @cached_property
    def fixed(self) -> int:
        """Bytes of all other weights: routers, weights of rules, weights quantized already."""
        group = {slot.name for weight in self.weights for slot in weight.slots}
        rest = [
            s for s in weight_slots(self.found.model) if s.kind == "storage" and s.name not in group
        ]
        return sum(self.sizes.nbytes([slot], self.plan) for slot in rest)

    def nbytes(self, weight: PlannedWeight, maker: Maker | None) -> int:
        """Bytes on the device of a weight in a format, or in floats."""
        rows = prod(weight.slots[0].shape[:-1])
        return len(weight.slots) * self.sizes.rows_nbytes(maker, weight.shape, rows)

    def has_kernel(self, weight: PlannedWeight, maker: Maker) -> bool:
        """Whether a kernel multiplies a weight in that format."""
        return self.sizes.sample(maker, weight.shape).has_kernel

    def uniform(self, weight: PlannedWeight, maker: Maker) -> Maker | None:
        """The format that a weight gets if `--quant` names `maker` for the whole model."""
        plan = QuantizationPlan(self.makers, maker, sensitive=self.plan.sensitive)
        return plan.choose(weight.slots[0])

    def sample(
        self, weight: PlannedWeight, rows: int, experts: int
    ) -> Iterator[tuple[str, Tensor]]:
        """About `rows` evenly spread rows [r, k] of a weight, of at most `experts` experts.

        Yields them per slot, with the name of the slot.
        """
        indices = spread(len(weight.slots), experts)
        for slot in (weight.slots[i] for i in indices):
            named, info = self.sizes.by_slot[slot.name]["weight"], self.sizes.infos(slot)["weight"]
            tensor = self.sizes.reader.tensor(named, info)
            sampled = spread(len(tensor), rows // len(indices))
            yield slot.name, tensor[sampled].to(self.found.device)

    def quantized(self, rows: Tensor, maker: Maker, importance: Tensor | None) -> Tensor:
        """Rows [r, k] quantized to a format and dequantized."""
        return maker.make(rows, self.found.dtype, importance).dequantize()

    def plan_of(self, planned: PlannedFormats) -> QuantizationPlan:
        """The quantization plan with the formats that a planner chose."""
        chosen = {
            slot.name: None if name == FLOAT_FORMAT else self.makers[name]
            for weight, name in planned.formats.items()
            for slot in weight.slots
        }
        importance = self.importance or planned.importance
        return replace(
            self.plan, chosen=chosen, outcome=planned.outcome, importance=importance, planner=None
        )


def quantizable_slots(path: str, module: Any) -> Iterator[WeightSlot]:
    """The slots of a module for weights that may be quantized."""
    if isinstance(module, Linear | Embedding | ExpertLinear) and not isinstance(module, Router):
        yield from (slot for slot in module.slots(path) if slot.kind == "storage")


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` indices, evenly spread over `count`."""
    limit = max(1, min(limit, count))
    return [i * count // limit for i in range(limit)]


def plan_model(
    path: Path,
    settings: Settings,
    plugins: PluginManager,
    open_probe: OpenProbe | None = None,
    progress: ProgressCallback | None = None,
) -> ModelOutline:
    """Describe the model at a local path, with the format of every weight.

    A planner that claims `--quant` runs the model through `open_probe`. Raises an OstroError, as
    `outline` does, UsageError for a plan that is not possible, and PlanInterrupted.
    """
    found = outline(path, settings, plugins)
    return choose_formats(found, path, settings, plugins, open_probe, progress)


def choose_formats(
    found: ModelOutline,
    path: Path,
    settings: Settings,
    plugins: PluginManager,
    open_probe: OpenProbe | None = None,
    progress: ProgressCallback | None = None,
) -> ModelOutline:
    """An outline with the format of every weight; as `plan_model`, for a described model."""
    planner = None if found.plan is None else found.plan.planner
    if planner is None:
        return found
    report: ProgressCallback = progress or (lambda *step: None)
    probe = partial(open_probe or refuse_probe, found, path, settings, plugins, report)
    request = PlanRequest(found, settings, plugins, probe, report)
    plan: FormatPlanner = resolve(planner.plan)
    return replace(found, plan=request.plan_of(plan(request)))


def refuse_probe(found: ModelOutline, path: Path, settings: Settings, *rest: Any) -> NoReturn:
    """Raise UsageError: the planner must run the model, which is not possible here."""
    raise UsageError(
        f"--quant {settings.quant}: the planner must run {path.name} to choose formats, which is "
        "not possible here; use a format such as q4k"
    )
