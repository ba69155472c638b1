"""Placement: the device of each part of a model, from patterns or from an estimate of memory.

A model is placed in *units*: each layer of its lists of layers (`Model.layers`), the experts inside
a layer also separately, and every other module with weights. Computations between units, and
modules of none (norms, tables), stay on the *main device*, which the model is loaded on.
Architectures need no code for it: `transfers` moves activations between units, `offload` copies
weights from host memory, `segments` captures runs of layers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby, pairwise

import torch
from torch.nn import Module

from ostro.core.deprecated import RemovedInOstro1
from ostro.core.device import HOST, current_device, format_bytes, free_bytes, parse_size, with_index
from ostro.core.errors import UsageError
from ostro.core.nn import CachedLayer, Experts, Head, Model
from ostro.core.ops import Target
from ostro.core.placement.offload import on_device, with_storages
from ostro.core.placement.patterns import PatternRule, matches, read_rules
from ostro.core.placement.segments import LEAST, LayerSegment, LayerSegments
from ostro.core.placement.transfers import DeviceTransfers

OFFLOAD, AUTO = "offload", "auto"
"""Values of --placement: weights in host memory, and as many layers on the device as fit."""

OLD_OFFLOAD = "rest"
"""The deprecated name of `OFFLOAD`."""

CACHE_SHARE = 0.25
"""The share of free memory that `auto` leaves for the cache and activations by default."""

COUNTS = ("", "one layer", "two layers", "three layers")

Devices = Callable[[str], torch.device]
"""Returns the device of a name; raises an OstroError if there is none."""


@dataclass(eq=False)
class Unit:
    """A part of a model on one device. `layer` is the path of its list of layers, if any; `onward`
    is the device that uses its results; `offloaded`: its weights are in host memory.
    """

    path: str
    module: Module
    device: torch.device
    onward: torch.device
    layer: str = ""
    offloaded: bool = False

    @property
    def is_layer(self) -> bool:
        """Whether it is a layer, not experts inside one."""
        return bool(self.layer) and self.path.rpartition(".")[0] == self.layer


class Placement:
    """The units of a model and their devices; `owner` is the unit of each module."""

    def __init__(self, model: Model, main_device: torch.device) -> None:
        self.model, self.main_device = model, with_index(main_device)
        self.units = {unit.path: unit for unit in find_units(model, self.main_device)}
        self.owner: dict[Module, Unit] = {}
        self.transfers: DeviceTransfers | None = None
        self.find_owners()

    def find_owners(self) -> None:
        """Fill `owner`."""
        # Experts come after their layer, so that their modules are theirs and not the layer's.
        self.owner = {m: unit for unit in self.units.values() for m in unit.module.modules()}

    def device(self, module: Module) -> torch.device:
        """The device on which a module computes."""
        unit = self.owner.get(module)
        return self.main_device if unit is None else unit.device

    def is_offloaded(self, module: Module) -> bool:
        """Whether a module's weights are in host memory while it does not compute."""
        unit = self.owner.get(module)
        return unit is not None and unit.offloaded

    @property
    def has_transfers(self) -> bool:
        """Whether activations or weights move between devices during a forward pass."""
        return any(u.offloaded or u.device != self.main_device for u in self.units.values())

    @contextmanager
    def on_device(self, module: Module) -> Iterator[None]:
        """Within the context, a module's device is the current one and has its weights."""
        offloaded, device = self.is_offloaded(module), self.device(module)
        with current_device(device), on_device(module, device) if offloaded else nullcontext():
            yield

    def apply(self, rules: list[PatternRule], devices: Devices) -> None:
        """Place units by rules; of several that match a unit, the last one applies.

        Raises UsageError for an invalid rule.
        """
        for rule in rules:
            offloaded = is_offload(rule.target)
            if offloaded and self.main_device == HOST:
                raise UsageError(
                    f"--placement: {rule.pattern} cannot be offloaded: the model runs on the CPU; "
                    "leave it out, or choose another --device"
                )
            device = self.main_device if offloaded else with_index(devices(rule.target))
            for path in matches(rule.pattern, self.model, self.units):
                self.units[path].device, self.units[path].offloaded = device, offloaded
        self.check_bound()

    def offload_layers(self) -> None:
        """Offload all layers. Raises UsageError if there are none, or the model runs on the CPU."""
        if self.main_device == HOST:
            raise UsageError(
                "--offload: layers cannot be offloaded: the model runs on the CPU; leave it out, "
                "or choose another --device"
            )
        layers = [unit for unit in self.units.values() if unit.layer]
        if not layers:
            raise UsageError("--offload: this model has no layers; leave the option out")
        for unit in layers:
            unit.offloaded = True

    def fit(self, sizes: Mapping[Module, int], room: int) -> None:
        """Place what fits `room` bytes on the main device, the other units on the CPU.

        Embeddings and heads come first: every step uses them. Then come the layers, up to the first
        that does not fit: activations cross between the devices once, not at every gap. Layers that
        read the keys and values of one layer are where the last of them is, with that layer.
        """
        nbytes = dict.fromkeys(self.units.values(), 0)
        for module, unit in self.owner.items():
            nbytes[unit] += sizes.get(module, 0)
        used, is_full = 0, False
        for unit in sorted(nbytes, key=lambda unit: bool(unit.layer)):
            on_host = used + nbytes[unit] > room or (is_full and bool(unit.layer))
            is_full = is_full or (on_host and bool(unit.layer))
            used += 0 if on_host else nbytes[unit]
            unit.device = HOST if on_host else self.main_device
        for unit, other, _ in self.bound():
            unit.device = other.device

    def bound(self) -> Iterator[tuple[Unit, Unit, str]]:
        """Pairs of units that are on one device, and what they have in common: a tied head and its
        embedding, and a layer and the next one that reads its keys and values; the last pair first.
        """
        readers: dict[int, Unit] = {}
        for module, unit in reversed(self.owner.items()):
            if isinstance(module, CachedLayer):
                if module.layer in readers:
                    yield unit, readers[module.layer], "cache"
                readers[module.layer] = unit
            for table in module.tied if isinstance(module, Head) else ():
                if table in self.owner:
                    yield unit, self.owner[table], "weight"

    def check_bound(self) -> None:
        """Raise UsageError if units with a common weight or cache are not on one device."""
        for unit, other, common in self.bound():
            offloaded = common == "weight" and (unit.offloaded or other.offloaded)
            if unit.device != other.device or offloaded:
                raise UsageError(
                    f"--placement: {unit.path} and {other.path} use one {common}; place both on "
                    "one device"
                )

    def copy_shared(self) -> None:
        """Copy modules that units on several devices share (rotary tables), once per device.

        Call it before the weights are read.
        """
        devices = {unit.module: unit.device for unit in self.units.values()}
        first: dict[Module, torch.device] = {}
        copies: dict[tuple[Module, torch.device], Module] = {}

        def claim(module: Module, device: torch.device) -> None:
            for name, child in module.named_children():
                # The first device keeps the original; every other one gets a copy.
                here = devices.get(child, device)
                if first.setdefault(child, here) == here:
                    claim(child, here)
                    continue
                if (child, here) not in copies:
                    copies[child, here] = deepcopy(child)
                setattr(module, name, copies[child, here])

        claim(self.model, self.main_device)
        self.find_owners()

    def move(self) -> None:
        """Move parameters and buffers to their devices; storages were read there."""
        self.model.to(self.main_device)
        for unit in self.units.values():
            unit.module.to(unit.device)

    def install_transfers(self, target: Target) -> list[str]:
        """Install the transfers and return the lines of `--explain`; none without transfers.

        Call it when all modules are finalized: their methods are wrapped.
        """
        if not self.has_transfers:
            return []
        for unit, following in pairwise(self.decoder_layers()):
            unit.onward = following.device if unit.layer == following.layer else self.main_device
        units = list(self.units.values())
        self.transfers = DeviceTransfers(self.main_device, units, self.owner, target)
        self.transfers.install()
        return self.describe()

    def decoder_layers(self) -> list[Unit]:
        """The layers of decoders, whose results only the next layer uses.

        Models often collect the results of the layers of encoders: these return to the main device.
        """
        lists = {unit.layer for unit in self.units.values() if has_cache(unit)}
        return [unit for unit in self.units.values() if unit.layer in lists and unit.is_layer]

    def segments(self, replay: bool) -> LayerSegments | None:
        """The segments of the model's layers, after `install_transfers`; None without transfers.

        With `replay` an eager call replaces the graph on devices that cannot capture.
        """
        if self.transfers is None:
            return None
        found = []
        # A segment ends where the list of layers, the device or the reason changes.
        for (_, device, why), run in groupby(
            self.decoder_layers(),
            lambda unit: (unit.layer, unit.device, self.capture_obstacle(unit, replay)),
        ):
            units = list(run)
            short = COUNTS[len(units)] if len(units) < LEAST else ""
            found.append(LayerSegment(format_paths(units)[0], units, device, why or short))
        return LayerSegments(self.transfers, found)

    def capture_obstacle(self, layer: Unit, replay: bool) -> str:
        """The reason that steps through a layer are not captured; empty if they are."""
        within = [unit for unit in self.units.values() if unit.path.startswith(f"{layer.path}.")]
        # A graph belongs to one device and reads fixed addresses; offloaded weights get new ones.
        if layer.offloaded:
            return "its weights are offloaded"
        if any(unit.offloaded for unit in within):
            return "its experts are offloaded"
        if any(unit.device != layer.device for unit in within):
            return "its experts are on another device"
        return "" if replay or layer.device.type == "cuda" else "the CPU has no graphs"

    def describe(self) -> list[str]:
        """One line of `--explain` per device, and per device that weights are offloaded from."""
        groups: dict[str, list[Unit]] = {}
        for unit in self.units.values():
            name = f"offloaded from {unit.device}" if unit.offloaded else f"{unit.device}"
            groups.setdefault(name, []).append(unit)
        lines = []
        for name, units in groups.items():
            modules = with_storages(module for module, unit in self.owner.items() if unit in units)
            size = sum(module.nbytes for module in modules)
            paths = ", ".join(format_paths(units))
            lines.append(f"placement: {name}: {paths} ({format_bytes(size)})")
        return lines


