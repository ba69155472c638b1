"""Device transfers: move activations between the units of a model that lie on different devices.

A guard wraps each method by which other units call a unit: its forward, and every method with a
`step` argument, of the unit itself and of the modules inside. The guard moves the arguments to the
unit's device and the results to the device that uses them. Weights never move here (`offload`). The
tensors of a step are the same for all layers and move once per device; its caches were allocated on
the devices of their layers.

While a segment's graph is in use, its `Recording` answers the calls of its layers; see `segments`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.weak import WeakTensorKeyDictionary

from ostro.core.device import current_device
from ostro.core.ops import Op, Target
from ostro.core.placement.offload import Offloader, TransferUnit, with_storages
from ostro.core.step import Step

STAYS = frozenset({"caches", "bounds"})
"""Fields of a step that do not move: host lists, and caches, which are beside their layers."""

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call: those by position, and those by name."""

Recording = Callable[["TransferUnit", Callable[..., Any], Given], Any]
"""Replaces the call of a layer; its arguments are the unit, the unit's forward and the call's."""


class DeviceTransfers:
    """The transfers of a model's units; `computing` is the unit whose code runs now."""

    def __init__(
        self,
        main_device: torch.device,
        units: Sequence[TransferUnit],
        owner: Mapping[Module, TransferUnit],
        target: Target,
    ) -> None:
        """`owner` maps each module to its unit; `target` is what its kernels were selected for."""
        self.main_device, self.owner, self.target = main_device, owner, target
        self.modules: dict[TransferUnit, list[Module]] = {unit: [] for unit in units}
        for module, unit in owner.items():
            self.modules[unit].append(module)
        self.crossed = any(unit.device != main_device for unit in units)
        offloaded = [(unit, with_storages(self.modules[unit])) for unit in units if unit.offloaded]
        self.offloader = Offloader(offloaded, main_device)
        self.computing: TransferUnit | None = None
        self.moved: dict[torch.device, WeakTensorKeyDictionary] = {}
        self.copies: dict[tuple[Module, torch.device], Module] = {}
        self.recordings: Mapping[TransferUnit, Recording] = {}

    def install(self) -> None:
        """Guard every method by which other units call a unit.

        On one device only two kinds need a guard: those of the unit itself, which recordings
        replace, and those of modules with offloaded weights.
        """
        names = {cls: entrances(cls) for cls in {type(module) for module in self.owner}}
        for unit, modules in self.modules.items():
            for module in modules:
                offloaded = unit.offloaded and with_storages(module.modules())
                if self.crossed or offloaded or module is unit.module:
                    for name in names[type(module)]:
                        self.guard(unit, module, name)

    def guard(self, unit: TransferUnit, module: Module, name: str) -> None:
        """Wrap a method so that calls from outside of the unit move their tensors."""
        method: Callable[..., Any] = getattr(module, name)
        onward = unit.onward if module is unit.module else self.main_device
        offloaded = unit.offloaded and bool(with_storages(module.modules()))
        is_layer = module is unit.module and name == "forward"

        def enter(*args: Any, **kwargs: Any) -> Any:
            caller = self.computing
            # Within a unit nothing moves: its first guard has moved the arguments.
            if caller is unit:
                return method(*args, **kwargs)
            if is_layer and unit in self.recordings:
                return self.recordings[unit](unit, method, (args, kwargs))
            there = self.move_to((args, kwargs), unit.device)
            with self.offloader.loaded(unit) if offloaded else nullcontext():
                out = self.compute(unit, method, there)
            # A unit inside another one returns to it. A layer hands its result to the next layer,
            # whose device is `onward`: by way of the main device it would be copied twice.
            if caller is not None:
                return self.move_to(out, caller.device)
            # The model adds levels to the result between two layers, on the main device.
            return self.move_to(out, self.main_device if has_levels((args, kwargs)) else onward)

        setattr(module, name, enter)

    def compute(self, unit: TransferUnit, method: Callable[..., Any], given: Given) -> Any:
        """Run a method of a unit on its device; the arguments are there already."""
        args, kwargs = given
        caller, self.computing = self.computing, unit
        try:
            with current_device(unit.device):
                return method(*args, **kwargs)
        finally:
            self.computing = caller

    @contextmanager
    def recorded(self, recordings: Mapping[TransferUnit, Recording]) -> Iterator[None]:
        """Within the context, recordings answer the calls of their layers.

        `moved` is cleared before and after: the inputs of a captured step are the same tensors with
        new contents, so a copy of the step before is stale.
        """
        self.recordings = recordings
        self.moved.clear()
        try:
            yield
        finally:
            self.recordings = {}
            self.moved.clear()

    def move_to(self, value: Any, device: torch.device) -> Any:
        """A value with its tensors on the device; the same object if they are there already.

        Lasting tensors, those of steps and other dataclasses, are moved once per device.
        """
        if not self.crossed:
            return value

        def there(item: Tensor | Module, lasting: bool) -> Tensor | Module:
            if isinstance(item, Module):
                return self.copy(item, device)
            return self.move(item, device, lasting)

        return changed(value, there)

    def move(self, tensor: Tensor, device: torch.device, lasting: bool) -> Tensor:
        if tensor.device == device:
            return tensor
        # Copies to a GPU are ordered by its stream. A copy to the host must block, or Python would
        # read memory that is not written yet.
        if not lasting:
            return tensor.to(device, non_blocking=device.type == "cuda")
        # Weak keys: a step's tensors live as long as the step.
        known = self.moved.setdefault(device, WeakTensorKeyDictionary())
        if tensor not in known:
            known[tensor] = self.move(tensor, device, lasting=False)
        found: Tensor = known[tensor]
        return found

    def copy(self, module: Module, device: torch.device) -> Module:
        """A copy on the device of a module that is an argument, made once.

        A layer may get the norm of the next one, which is on another device. A module with
        storages is not copied: its own guards move what it computes.
        """
        unit = self.owner.get(module)
        here = self.main_device if unit is None else unit.device
        if here == device or with_storages(module.modules()):
            return module
        if (module, device) not in self.copies:
            self.copies[module, device] = select_kernels(
                unguarded(deepcopy(module)), self.target, device
            )
        return self.copies[module, device]


