"""Where the parts of a model lie: named by patterns, or filled in from an estimate of memory.

A model is placed in *units*: the members of its lists of layers (`Model.layers`) whole, the experts
inside them also alone, and whatever else holds weights. What a model computes between its units,
and what belongs to none of them (norms, tables), stays on the device that the model is loaded on,
its *home*. No architecture knows of it: `border` moves activations where they pass from one unit to
another, `rest` brings weights that rest in host memory, `segment` captures runs of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch.nn import Module

from ostro.core.device import format_bytes, free_bytes, parse_size
from ostro.core.errors import UsageError
from ostro.core.nn import CachedLayer, Embedding, Experts, Head, Linear, Model
from ostro.core.nn.experts import ExpertLinear
from ostro.core.ops import Target
from ostro.core.placement.offload import HOST, on_device
from ostro.core.placement.patterns import PatternRule, matches, read_rules
from ostro.core.placement.segments import LEAST, LayerSegment, LayerSegments
from ostro.core.placement.transfers import DeviceTransfers

REST, AUTO = "rest", "auto"

LEFT = 0.25
"""The share of free memory that `auto` leaves for the cache and activations if nothing is said."""

COUNTS = ("", "one layer", "two layers", "three layers")

Devices = Callable[[str], torch.device]
"""From a name to a device that is there; raises an OstroError for others."""


@dataclass(eq=False)
class Unit:
    """What is placed as one; `layer` is the list that it is of, if any, `onward` the device where
    what it computes is used.
    """

    path: str
    module: Module
    device: torch.device
    onward: torch.device
    layer: str = ""
    rests: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is a layer, and not a part of one."""
        return bool(self.layer) and self.path.rpartition(".")[0] == self.layer


