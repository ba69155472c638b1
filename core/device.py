"""Devices: their choice, host-device copies that do not block, free memory, sizes in bytes.

A copy from or to pageable memory blocks the host until the device has finished all its work. A copy
from or to pinned memory does not. All copies of the engine's loop use this module.
"""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostro.core.errors import Unsupported, UsageError

HOST = torch.device("cpu")

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


def choose_device(name: str) -> torch.device:
    """The device of that name, with its index; "auto" is CUDA if available, else the CPU.

    Raises UsageError for an invalid name, Unsupported if the device does not exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name!r}: expected cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise Unsupported(f"--device {name}: expected cpu or cuda (for ROCm use cuda)")
    if (device.index or 0) >= torch.get_device_module(device).device_count():
        raise Unsupported(f"--device {name}: not found by torch; run `ostro doctor` for details")
    return with_index(device)


def with_index(device: torch.device) -> torch.device:
    """The device with its index, as tensors have it: "cuda" is the current one."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def current_device(device: torch.device) -> AbstractContextManager[object]:
    """Within the context, this thread launches its kernels on the device.

    Triton launches on the current device, which each thread has for itself, and not on that of its
    arguments.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def compute_in_float32(device: torch.device) -> None:
    """Let a CUDA device add in float32, and multiply float32 numbers without rounding them to TF32.

    By default cuBLAS may split a long sum and add its parts in the dtype of the result, and cuDNN's
    convolutions round float32 inputs to 10 bits of mantissa.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cudnn.allow_tf32 = False


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
        event.record(torch.cuda.current_stream(tensors[0].device))
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


def return_memory() -> None:
    """Return unused memory of this process to the system, and that of GPUs to their drivers."""
    # Errors and their tracebacks form cycles, which hold the tensors of failed steps.
    gc.collect()
    with suppress(OSError, AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def cached_bytes() -> int:
    """The page cache of Linux, in bytes, which it frees on demand; 0 on other systems."""
    try:
        with open("/proc/meminfo") as lines:
            sizes = dict(line.split(":") for line in lines)
        return int(sizes["Cached"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
