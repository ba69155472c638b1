"""Weights that rest in host memory and visit the device where they compute, unit by unit.

At most two units are there at a time: the one that computes, and the one that came after it the
last time, whose weights are copied meanwhile on a stream of their own. Parameters that are no
storage (norms, biases) are small and stay on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.errors import Unsupported
from ostro.core.nn import Embedding, Linear, Storage
from ostro.core.nn.experts import ExpertLinear

HOST = torch.device("cpu")


class OffloadUnit(Protocol):
    """A unit of a placement."""

    path: str
    device: torch.device


@dataclass(eq=False)
class OffloadedUnit:
    """The weights of a unit: `tensors` are what its storages hold, `resting` their host copies;
    `copies` are on the device while it visits, from when `arrived` is reached on.
    """

    tensors: Sequence[Tensor]
    resting: Sequence[Tensor]
    copies: Sequence[Tensor] | None = None
    arrived: torch.cuda.Event | None = None


class Offloader:
    """The guests of one device, and which of them are there."""

    def __init__(
        self, units: Iterable[tuple[OffloadUnit, Sequence[Module]]], device: torch.device
    ) -> None:
        self.device = device
        self.guests = {unit: OffloadedUnit(*settled(unit, modules)) for unit, modules in units}
        self.following = dict(pairwise(self.guests))
        self.last: OffloadUnit | None = None
        self.ahead: OffloadUnit | None = None
        self.left: torch.cuda.Event | None = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def visit(self, unit: OffloadUnit) -> Iterator[None]:
        """The unit's weights are on the device while the context lasts."""
        guest = self.guests[unit]
        if self.last is not None:
            self.following[self.last] = unit
        self.last = unit
        if self.ahead is not None and self.ahead is not unit:
            self.guests[self.ahead].copies = None
        self.ahead = None
        if guest.copies is None:
            self.fetch(guest)
        self.receive(guest)
        self.look_ahead(unit)
        try:
            yield
        finally:
            self.dismiss(guest)

    def fetch(self, guest: OffloadedUnit) -> None:
        """Start the copies of a guest's weights."""
        if self.stream is None:
            guest.copies = [tensor.to(self.device) for tensor in guest.resting]
            return
        with torch.cuda.stream(self.stream):
            guest.copies = [tensor.to(self.device, non_blocking=True) for tensor in guest.resting]
            guest.arrived = self.stream.record_event()

    def receive(self, guest: OffloadedUnit) -> None:
        """Put the copies in the places of the weights; the device waits for them, the host not."""
        assert guest.copies is not None
        if guest.arrived is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(guest.arrived)
            for copy in guest.copies:
                copy.record_stream(computing)
        point(guest.tensors, guest.copies)

    def look_ahead(self, unit: OffloadUnit) -> None:
        """Fetch what comes next, once what came before has done its work and made room."""
        following = self.following.get(unit)
        if following is None or self.guests[following].copies is not None:
            return
        if self.left is not None:
            self.left.synchronize()
        self.fetch(self.guests[following])
        self.ahead = following

    def dismiss(self, guest: OffloadedUnit) -> None:
        point(guest.tensors, guest.resting)
        guest.copies = None
        if self.stream is not None:
            self.left = torch.cuda.current_stream(self.device).record_event()


def settled(unit: OffloadUnit, modules: Sequence[Module]) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors of a unit's storages, and where they rest.

    Raises Unsupported for a storage whose tensors are not all in its reach.
    """
    found: dict[int, Tensor] = {}
    for module in modules:
        held = list(tensors(module))
        found |= {id(tensor): tensor for tensor in held}
        if sum(tensor.nbytes for tensor in held) < module.nbytes:  # type: ignore[operator]
            raise Unsupported(
                f"{unit.path} cannot rest in host memory: the format of its weights keeps some of "
                "them out of reach; leave it on the device, or use another format"
            )
    resting = [tensor.data for tensor in found.values()]
    return list(found.values()), resting


def tensors(held: Any) -> Iterator[Tensor]:
    """The tensors of the storages that a module holds, or of one storage, each once."""
    seen = set[int]()

    def inside(value: Any, stored: bool) -> Iterator[Tensor]:
        if id(value) in seen or callable(value) or isinstance(value, ModuleType):
            return
        if isinstance(value, Tensor):
            seen.add(id(value))
            yield from [value] * stored
        elif isinstance(value, tuple | list):
            yield from (t for item in value for t in inside(item, stored))
        elif isinstance(value, dict):
            yield from (t for item in value.values() for t in inside(item, stored))
        elif stored or isinstance(value, Storage):
            seen.add(id(value))
            yield from (t for item in parts(value) for t in inside(item, True))

    yield from (t for item in parts(held) for t in inside(item, isinstance(held, Storage)))


def parts(value: Any) -> Iterator[Any]:
    """What an object holds."""
    if is_dataclass(value):
        yield from (getattr(value, each.name) for each in fields(value))
    elif hasattr(value, "__dict__"):
        yield from vars(value).values()


def point(tensors: Iterable[Tensor], data: Iterable[Tensor]) -> None:
    """Let tensors have other data, wherever it lies."""
    for tensor, theirs in zip(tensors, data, strict=True):
        tensor.data = theirs


def send_home(held: Any, *, pin: bool = False) -> None:
    """Move a storage's tensors, or those of a module's storages, to where they rest.

    `pin` makes host memory from which a GPU copies by itself.
    """
    for tensor in tensors(held):
        host = tensor.data.to(HOST)
        tensor.data = host.pin_memory() if pin else host


@contextmanager
def lent(module: Module, device: torch.device) -> Iterator[None]:
    """While a module's weights are made ready, they are on the device."""
    for tensor in tensors(module):
        tensor.data = tensor.data.to(device)
    yield
    send_home(module, pin=device.type == "cuda")


def holders(modules: Iterable[Module]) -> list[Module]:
    """Those of the modules that hold storages."""
    return [module for module in modules if isinstance(module, Linear | Embedding | ExpertLinear)]
