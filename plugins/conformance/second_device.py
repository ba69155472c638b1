"""A second device for machines that have one: cpu:1, in the CPU's memory, with tensors of its own.

torch drops a CPU's index, so that every tensor is on "cpu". While a `StandIn` is in force, tensors
that were made on cpu:1 or moved there say so, and so does all that is computed from them. As with
two GPUs, an operation on tensors of both is an error, whatever native kernels would make of it:
what passes has moved everything explicitly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from ostro.core.ops import Op
from ostro.plugins.conformance.kernel_parity import inside

CPU, SECOND = torch.device("cpu"), torch.device("cpu", 1)

ACROSS = frozenset({"copy_", "__set__", "_has_compatible_shallow_copy_type"})
"""What may be handed tensors of both devices: a copy, and a tensor that gets other data."""


@dataclass(frozen=True)
class Move:
    """A tensor that went from one device to the other."""

    source: torch.device
    target: torch.device
    dtype: torch.dtype
    shape: tuple[int, ...]


class StandIn(TorchFunctionMode):
    """What is on cpu:1: the storages, by address, that are alive. `moves` and `peak` (bytes on
    cpu:1) may be reset at any time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.moves: list[Move] = []
        self.peak = 0

    @property
    def nbytes(self) -> int:
        """Bytes on cpu:1 now."""
        self.held = {k: kept for k, kept in self.held.items() if not kept[0].expired()}
        return sum(size for _, size in self.held.values())

    def device(self, tensor: Tensor) -> torch.device:
        if tensor.device != CPU:
            return tensor.device
        known = self.held.get(tensor.untyped_storage()._cdata)
        return CPU if known is None or known[0].expired() else SECOND

    def take(self, tensor: Tensor) -> None:
        """Count a tensor to cpu:1."""
        storage = tensor.untyped_storage()
        if self.device(tensor) == CPU:
            self.held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
            self.peak = max(self.peak, self.nbytes)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if name == "__get__" and func.__self__ is torch.Tensor.device:
            return self.device(args[0])
        if name in ("to", "cpu"):
            return self.move(func, args, kwargs)
        if name == "numpy" and self.device(args[0]) == SECOND:
            raise TypeError("a tensor on cpu:1 has to be moved to the CPU first")
        asked = kwargs.get("device")
        if asked is not None:
            return self.adopt(func(*args, **{**kwargs, "device": here(asked)}), torch.device(asked))
        tensors = list(inside((args, kwargs)))
        device = self.device(tensors[0]) if name in ACROSS else self.common(name, tensors)
        return self.adopt(func(*args, **kwargs), device)

    def run(self, op: Op, *args: Any, **kwargs: Any) -> Any:
        """An operation of ours, whole: kernels for the CPU do not say which one they work on."""
        device = self.common(op.name, list(inside((args, kwargs))))
        with torch._C.DisableTorchFunction():
            return self.adopt(op.kernel(*args, **kwargs), device)

    def adopt(self, out: Any, device: torch.device) -> Any:
        """What was made on a device is there."""
        if device == SECOND:
            for tensor in inside([out]):
                self.take(tensor)
        return out

    def common(self, name: str, tensors: list[Tensor]) -> torch.device:
        """The one device of an operation's tensors; numbers on the CPU go with any."""
        devices = [(self.device(tensor), tensor.dim()) for tensor in tensors]
        if SECOND not in (device for device, _ in devices):
            return CPU
        if any(device == CPU and dim for device, dim in devices):
            shapes = [(str(self.device(t)), tuple(t.shape)) for t in tensors]
            raise RuntimeError(f"{name}: tensors on several devices: {shapes}")
        return SECOND

    def move(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        tensor = args[0]
        source, target = self.device(tensor), self.target(func, args, kwargs)
        kwargs = {k: here(x) if names_device(x) else x for k, x in kwargs.items()}
        out: Tensor = func(*(here(x) if names_device(x) else x for x in args), **kwargs)
        if target != source:
            out = out.clone() if shared(out, tensor) else out
            self.moves.append(Move(source, target, out.dtype, tuple(out.shape)))
        if target == SECOND:
            self.take(out)
        return out

    def target(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
        """Where a move goes: a device, another tensor's, or the tensor's own."""
        if func.__name__ == "cpu":
            return CPU
        for value in (*args[1:], *kwargs.values()):
            if isinstance(value, Tensor):
                return self.device(value)
            if names_device(value):
                return torch.device(value)
        return self.device(args[0])


def names_device(value: Any) -> bool:
    return isinstance(value, str | torch.device)


def here(device: Any) -> torch.device:
    """A device as torch is told of it."""
    return CPU if torch.device(device) == SECOND else torch.device(device)


def shared(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


@contextmanager
def second_device() -> Iterator[StandIn]:
    """A machine with two CPU devices, "cpu" and "cpu:1", neither of which packs for oneDNN."""
    with (
        patch("torch.cpu.device_count", return_value=2),
        patch("torch.backends.mkldnn.is_available", return_value=False),
        patch("torch.ops.mkldnn._is_mkldnn_bf16_supported", return_value=False),
        StandIn() as device,
        patch.object(Op, "__call__", lambda *args, **kwargs: device.run(*args, **kwargs)),
    ):
        yield device
