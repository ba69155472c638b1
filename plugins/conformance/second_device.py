"""A simulated second device, cpu:1, for tests of placement on machines with one device.

torch drops the index of a CPU device, so every tensor is on "cpu". While a `SimulatedDevice` is
active, tensors that were created on cpu:1 or moved there report that device, as do results computed
from them. As with two GPUs, an operation on tensors of both devices is an error, so a test passes
only if all transfers are explicit.
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
from ostro.plugins.conformance.kernel_parity import tensors_in

CPU, SECOND = torch.device("cpu"), torch.device("cpu", 1)

ACROSS = frozenset({"copy_", "__set__", "_has_compatible_shallow_copy_type"})
"""Functions that accept tensors of both devices: copies, and assignment of `Tensor.data`."""


@dataclass(frozen=True)
class Move:
    """A transfer of a tensor between devices."""

    source: torch.device
    target: torch.device
    dtype: torch.dtype
    shape: tuple[int, ...]


class SimulatedDevice(TorchFunctionMode):
    """Tracks the tensors on cpu:1, by the address of their live storages.

    Tests may reset `moves` and `peak` (bytes on cpu:1) at any time.
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

    def add(self, tensor: Tensor) -> None:
        """Mark a tensor as on cpu:1."""
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
            raise TypeError("a tensor on cpu:1 must be moved to the CPU first")
        requested = kwargs.get("device")
        if requested is not None:
            return self.mark(
                func(*args, **{**kwargs, "device": physical(requested)}), torch.device(requested)
            )
        tensors = list(tensors_in((args, kwargs)))
        device = self.device(tensors[0]) if name in ACROSS else self.common(name, tensors)
        return self.mark(func(*args, **kwargs), device)

    def run(self, op: Op, *args: Any, **kwargs: Any) -> Any:
        """Run an ostro operation as a unit: its CPU kernels do not dispatch through torch."""
        device = self.common(op.name, list(tensors_in((args, kwargs))))
        with torch._C.DisableTorchFunction():
            return self.mark(op.kernel(*args, **kwargs), device)

    def mark(self, out: Any, device: torch.device) -> Any:
        """Mark the tensors of a result as on `device`."""
        if device == SECOND:
            for tensor in tensors_in([out]):
                self.add(tensor)
        return out

    def common(self, name: str, tensors: list[Tensor]) -> torch.device:
        """The device of an operation's tensors; CPU scalars combine with any device.

        Raises RuntimeError for tensors on several devices.
        """
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
        kwargs = {k: physical(x) if names_device(x) else x for k, x in kwargs.items()}
        out: Tensor = func(*(physical(x) if names_device(x) else x for x in args), **kwargs)
        if target != source:
            out = out.clone() if shared(out, tensor) else out
            self.moves.append(Move(source, target, out.dtype, tuple(out.shape)))
        if target == SECOND:
            self.add(out)
        return out

    def target(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
        """The target of a transfer: a device argument, another tensor's device, or the tensor's
        own.
        """
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


def physical(device: Any) -> torch.device:
    """The device that torch receives in place of a simulated one."""
    return CPU if torch.device(device) == SECOND else torch.device(device)


def shared(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


@contextmanager
def second_device() -> Iterator[SimulatedDevice]:
    """Simulate a machine with two CPU devices, "cpu" and "cpu:1", without packing for oneDNN."""
    with (
        patch("torch.cpu.device_count", return_value=2),
        patch("torch.backends.mkldnn.is_available", return_value=False),
        patch("torch.ops.mkldnn._is_mkldnn_bf16_supported", return_value=False),
        SimulatedDevice() as device,
        patch.object(Op, "__call__", lambda *args, **kwargs: device.run(*args, **kwargs)),
    ):
        yield device