def choose_placement(
    option: str | None,
    model: Model,
    main_device: torch.device,
    devices: Devices,
    sizes: Callable[[], Mapping[Module, int]],
    memory: str | None = None,
) -> Placement:
    """The placement of a model, before its weights are read.

    `option` is None, "offload", "auto", "auto:SIZE", rules ("PATTERN = DEVICE, ..."), or a TOML
    file of rules; `sizes` returns the bytes of each module's weights in the checkpoint; `memory` is
    the --memory option, the size of the cache. Raises UsageError if a rule is malformed, matches
    nothing or splits a unit.
    """
    placement = Placement(model, main_device)
    if option is not None and is_offload(option):
        placement.offload_layers()
    elif option is not None and option.partition(":")[0] == AUTO:
        placement.fit(sizes(), weight_room(option.partition(":")[2], main_device, memory))
    elif option is not None:
        placement.apply(read_rules(option), devices)
    placement.copy_shared()
    return placement


def is_offload(target: str) -> bool:
    """Whether a target is `OFFLOAD`; its deprecated name warns."""
    if target == OLD_OFFLOAD:
        warnings.warn(
            f"--placement: {OLD_OFFLOAD} is deprecated; write {OFFLOAD}",
            RemovedInOstro1,
            stacklevel=2,
        )
    return target in (OFFLOAD, OLD_OFFLOAD)