class Placement:
    """The units of a model, and where each of them lies."""

    def __init__(self, model: Model, home: torch.device) -> None:
        self.model, self.home = model, exact(home)
        self.units = {unit.path: unit for unit in find_units(model, self.home)}
        self.owner: dict[Module, Unit] = {}
        self.transfers: DeviceTransfers | None = None
        self.own()

    def own(self) -> None:
        """Note whose each module is; experts that are a unit are not their layer's."""
        self.owner = {m: unit for unit in self.units.values() for m in unit.module.modules()}

    def device(self, module: Module) -> torch.device:
        """Where a module computes."""
        unit = self.owner.get(module)
        return self.home if unit is None else unit.device

    def rests(self, module: Module) -> bool:
        """Whether a module's weights rest in host memory while it does not compute."""
        unit = self.owner.get(module)
        return unit is not None and unit.rests

    @property
    def parted(self) -> bool:
        """Whether anything happens at the transfers of its units."""
        return any(unit.rests or unit.device != self.home for unit in self.units.values())

    def on_device(self, module: Module) -> AbstractContextManager[None]:
        """Within the context, an offloaded module's weights are on the device."""
        return on_device(module, self.home) if self.rests(module) else nullcontext()

    def apply(self, rules: list[PatternRule], devices: Devices) -> None:
        """Place units as patterns say; of several that match a unit the last holds."""
        for rule in rules:
            rests = rule.where == REST
            if rests and self.home == HOST:
                raise UsageError(
                    f"--placement: {rule.pattern} cannot rest in host memory and visit the device: "
                    "the model runs on the CPU; leave it out, or choose another --device"
                )
            device = self.home if rests else exact(devices(rule.where))
            for path in matches(rule.pattern, self.model, self.units):
                self.units[path].device, self.units[path].rests = device, rests
        self.check_tied()

    def rest(self) -> None:
        """Let all layers rest. Raises UsageError where there are none, or they have no need to."""
        if self.home == HOST:
            raise UsageError(
                "--offload: layers cannot rest in host memory and visit the device: the model runs "
                "on the CPU; leave it out, or choose another --device"
            )
        layers = [unit for unit in self.units.values() if unit.layer]
        if not layers:
            raise UsageError("--offload: this model names no layers that could visit the device")
        for unit in layers:
            unit.rests = True

    def fit(self, sizes: Mapping[Module, int], room: int) -> None:
        """Keep at home what fits `room` bytes: first what every step passes, then layer by layer
        up to the first that does not; the rest goes to the CPU.
        """
        nbytes = dict.fromkeys(self.units.values(), 0)
        for module, unit in self.owner.items():
            nbytes[unit] += sizes.get(module, 0)
        used, full = 0, False
        for unit in sorted(nbytes, key=lambda unit: bool(unit.layer)):
            out = used + nbytes[unit] > room or (full and bool(unit.layer))
            full = full or (out and bool(unit.layer))
            used += 0 if out else nbytes[unit]
            unit.device = HOST if out else self.home
        for head, table in self.tied():
            head.device = table.device

    def tied(self) -> Iterator[tuple[Unit, Unit]]:
        """The units of heads and of the embeddings whose storage they use."""
        for module, unit in self.owner.items():
            for table in module.tied if isinstance(module, Head) else ():
                if table in self.owner:
                    yield unit, self.owner[table]

    def check_tied(self) -> None:
        for head, table in self.tied():
            if head.device != table.device or head.rests or table.rests:
                raise UsageError(
                    f"--placement: {head.path} and {table.path} are one weight; name one device "
                    "for both"
                )

    def part(self) -> None:
        """Give every device its own of what units share (tables of angles). Before the weights."""
        devices = {unit.module: unit.device for unit in self.units.values()}
        first: dict[Module, torch.device] = {}
        copies: dict[tuple[Module, torch.device], Module] = {}

        def claim(module: Module, device: torch.device) -> None:
            for name, child in module.named_children():
                here = devices.get(child, device)
                if first.setdefault(child, here) == here:
                    claim(child, here)
                    continue
                if (child, here) not in copies:
                    copies[child, here] = deepcopy(child)
                setattr(module, name, copies[child, here])

        claim(self.model, self.home)
        self.own()

    def move(self) -> None:
        """Bring parameters and buffers to their devices; storages have been read there."""
        self.model.to(self.home)
        for unit in self.units.values():
            unit.module.to(unit.device)

    def mark(self, target: Target) -> list[str]:
        """Set the transfers, once all is settled; say what lies where."""
        if not self.parted:
            return []
        for unit, following in pairwise(self.decoding()):
            unit.onward = following.device if unit.layer == following.layer else self.home
        self.transfers = DeviceTransfers(self.home, list(self.units.values()), self.owner, target)
        self.transfers.mark()
        return self.describe()

    def decoding(self) -> list[Unit]:
        """The layers of decoders, of which only the next layer uses what it makes.

        What the layers of towers and encoders make is often collected: it goes home from each.
        """
        lists = {unit.layer for unit in self.units.values() if remembers(unit)}
        return [unit for unit in self.units.values() if unit.layer in lists and unit.whole]

    def segments(self, replay: bool) -> LayerSegments | None:
        """The segments of its layers, where anything happens at transfers; once those are set.

        `replay` lets the eager call stand in for a graph on devices that capture nothing.
        """
        if self.transfers is None:
            return None
        found = []
        for (_, device, why), run in groupby(
            self.decoding(), lambda unit: (unit.layer, unit.device, self.obstacle(unit, replay))
        ):
            units = list(run)
            short = COUNTS[len(units)] if len(units) < LEAST else ""
            found.append(LayerSegment(runs(units)[0], units, device, why or short))
        return LayerSegments(self.transfers, found)

    def obstacle(self, layer: Unit, replay: bool) -> str:
        """Why steps through a layer are not captured, if they are not."""
        within = [unit for unit in self.units.values() if unit.path.startswith(f"{layer.path}.")]
        if layer.rests:
            return "its weights rest in host memory"
        if any(unit.rests for unit in within):
            return "its experts rest in host memory"
        if any(unit.device != layer.device for unit in within):
            return "its experts lie elsewhere"
        return "" if replay or layer.device.type == "cuda" else "the CPU captures nothing"

    def describe(self) -> list[str]:
        """What lies where, a line for each place."""
        places: dict[str, list[Unit]] = {}
        for unit in self.units.values():
            place = f"in host memory, visiting {unit.device}" if unit.rests else f"{unit.device}"
            places.setdefault(place, []).append(unit)
        lines = []
        for place, units in places.items():
            here = {m for m, unit in self.owner.items() if unit in units}
            size = sum(m.nbytes for m in here if isinstance(m, Linear | Embedding | ExpertLinear))
            lines.append(f"placement: {place}: {', '.join(runs(units))} ({format_bytes(size)})")
        return lines


