"""Between host and device, without waiting.

A copy from or to ordinary memory makes the host wait for everything the device still has to do; a
copy through pinned memory does not. The loop moves its small lists of integers only through here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def to_device(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of these numbers on the device; the host does not wait for it."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def send(values: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of the host, copied to the device; the host does not wait for it."""
    if device.type != "cuda":
        return values.to(device, dtype)
    return values.to(dtype).pin_memory().to(device, non_blocking=True)


@dataclass
class DeviceToHostCopy:
    """Tensors on their way to the host. `wait` gives them as lists once they are there."""

    tensors: list[Tensor]
    event: torch.cuda.Event | None = None

    @classmethod
    def send(cls, *tensors: Tensor) -> DeviceToHostCopy:
        """Start the copies behind what the device has been given so far."""
        if not tensors or tensors[0].device.type != "cuda":
            return cls(list(tensors))
        homes = [torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors]
        for home, tensor in zip(homes, tensors, strict=True):
            home.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return cls(homes, event)

    def wait(self) -> list[Any]:
        """The values, after those of this step alone have come: later steps run on."""
        if self.event is not None:
            self.event.synchronize()
        return [tensor.tolist() for tensor in self.tensors]
