"""Segments of a model whose layers are split: runs of layers on one device, each captured as one.

A model's forward is written straight through, and it stays what is run: step by step it calls its
layers. Those of a captured segment do not compute when they are called. The call of the first
copies what it is handed to inputs that stay in place, on the segment's device, and launches all of
the segment; the call of the last gives what came out. Whatever lies around the segments runs
eagerly, on the same streams: a copy between two GPUs makes the stream of each wait for the other's,
and the host for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.placement.transfers import DeviceTransfers, Given, TransferUnit, changed

USED = "what its layers make is used between them"
ORDER = "its layers are not called once each, in their order"

LEAST = 4
"""Layers of a segment below which a launch of its own gains nothing."""

Capture = Callable[[Callable[[], Any], torch.device], Callable[[], Any]]
"""From a call over inputs that stay in place to one that repeats it; see `Graphs.capture`."""


class NotSequential(Exception):
    """A model does more than call its layers in order, each with what the one before it gave."""


class PlaceholderTensor(Tensor):
    """What stands for a tensor between the layers of a segment: nothing but its place."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotSequential(USED)


@dataclass(eq=False)
class LayerSegment:
    """A run of consecutive layers on one device; `why` they are not captured, if they are not."""

    paths: str
    units: Sequence[TransferUnit]
    device: torch.device
    why: str = ""

    def __str__(self) -> str:
        how = f"eager: {self.why}" if self.why else "captured"
        return f"segment: {self.paths} on {self.device}: {how}"


class LayerSegments:
    """The segments of a model, in the order of its layers."""

    def __init__(self, transfers: DeviceTransfers, segments: Sequence[LayerSegment]) -> None:
        self.transfers, self.segments = transfers, segments

    @property
    def captured(self) -> list[LayerSegment]:
        return [segment for segment in self.segments if not segment.why]

    def record(self, forward: Callable[[], Tensor], capture: Capture) -> Recorded:
        """A forward pass over inputs that stay in place, its segments captured.

        Where the model turns out not to be straight, none is, and they say why.
        """
        try:
            return Recorded(self.transfers, self.captured, forward, capture)
        except NotSequential as error:
            for segment in self.captured:
                segment.why = str(error)
            return Recorded(self.transfers, [], forward, capture)

    def describe(self) -> list[str]:
        return [str(segment) for segment in self.segments]


class Recorded:
    """A forward pass over inputs that stay in place; those of its segments are `inputs`."""

    def __init__(
        self,
        transfers: DeviceTransfers,
        segments: Sequence[LayerSegment],
        forward: Callable[[], Tensor],
        capture: Capture,
    ) -> None:
        self.transfers, self.forward = transfers, forward
        recordings = [Recording(transfers, segment) for segment in segments]
        self.recordings = {unit: each for each in recordings for unit in each.segment.units}
        self()
        for recording in recordings:
            recording.finish(capture)
        self.inputs = [tensor for recording in recordings for tensor in recording.inputs]
        self()

    def __call__(self) -> Tensor:
        with self.transfers.recorded(self.recordings):
            return self.forward()


@dataclass
class Call:
    """A layer's call: what it is handed and what it gives, each tensor by what stands for it."""

    unit: TransferUnit
    method: Callable[..., Any]
    given: Given
    made: Any


class Recording:
    """One segment in one forward pass: its layers' calls are noted once, then repeated together.

    `inputs` are in the order of the tensors that the first layer is handed. While notes are taken,
    `lasting` and `passing` say what stands for what it and the layer before were handed and gave,
    by the ids of tensors that `seen` keeps.
    """

    def __init__(self, transfers: DeviceTransfers, segment: LayerSegment) -> None:
        self.transfers, self.segment = transfers, segment
        self.first, self.last = segment.units[0], segment.units[-1]
        self.inputs: list[Tensor] = []
        self.calls: dict[TransferUnit, Call] = {}
        self.launch: Callable[[], Any] | None = None
        self.out: Any = None
        self.lasting: dict[int, Tensor] = {}
        self.passing: dict[int, Tensor] = {}
        self.seen: list[Tensor] = []

    def __call__(self, unit: TransferUnit, method: Callable[..., Any], given: Given) -> Any:
        """What a layer of the segment answers to whoever calls it."""
        if self.launch is None:
            return self.note(unit, method, given)
        if unit is self.first:
            for here, tensor in zip(self.inputs, leaves(given), strict=True):
                here.copy_(tensor, non_blocking=here.is_cuda)
            self.out = self.launch()
        if unit is not self.last:
            return self.calls[unit].made
        return self.transfers.carry(self.out, unit.onward)

    def note(self, unit: TransferUnit, method: Callable[..., Any], given: Given) -> Any:
        """Compute a layer, and note how to do so again.

        Raises NotStraight where it is not the next one, or is handed what neither the first layer
        was handed nor the one before it gave.
        """
        if [*self.calls, unit] != [*self.segment.units[: len(self.calls) + 1]]:
            raise NotSequential(ORDER)
        stand_in = self.place if unit is self.first else self.find
        held = changed(given, lambda item, _: self.there(item, stand_in))
        out = self.transfers.compute(unit, method, self.transfers.carry(given, unit.device))
        made = changed(out, lambda item, _: torch.empty(0).as_subclass(PlaceholderTensor))
        self.calls[unit] = Call(unit, method, held, made)
        self.seen += leaves(out)
        self.passing = {id(a): b for a, b in zip(leaves(out), leaves(made), strict=True)}
        return self.transfers.carry(out, unit.onward)

    def there(self, item: Tensor | Module, stand_in: Callable[[Tensor], Tensor]) -> Any:
        if isinstance(item, Tensor):
            return stand_in(item)
        return self.transfers.copy(item, self.segment.device)

    def place(self, tensor: Tensor) -> Tensor:
        """An input for what the first layer is handed."""
        here = torch.empty_like(tensor, device=self.segment.device)
        here.copy_(tensor)
        self.inputs.append(here)
        self.seen.append(tensor)
        self.lasting[id(tensor)] = here
        return here

    def find(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor that a later layer is handed."""
        found = self.passing.get(id(tensor), self.lasting.get(id(tensor)))
        if found is None:
            raise NotSequential(USED)
        return found

    def finish(self, capture: Capture) -> None:
        """Capture what was noted."""
        self.lasting, self.passing, self.seen = {}, {}, []
        self.launch = capture(self.repeat, self.segment.device)

    def repeat(self) -> Any:
        """All calls, each handed what the one before it gives."""
        out: Any = None
        real: Mapping[int, Tensor] = {}
        for call in self.calls.values():
            out = self.run(call, real)
            real = {id(a): b for a, b in zip(leaves(call.made), leaves(out), strict=True)}
        return out

    def run(self, call: Call, real: Mapping[int, Tensor]) -> Any:
        given = changed(call.given, lambda item, _: real.get(id(item), item))
        return self.transfers.compute(call.unit, call.method, given)


def leaves(value: Any) -> list[Tensor]:
    """The tensors that would cross a border with a value, in order."""
    found: list[Tensor] = []

    def keep(item: Tensor | Module, _: bool) -> Any:
        found.extend([item] if isinstance(item, Tensor) else [])
        return item

    changed(value, keep)
    return found