def changed(
    value: Any, change: Callable[[Tensor | Module, bool], Any], lasting: bool = False
) -> Any:
    """A value with `change` applied to its tensors and modules; the same object if none changes.

    The second argument of `change` is true for lasting items: fields of steps and dataclasses.
    """
    if isinstance(value, Tensor | Module):
        return change(value, lasting)
    if type(value) in (tuple, list):
        items = [changed(item, change, lasting) for item in value]
        return value if same(items, value) else type(value)(items)
    if type(value) is dict:
        items = [changed(item, change, lasting) for item in value.values()]
        return value if same(items, value.values()) else dict(zip(value, items, strict=True))
    if not is_dataclass(value) or isinstance(value, type):
        return value
    others = {}
    for each in fields(value):
        if each.init and not (isinstance(value, Step) and each.name in STAYS):
            item = getattr(value, each.name)
            there = changed(item, change, lasting=True)
            if there is not item:
                others[each.name] = there
    return replace(value, **others) if others else value


def select_kernels(module: Module, target: Target, device: torch.device) -> Module:
    """Move a module to another device and select its kernels for it."""
    for inner in module.to(device).modules():
        for op in vars(inner).values():
            if isinstance(op, Op):
                op.select(replace(target, device=device))
    return module


def unguarded(module: Module) -> Module:
    """Remove the guards from a copied module: they would call the original."""
    for inner in module.modules():
        for name in entrances(type(inner)):
            vars(inner).pop(name, None)
    return module


def entrances(cls: type[Module]) -> list[str]:
    """The methods by which others call a module: its forward, and those with a `step` argument."""
    names = [name for name in dir(cls) if not name.startswith("_")]
    methods = [(name, inspect.getattr_static(cls, name)) for name in names]
    return [
        name
        for name, method in methods
        if name == "forward"
        or (inspect.isfunction(method) and "step" in inspect.signature(method).parameters)
    ]


def has_levels(value: Any) -> bool:
    """Whether a step among the arguments has levels, which are added to the layer's result."""
    args, kwargs = value
    steps = [item for item in (*args, *kwargs.values()) if isinstance(item, Step)]
    return any(step.features is not None and step.features.levels for step in steps)


def same(items: Sequence[Any], others: Any) -> bool:
    return all(a is b for a, b in zip(items, others, strict=True))