def weight_room(size: str, main_device: torch.device, memory: str | None) -> int:
    """Bytes for weights on the main device: `size`, or the free memory without that of the cache.

    Raises UsageError for an invalid size.
    """
    if size:
        return int(parse_size(size))
    free = free_bytes(main_device)
    cache = parse_size(memory) if memory else CACHE_SHARE
    return int(free * (1 - cache) if cache <= 1 else free - cache)


def find_units(model: Model, main: torch.device) -> Iterator[Unit]:
    """The units of a model on the main device, in module order, experts after their layer."""

    def walk(path: str, module: Module) -> Iterator[Unit]:
        if path.rpartition(".")[0] in model.layers:
            yield Unit(path, module, main, main, path.rpartition(".")[0])
            for name, inner in module.named_modules():
                if isinstance(inner, Experts):
                    yield Unit(f"{path}.{name}", inner, main, main, path.rpartition(".")[0])
        elif any(f"{name}.".startswith(f"{path}.") for name in model.layers):
            for name, child in module.named_children():
                yield from walk(f"{path}.{name}", child)
        elif with_storages(module.modules()):
            yield Unit(path, module, main, main)

    for name, child in model.named_children():
        yield from walk(name, child)


def has_cache(unit: Unit) -> bool:
    """Whether a unit contains a layer with a cache."""
    return any(isinstance(module, CachedLayer) for module in unit.module.modules())


def format_paths(units: list[Unit]) -> list[str]:
    """The paths of units, those of one list of layers combined: model.layers.[0-5,9]."""
    found: dict[tuple[str, str], list[int]] = {}
    for unit in units:
        index, _, tail = unit.path.removeprefix(f"{unit.layer}.").partition(".")
        key = (f"{unit.layer}.", tail and f".{tail}") if unit.layer else (unit.path, "")
        found.setdefault(key, []).extend([int(index)] if unit.layer else [])
    return [f"{head}{format_ranges(at)}{tail}" for (head, tail), at in found.items()]


def format_ranges(numbers: list[int]) -> str:
    """Ascending numbers as [0-5,9]; empty if there are none."""
    cuts = [i for i, (a, b) in enumerate(pairwise(numbers), 1) if b != a + 1]
    parts = [numbers[a:b] for a, b in pairwise([0, *cuts, len(numbers)])] if numbers else []
    ranges = [str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts]
    return f"[{','.join(ranges)}]" if ranges else ""