def choose_placement(
    asked: str | None,
    model: Model,
    home: torch.device,
    devices: Devices,
    sizes: Callable[[], Mapping[Module, int]],
    memory: str | None = None,
) -> Placement:
    """Where the parts of a model are to lie, before its weights are read.

    `asked` is None, "rest", "auto", "auto:SIZE", rules ("PATTERN = DEVICE, ..."), or a TOML file of
    rules; `sizes` weighs the checkpoint; `memory` is the room for the cache that was asked for.
    Raises UsageError where a rule is malformed, matches nothing or splits a unit.
    """
    placement = Placement(model, home)
    if asked == REST:
        placement.rest()
    elif asked is not None and asked.partition(":")[0] == AUTO:
        placement.fit(sizes(), room(asked.partition(":")[2], home, memory))
    elif asked is not None:
        placement.apply(read_rules(asked), devices)
    placement.part()
    return placement


def room(size: str, home: torch.device, memory: str | None) -> int:
    """Bytes for weights at home: what was asked for, else what is free but for the cache's share.

    Raises UsageError for what is no size.
    """
    if size:
        return int(parse_size(size))
    free = free_bytes(home)
    cache = parse_size(memory) if memory else LEFT
    return int(free * (1 - cache) if cache <= 1 else free - cache)


def find_units(model: Model, home: torch.device) -> Iterator[Unit]:
    """The units of a model, in module order, experts behind their layer."""

    def walk(path: str, module: Module) -> Iterator[Unit]:
        if path.rpartition(".")[0] in model.layers:
            yield Unit(path, module, home, home, path.rpartition(".")[0])
            for name, inner in module.named_modules():
                if isinstance(inner, Experts):
                    yield Unit(f"{path}.{name}", inner, home, home, path.rpartition(".")[0])
        elif any(f"{name}.".startswith(f"{path}.") for name in model.layers):
            for name, child in module.named_children():
                yield from walk(f"{path}.{name}", child)
        elif any(isinstance(m, Linear | Embedding | ExpertLinear) for m in module.modules()):
            yield Unit(path, module, home, home)

    for name, child in model.named_children():
        yield from walk(name, child)


def remembers(unit: Unit) -> bool:
    return any(isinstance(module, CachedLayer) for module in unit.module.modules())


def exact(device: torch.device) -> torch.device:
    """The device as tensors name it: "cuda" is the current one."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def runs(units: list[Unit]) -> list[str]:
    """The paths of units, layers of one list together: model.layers.[0-5,9]."""
    found: dict[tuple[str, str], list[int]] = {}
    for unit in units:
        index, _, tail = unit.path.removeprefix(f"{unit.layer}.").partition(".")
        key = (f"{unit.layer}.", tail and f".{tail}") if unit.layer else (unit.path, "")
        found.setdefault(key, []).extend([int(index)] if unit.layer else [])
    return [f"{head}{spans(at)}{tail}" for (head, tail), at in found.items()]


def spans(numbers: list[int]) -> str:
    """Ascending numbers as [0-5,9]; nothing where there are none."""
    cuts = [i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    parts = [numbers[a:b] for a, b in pairwise([0, *cuts, len(numbers)])] if numbers else []
    said = [str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts]
    return f"[{','.join(said)}]" if said else ""
