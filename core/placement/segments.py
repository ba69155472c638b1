"""Segments of a model whose layers are split over devices: runs of layers, each captured as one.

A CUDA graph belongs to one device, so a split model has one graph per run of layers. Its forward is
not rewritten: it still calls its layers one by one. The layers of a captured segment compute
nothing when they are called. The call of the first copies its arguments to the inputs of the graph
and launches it; the call of the last returns the results. Everything around the segments runs
eagerly on the same streams: a copy between two GPUs makes the stream of each wait for the other's,
and the host for neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ostro.core.placement.offload import TransferUnit
from ostro.core.placement.transfers import DeviceTransfers, Given, changed

USED = "the results of its layers are used between them"
ORDER = "its layers are not called once each, in order"

LEAST = 4
"""Layers of the smallest segment that is captured: shorter ones save less than a launch costs."""

Capture = Callable[[Callable[[], Any], torch.device], Callable[[], Any]]
"""From a call over inputs that stay in place to one that repeats it; see `Graphs.capture`."""


Forward = Callable[[], tuple[Tensor, ...]]
"""A forward pass of a model."""


class NotSequential(Exception):
    """A model does more than call its layers in order, each with the results of the one before."""


class PlaceholderTensor(Tensor):
    """Stands for the result of a layer that has not been computed.

    Any operation on it raises: the forward would use a number that does not exist yet.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotSequential(USED)


@dataclass(eq=False)
class LayerSegment:
    """A run of consecutive layers on one device; `why` is the reason if they are not captured."""

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

    def record(self, forward: Forward, capture: Capture) -> Recorded:
        """A forward pass over inputs that stay in place, with its segments captured.

        No segment of a model that is not sequential is captured; their `why` is the reason.
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
    """A forward pass over inputs that stay in place; `inputs` are those of its segments."""

    def __init__(
        self,
        transfers: DeviceTransfers,
        segments: Sequence[LayerSegment],
        forward: Forward,
        capture: Capture,
    ) -> None:
        self.transfers, self.forward = transfers, forward
        recordings = [Recording(transfers, segment) for segment in segments]
        self.recordings = {unit: each for each in recordings for unit in each.segment.units}
        # The recording pass: each `Recording` computes its layers and records their calls.
        self()
        for recording in recordings:
            recording.finish(capture)
        self.inputs = [tensor for recording in recordings for tensor in recording.inputs]
        self()

    def __call__(self) -> tuple[Tensor, ...]:
        with self.transfers.recorded(self.recordings):
            return self.forward()


@dataclass
class Call:
    """The call of a layer: its arguments and its results, with placeholders for tensors."""

    unit: TransferUnit
    method: Callable[..., Any]
    given: Given
    made: Any


class Recording:
    """One segment in one forward pass: records the calls of its layers, then captures them as one.

    `inputs` are in the order of the first layer's arguments. During the recording, `lasting` maps
    the first layer's arguments to inputs, and `passing` the results of the layer before to
    placeholders; both by id. `seen` keeps these tensors alive, so that no id is reused.
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
        """The result of a layer of the segment, for its caller."""
        if self.launch is None:
            return self.record(unit, method, given)
        if unit is self.first:
            for here, tensor in zip(self.inputs, leaves(given), strict=True):
                here.copy_(tensor, non_blocking=here.is_cuda)
            self.out = self.launch()
        if unit is not self.last:
            return self.calls[unit].made
        return self.transfers.move_to(self.out, unit.onward)

    def record(self, unit: TransferUnit, method: Callable[..., Any], given: Given) -> Any:
        """Compute a layer and record its call.

        Raises NotSequential if it is not the next one, or gets a tensor that is neither an argument
        of the first layer nor a result of the one before it.
        """
        # The graph runs the layers in this order: any other order would give other results.
        if [*self.calls, unit] != [*self.segment.units[: len(self.calls) + 1]]:
            raise NotSequential(ORDER)
        # The captured calls must read inputs and each other's results, not this call's tensors.
        substitute = self.make_input if unit is self.first else self.find
        recorded = changed(given, lambda item, _: self.substitute(item, substitute))
        out = self.transfers.compute(unit, method, self.transfers.move_to(given, unit.device))
        made = changed(out, lambda item, _: torch.empty(0).as_subclass(PlaceholderTensor))
        self.calls[unit] = Call(unit, method, recorded, made)
        self.seen += leaves(out)
        self.passing = {id(a): b for a, b in zip(leaves(out), leaves(made), strict=True)}
        return self.transfers.move_to(out, unit.onward)

    def substitute(self, item: Tensor | Module, replace: Callable[[Tensor], Tensor]) -> Any:
        """The replacement of an argument: of a tensor by `replace`, of a module on its device."""
        if isinstance(item, Tensor):
            return replace(item)
        return self.transfers.copy(item, self.segment.device)

    def make_input(self, tensor: Tensor) -> Tensor:
        """Make the input for an argument of the first layer."""
        here = torch.empty_like(tensor, device=self.segment.device)
        here.copy_(tensor)
        self.inputs.append(here)
        self.seen.append(tensor)
        self.lasting[id(tensor)] = here
        return here

    def find(self, tensor: Tensor) -> Tensor:
        """The input or placeholder for an argument of a later layer."""
        found = self.passing.get(id(tensor), self.lasting.get(id(tensor)))
        if found is None:
            raise NotSequential(USED)
        return found

    def finish(self, capture: Capture) -> None:
        """Capture the recorded calls."""
        # The tensors of the recording pass are no longer needed: free their memory.
        self.lasting, self.passing, self.seen = {}, {}, []
        self.launch = capture(self.repeat, self.segment.device)

    def repeat(self) -> Any:
        """Run all calls, each with the results of the one before."""
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
    """The tensors of a value that a transfer would move, in order."""
    found: list[Tensor] = []

    def collect(item: Tensor | Module, _: bool) -> Any:
        if isinstance(item, Tensor):
            found.append(item)
        return item

    changed(value, collect)
    return found
