"""Offload: weights stay in host memory and are copied to the device, unit by unit, to compute.

At most two units are on the device at a time: the one that computes, and the one that followed it
in the last pass, whose weights are copied meanwhile on a second stream. Parameters that are not in
a storage (norms, biases) are small and stay on the device.
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

from ostro.core.device import HOST
from ostro.core.errors import Unsupported
from ostro.core.nn import Embedding, Linear
from ostro.core.nn.experts import ExpertLinear
from ostro.core.nn.storage import Storage


class TransferUnit(Protocol):
    """The fields of `placement.Unit` that offloading and transfers use."""

    path: str
    module: Module
    device: torch.device
    onward: torch.device
    offloaded: bool


@dataclass(eq=False)
class OffloadedUnit:
    """The weights of an offloaded unit.

    tensors: those of its storages; host_data: their data in host memory; copies: their data on the
    device, None while the unit is not there; arrived: the event at which the copies are complete.
    """

    tensors: Sequence[Tensor]
    host_data: Sequence[Tensor]
    copies: Sequence[Tensor] | None = None
    arrived: torch.cuda.Event | None = None


class Offloader:
    """Copies offloaded units to one device, and prefetches the unit that is expected next."""

    def __init__(
        self, units: Iterable[tuple[TransferUnit, Sequence[Module]]], device: torch.device
    ) -> None:
        self.device = device
        self.units = {unit: OffloadedUnit(*host_tensors(unit, modules)) for unit, modules in units}
        self.next_units = dict(pairwise(self.units))
        self.last: TransferUnit | None = None
        self.prefetched: TransferUnit | None = None
        self.computed: torch.cuda.Event | None = None  # the end of the unit before
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @contextmanager
    def loaded(self, unit: TransferUnit) -> Iterator[None]:
        """Within the context, the unit's weights are on the device."""
        weights = self.units[unit]
        # Learned, not derived: a model may call its layers in another order than it lists them.
        if self.last is not None:
            self.next_units[self.last] = unit
        self.last = unit
        # A wrong prefetch is freed: at most two units may be on the device.
        if self.prefetched is not None and self.prefetched is not unit:
            self.units[self.prefetched].copies = None
        self.prefetched = None
        if weights.copies is None:
            self.fetch(weights)
        self.use_copies(weights)
        self.prefetch_after(unit)
        try:
            yield
        finally:
            self.free(weights)

    def fetch(self, weights: OffloadedUnit) -> None:
        """Start to copy a unit's weights to the device."""
        if self.stream is None:
            weights.copies = [tensor.to(self.device) for tensor in weights.host_data]
            return
        # A second stream, so that copies overlap with the kernels of the unit before. The host
        # memory is pinned (`move_to_host`): from pageable memory a copy would block the host.
        with torch.cuda.stream(self.stream):
            weights.copies = [
                tensor.to(self.device, non_blocking=True) for tensor in weights.host_data
            ]
            weights.arrived = self.stream.record_event()

    def use_copies(self, weights: OffloadedUnit) -> None:
        """Use the copies as the weights. The device waits until they are complete, the host not."""
        assert weights.copies is not None
        if weights.arrived is not None:
            computing = torch.cuda.current_stream(self.device)
            computing.wait_event(weights.arrived)
            # The memory belongs to the copying stream. Without this the allocator would give it to
            # the next prefetch while kernels that were launched before still read it.
            for copy in weights.copies:
                copy.record_stream(computing)
        set_data(weights.tensors, weights.copies)

    def prefetch_after(self, unit: TransferUnit) -> None:
        """Prefetch the unit that followed this one in the last pass."""
        following = self.next_units.get(unit)
        if following is None or self.units[following].copies is not None:
            return
        # The host launches ahead of the device. It waits here until the unit before has been
        # computed and its memory is free: otherwise all units would be on the device at once.
        if self.computed is not None:
            self.computed.synchronize()
        self.fetch(self.units[following])
        self.prefetched = following

    def free(self, weights: OffloadedUnit) -> None:
        """Use the host data as the weights again and free the copies."""
        set_data(weights.tensors, weights.host_data)
        weights.copies = None
        if self.stream is not None:
            self.computed = torch.cuda.current_stream(self.device).record_event()


def host_tensors(
    unit: TransferUnit, modules: Sequence[Module]
) -> tuple[list[Tensor], list[Tensor]]:
    """The tensors of a unit's storages and their data in host memory.

    Raises Unsupported for a storage with tensors that `tensors` does not find: they would stay on
    the host while the kernel runs on the device.
    """
    found: dict[int, Tensor] = {}
    for module in modules:
        of_module = list(tensors(module))
        found |= {id(tensor): tensor for tensor in of_module}
        if sum(tensor.nbytes for tensor in of_module) < module.nbytes:  # type: ignore[operator]
            raise Unsupported(
                f"{unit.path} cannot be offloaded: its storage holds tensors that the offloader "
                "does not find; keep it on the device, or use another weight format"
            )
    return list(found.values()), [tensor.data for tensor in found.values()]


def tensors(owner: Any) -> Iterator[Tensor]:
    """The tensors of a module's storages, or of one storage, each once."""
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
            yield from (t for item in field_values(value) for t in inside(item, True))

    # Of a module only what its storages hold: norms and biases stay on the device.
    yield from (t for item in field_values(owner) for t in inside(item, isinstance(owner, Storage)))


def field_values(value: Any) -> Iterator[Any]:
    """The values of an object's fields."""
    if is_dataclass(value):
        yield from (getattr(value, each.name) for each in fields(value))
    elif hasattr(value, "__dict__"):
        yield from vars(value).values()


def set_data(tensors: Iterable[Tensor], data: Iterable[Tensor]) -> None:
    """Replace the data of tensors, on any device."""
    # The tensors keep their identity: kernels and storages hold references to them.
    for tensor, new in zip(tensors, data, strict=True):
        tensor.data = new


def move_to_host(owner: Any, *, pin: bool = False) -> None:
    """Move the tensors of a storage, or of a module's storages, to host memory.

    `pin`: to pinned memory, from which a GPU copies without blocking the host.
    """
    for tensor in tensors(owner):
        host = tensor.data.to(HOST)
        tensor.data = host.pin_memory() if pin else host


@contextmanager
def on_device(module: Module, device: torch.device) -> Iterator[None]:
    """Within the context, a module's weights are on the device; afterwards in host memory again."""
    for tensor in tensors(module):
        tensor.data = tensor.data.to(device)
    yield
    move_to_host(module, pin=device.type == "cuda")


def with_storages(modules: Iterable[Module]) -> list[Linear | Embedding | ExpertLinear]:
    """The modules that have storages."""
    return [module for module in modules if isinstance(module, Linear | Embedding | ExpertLinear)]
