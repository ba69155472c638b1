"""Planning: a planner chooses the format of every weight, where `--quant` names no format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ostro.core.errors import UsageError
from ostro.core.load.describe import ModelOutline, outline
from ostro.core.load.quantize import FLOAT, Maker, QuantizationPlan, matches
from ostro.core.load.sizes import Shape, Sizes
from ostro.core.load.weights import slots
from ostro.core.nn import Embedding, Linear, Router
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.linear import Slot
from ostro.core.plugins.manager import PluginManager
from ostro.core.protocols import FormatPlanner
from ostro.core.records import Settings, resolve


@dataclass(frozen=True, eq=False)
class Weight:
    """A float weight that gets one format: a part of a linear, of all its experts if it has any.

    `path` is the module that holds it: weights of one path run as one where their formats agree.
    Weights of equal `shape` take the same bytes per row. `sensitive` marks embeddings, heads, and
    what the architecture's record names.
    """

    path: str
    slots: tuple[Slot, ...]
    shape: Shape
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
    """The model in floats, run on texts that it generated itself."""

    def importance(self) -> dict[str, Tensor]:
        """Mean squares [k] float32 of the inputs of each column, by the names of slots."""

    def divergence(self) -> float:
        """KL divergence of the model now from the model in floats, in nats per token."""

    def replaced(
        self, weight: Weight, maker: Maker, importance: Mapping[str, Tensor]
    ) -> AbstractContextManager[None]:
        """While the context lasts, the model computes with one weight in that format."""


OpenProbe = Callable[
    [ModelOutline, Path, Settings, PluginManager], AbstractContextManager[Probe | None]
]
"""Loads the model in floats for as long as the context lasts; None where it cannot run."""


@dataclass(frozen=True)
class Planned:
    """A planner's answer: the name of a format for each weight, `FLOAT` where it stays as it is.

    `outcome` is a line for --explain; `importance` weighs errors while weights are quantized.
    """

    formats: Mapping[Weight, str]
    outcome: str
    importance: Mapping[str, Tensor] = field(default_factory=dict)


class PlanRequest:
    """The input of a planner: `text` is the value of `--quant`, `name` the checkpoint's file.

    `weights` are the float weights that no rule of `--topology` names, `makers` the installed
    formats by name, `importance` what the user gave, by the names of slots.
    """

    def __init__(
        self,
        found: ModelOutline,
        settings: Settings,
        plugins: PluginManager,
        probe: Callable[[], AbstractContextManager[Probe | None]],
    ) -> None:
        assert found.plan is not None, "nothing is to be quantized"
        self.found, self.plan, self.probe = found, found.plan, probe
        self.sizes = Sizes(found, settings, plugins)
        self.text, self.name = settings.quant or "", found.container.path.name
        self.makers, self.importance = self.plan.known, self.plan.importance
        self.weights = list(self.find())

    def find(self) -> Iterator[Weight]:
        for path, module in self.found.model.named_modules():
            parts: dict[str, list[Slot]] = {}
            for slot in weight_slots(path, module):
                if self.is_open(slot):
                    parts.setdefault(slot.part, []).append(slot)
            for mine in parts.values():
                sensitive = self.plan.is_sensitive(mine[0])
                yield Weight(path, tuple(mine), self.sizes.shape_of(mine[0]), sensitive)

    def is_open(self, slot: Slot) -> bool:
        """Whether the format of a slot is to be chosen."""
        named = any(matches(pattern, slot) for pattern, _ in self.plan.named)
        return self.sizes.is_float(slot) and not named

    @cached_property
    def fixed(self) -> int:
        """Bytes of all other weights: routers, those that rules name, those quantized already."""
        mine = {slot.name for weight in self.weights for slot in weight.slots}
        rest = [s for s in slots(self.found.model) if s.kind == "storage" and s.name not in mine]
        return sum(self.sizes.of([slot], self.plan) for slot in rest)

    def nbytes(self, weight: Weight, maker: Maker | None) -> int:
        """Bytes on the device of a weight in a format, or in floats."""
        rows = prod(weight.slots[0].shape[:-1])
        return len(weight.slots) * self.sizes.of_rows(maker, weight.shape, rows)

    def has_kernel(self, weight: Weight, maker: Maker) -> bool:
        """Whether a kernel multiplies a weight in that format."""
        return self.sizes.sample(maker, weight.shape).has_kernel

    def uniform(self, weight: Weight, maker: Maker) -> Maker | None:
        """The format that a weight gets where `--quant` names this one for the whole model."""
        plan = QuantizationPlan(self.makers, maker, sensitive=self.plan.sensitive)
        return plan.choose(weight.slots[0])

    def sample(self, weight: Weight, rows: int, experts: int) -> Iterator[tuple[str, Tensor]]:
        """Rows [r, k] of a weight, `rows` in all and evenly spread, of at most so many experts,
        with the names of their slots.
        """
        some = spread(len(weight.slots), experts)
        for slot in (weight.slots[i] for i in some):
            named, info = self.sizes.below[slot.name]["weight"], self.sizes.infos(slot)["weight"]
            whole = self.sizes.reader.tensor(named, info)
            yield slot.name, whole[spread(len(whole), rows // len(some))].to(self.found.device)

    def quantized(self, rows: Tensor, maker: Maker, importance: Tensor | None) -> Tensor:
        """Rows [r, k] after quantization to a format, as floats again."""
        return maker.make(rows, self.found.dtype, importance).dequantize()

    def plan_of(self, planned: Planned) -> QuantizationPlan:
        """The plan of a planner's answer."""
        chosen = {
            slot.name: None if name == FLOAT else self.makers[name]
            for weight, name in planned.formats.items()
            for slot in weight.slots
        }
        importance = self.importance or planned.importance
        return replace(
            self.plan, chosen=chosen, outcome=planned.outcome, importance=importance, planner=None
        )


def weight_slots(path: str, module: Any) -> Iterator[Slot]:
    """The slots of a module for weights that may be quantized."""
    if isinstance(module, Linear | Embedding | ExpertLinear) and not isinstance(module, Router):
        yield from (slot for slot in module.slots(path) if slot.kind == "storage")


def spread(count: int, some: int) -> list[int]:
    """At most `some` indices, evenly spread over `count`."""
    some = max(1, min(some, count))
    return [i * count // some for i in range(some)]


def plan_model(
    path: Path, settings: Settings, plugins: PluginManager, open_probe: OpenProbe | None = None
) -> ModelOutline:
    """Describe the model at a local path, with the format of every weight.

    A planner that claims `--quant` runs the model through `open_probe`. Raises an OstroError, as
    `outline` does, and UsageError for a plan that is not possible.
    """
    found = outline(path, settings, plugins)
    planner = None if found.plan is None else found.plan.planner
    if planner is None:
        return found
    if open_probe is None:
        raise UsageError(
            f"--quant {settings.quant}: the planner {planner.name} runs the model to choose "
            "formats, which is not possible here; name a format, such as q4k"
        )
    probe = partial(open_probe, found, path, settings, plugins)
    request = PlanRequest(found, settings, plugins, probe)
    plan: FormatPlanner = resolve(planner.plan)
    return replace(found, plan=request.plan_of(plan(request)))
