"""Host-device copies that do not block, free memory of devices, and sizes in bytes.

A copy from or to pageable memory blocks the host until the device has finished all its work. A copy
from or to pinned memory does not. All copies of the engine's loop use this module.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostro.core.errors import UsageError

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


def to_device(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a tensor on the device from numbers; the copy does not block the host."""
    # PyTorch's caching allocator reuses pinned memory only after the copy's stream has passed it,
    # so the buffer may be dropped here.
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def send(values: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A host tensor, copied to the device in another dtype; the copy does not block the host."""
    if device.type != "cuda":
        return values.to(device, dtype)
    return values.to(dtype).pin_memory().to(device, non_blocking=True)


@dataclass
class DeviceToHostCopy:
    """A copy of device tensors to the host; `wait` returns their values as lists."""

    tensors: list[Tensor]
    event: torch.cuda.Event | None = None

    @classmethod
    def send(cls, *tensors: Tensor) -> DeviceToHostCopy:
        """Enqueue the copies behind the work that the current stream has so far."""
        if not tensors or tensors[0].device.type != "cuda":
            return cls(list(tensors))
        copies = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        # To synchronize the stream would also wait for the next step, which runs by then.
        event = torch.cuda.Event()
        event.record()
        return cls(copies, event)

    def wait(self) -> list[Any]:
        """Block until these copies are complete; later work of the device goes on."""
        if self.event is not None:
            self.event.synchronize()
        return [tensor.tolist() for tensor in self.tensors]


def parse_size(text: str) -> float:
    """Bytes ("6GB", "512MiB") or, from 0 to 1, a share ("0.5"). Raises UsageError."""
    number = text.strip().rstrip("BbKkMmGgIi").strip()
    unit = text.strip()[len(number) :].strip().upper()
    try:
        value = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        raise UsageError(
            f"{text!r} is not a size; write 6GB, 512MiB, or a share such as 0.5"
        ) from None
    if not 0 < value < 2**60:
        raise UsageError(f"{text!r} is not a positive size")
    return value


def format_bytes(size: int) -> str:
    """A size in GB, MB, KB or bytes, for messages."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} bytes"


def free_bytes(device: torch.device) -> int:
    """The free memory of a device, in bytes; for the CPU that of the host."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") + cached_bytes()


def cached_bytes() -> int:
    """The page cache of Linux, in bytes, which it frees on demand; 0 on other systems."""
    try:
        with open("/proc/meminfo") as lines:
            sizes = dict(line.split(":") for line in lines)
        return int(sizes["Cached"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
