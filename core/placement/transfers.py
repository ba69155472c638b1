"""Borders between units that lie on different devices: activations cross them, and nothing else.

Whoever calls into a unit from outside crosses its border, by its forward or by any other method
that is handed a step, of the unit itself or of a module inside. What is handed over moves to the
unit's device, what comes back to where it is used. A step's own tensors, which stay the same for
all layers, move once per device; its caches were made where their layers lie.

Calls of layers whose segment was recorded are answered by the recording; see `segment`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.weak import WeakTensorKeyDictionary

from ostro.core.ops import Op, Target
from ostro.core.placement.offload import Offloader, holders
from ostro.core.step import Step

STAYS = frozenset({"caches", "bounds"})
"""Fields of a step that do not move: lists of the host, and what lies where its layer does."""


Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call: those by position, and those by name."""

Recording = Callable[["TransferUnit", Callable[..., Any], Given], Any]
"""What answers a layer's call in its place: handed the unit, its forward and the arguments."""


class TransferUnit(Protocol):
    """What the transfers are told of a unit; see `placement.Unit`."""

    path: str
    module: Module
    device: torch.device
    onward: torch.device
    rests: bool


class DeviceTransfers:
    """The transfers of a model's units, and the one unit that is computing."""

    def __init__(
        self,
        home: torch.device,
        units: Sequence[TransferUnit],
        owner: Mapping[Module, TransferUnit],
        target: Target,
    ) -> None:
        """`owner` says whose each module is; `target` is what its kernels were selected for."""
        self.home, self.owner, self.target = home, owner, target
        self.modules: dict[TransferUnit, list[Module]] = {unit: [] for unit in units}
        for module, unit in owner.items():
            self.modules[unit].append(module)
        self.crossed = any(unit.device != home for unit in units)
        resting = [(unit, holders(self.modules[unit])) for unit in units if unit.rests]
        self.visits = Offloader(resting, home)
        self.computing: TransferUnit | None = None
        self.moved: dict[torch.device, WeakTensorKeyDictionary] = {}
        self.copies: dict[tuple[Module, torch.device], Module] = {}
        self.recordings: Mapping[TransferUnit, Recording] = {}

    def mark(self) -> None:
        """Put a guard on every entrance of every unit.

        Where all lie on one device, these are the unit's own, and those behind which resting
        weights are used.
        """
        names = {cls: entrances(cls) for cls in {type(module) for module in self.owner}}
        for unit, modules in self.modules.items():
            for module in modules:
                visited = unit.rests and holders(module.modules())
                if self.crossed or visited or module is unit.module:
                    for name in names[type(module)]:
                        self.guard(unit, module, name)

    def guard(self, unit: TransferUnit, module: Module, name: str) -> None:
        """Let whoever calls a method from outside of the unit cross its border."""
        method: Callable[..., Any] = getattr(module, name)
        onward = unit.onward if module is unit.module else self.home
        visits = unit.rests and bool(holders(module.modules()))
        whole = module is unit.module and name == "forward"

        def enter(*args: Any, **kwargs: Any) -> Any:
            caller = self.computing
            if caller is unit:
                return method(*args, **kwargs)
            if whole and unit in self.recordings:
                return self.recordings[unit](unit, method, (args, kwargs))
            there = self.carry((args, kwargs), unit.device)
            with self.visits.visit(unit) if visits else nullcontext():
                out = self.compute(unit, method, there)
            if caller is not None:
                return self.carry(out, caller.device)
            return self.carry(out, self.home if levelled((args, kwargs)) else onward)

        setattr(module, name, enter)

    def compute(self, unit: TransferUnit, method: Callable[..., Any], given: Given) -> Any:
        """A method of a unit, on its device, where what it is handed lies already."""
        args, kwargs = given
        caller, self.computing = self.computing, unit
        try:
            with on(unit.device):
                return method(*args, **kwargs)
        finally:
            self.computing = caller

    @contextmanager
    def recorded(self, recordings: Mapping[TransferUnit, Recording]) -> Iterator[None]:
        """While the context lasts, recordings answer for their layers.

        A step whose inputs stay in place has new contents in the same tensors: what was moved for
        the step before is moved again.
        """
        self.recordings = recordings
        self.moved.clear()
        try:
            yield
        finally:
            self.recordings = {}
            self.moved.clear()

    def carry(self, value: Any, device: torch.device) -> Any:
        """A value with its tensors on the device: itself where they are there already.

        `lasting` tensors, those of steps and other records, are moved once.
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
        if not lasting:
            return tensor.to(device, non_blocking=device.type == "cuda")
        known = self.moved.setdefault(device, WeakTensorKeyDictionary())
        if tensor not in known:
            known[tensor] = self.move(tensor, device, lasting=False)
        found: Tensor = known[tensor]
        return found

    def copy(self, module: Module, device: torch.device) -> Module:
        """A module that is handed over (a norm that a layer applies for the next one), as it is on
        the device. One that holds storages stays where it is: it has a border of its own.
        """
        unit = self.owner.get(module)
        if (self.home if unit is None else unit.device) == device or holders(module.modules()):
            return module
        if (module, device) not in self.copies:
            self.copies[module, device] = select_kernels(
                unguarded(deepcopy(module)), self.target, device
            )
        return self.copies[module, device]


def changed(
    value: Any, change: Callable[[Tensor | Module, bool], Any], lasting: bool = False
) -> Any:
    """A value with the tensors and modules in it changed: itself where none is.

    `change` is told whether what it is handed is `lasting`: part of a step or another record.
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


def on(device: torch.device) -> AbstractContextManager[object]:
    """While the context lasts, launches go to the device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def select_kernels(module: Module, target: Target, device: torch.device) -> Module:
    """Choose a module's kernels anew, for another device."""
    for inner in module.to(device).modules():
        for op in vars(inner).values():
            if isinstance(op, Op):
                op.select(replace(target, device=device))
    return module


def unguarded(module: Module) -> Module:
    """A copy's own methods in the places of guards, which are the original's."""
    for inner in module.modules():
        for name in entrances(type(inner)):
            vars(inner).pop(name, None)
    return module


def entrances(cls: type[Module]) -> list[str]:
    """The methods by which others call into a module: its forward, and those that take a step."""
    names = [name for name in dir(cls) if not name.startswith("_")]
    methods = [(name, inspect.getattr_static(cls, name)) for name in names]
    return [
        name
        for name, method in methods
        if name == "forward"
        or (inspect.isfunction(method) and "step" in inspect.signature(method).parameters)
    ]


def levelled(value: Any) -> bool:
    """Whether a step among the arguments of a layer has levels, which are added behind it."""
    args, kwargs = value
    steps = [item for item in (*args, *kwargs.values()) if isinstance(item, Step)]
    return any(step.features is not None and step.features.levels for step in steps)


def same(items: Sequence[Any], others: Any) -> bool:
    return all(a is b for a, b in zip(items, others, strict=True))
