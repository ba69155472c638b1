"""Packed: a weight in planes, whatever format it came in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from ostro import Storage, resolve
from ostro.ops import Op, Target
from ostro.quant.planes import quant_matmul
from ostro.quant.planes.planes import CELL, Planes, pack_codes, unpack_codes

__all__ = ["CELL", "Packed", "Planes", "pack_codes", "unpack_codes"]


class Packed(Storage):
    """A weight [n, k], or [experts, n, k], in planes, that computes in `dtype`.

    A format derives from it and brings `read`, which makes planes of a checkpoint's tensors, and
    `save`, which makes the tensors of the planes again. `order` int64 [k], where columns were moved
    so that groups are neighbours, says which column of the weight stands at each place.
    """

    def __init__(
        self, format: str, planes: Planes, dtype: torch.dtype, *, order: Tensor | None = None
    ) -> None:
        self.format, self.order = format, order
        self.held: Any = planes  # or what a kernel lays out in their place
        self.shape = planes.shape
        self.dtype, self.device = dtype, planes.scale.device
        facts = {"bits": planes.bits, "group": planes.group}
        kernels = quant_matmul.GROUPED if len(self.shape) == 3 else quant_matmul.PRODUCT
        self.times = Op(kernels, **facts)
        self.unpack = Op(quant_matmul.DEQUANTIZE, **facts)

    @property
    def planes(self) -> Planes:
        """The planes as they were given; made again where a kernel holds them otherwise."""
        planes: Planes = self.held if isinstance(self.held, Planes) else self.held.planes()
        return planes

    def of(self, planes: Planes) -> Self:
        """A storage like this one of other planes, not finalized."""
        made = copy(self)
        Packed.__init__(made, self.format, planes, self.dtype, order=self.order)
        return made

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        rows = prod(self.shape[:-1])
        if (start, stop) in ((0, None), (0, rows)):
            return self.floats(self.held).flatten(0, -2)
        if isinstance(self.held, Planes):
            return self.floats(self.held.rows().take(slice(start, stop)))
        return self.rows(torch.arange(rows)[start:stop])

    def floats(self, held: Any) -> Tensor:
        """The weights of planes, or of what a kernel holds in their place."""
        weight: Tensor = self.unpack(held, self.dtype)
        if self.order is None:
            return weight
        placed = torch.empty_like(weight)
        placed[..., self.order] = weight
        return placed

    def matmul(self, x: Tensor) -> Tensor:
        flat = self.moved(x.reshape(-1, x.shape[-1]))
        y: Tensor = self.times(flat, self.held)
        return y.view(*x.shape[:-1], self.shape[-2])

    def grouped(self, x: Tensor, expert_of_row: Tensor) -> Tensor:
        """x [t, k], expert_of_row [t] int64, ascending -> [t, n]."""
        y: Tensor = self.times(self.moved(x), self.held, expert_of_row)
        return y

    def moved(self, x: Tensor) -> Tensor:
        """x with its columns where those of the planes are."""
        return x if self.order is None else x.index_select(-1, self.order)

    def rows(self, ids: Tensor) -> Tensor:
        return self.floats(self.held.take(ids.flatten())).view(*ids.shape, self.shape[-1])

    def permute_rows(self, permute: Callable[[Tensor], Tensor]) -> Self:
        return self.of(self.planes.map(lambda tensor: permute(tensor).contiguous()))

    @property
    def has_kernel(self) -> bool:
        return not self.times.kernel.__module__.endswith(".naive")

    @property
    def nbytes(self) -> int:
        return int(self.held.nbytes) + (0 if self.order is None else self.order.nbytes)

    @classmethod
    def fuse(cls, storages: Sequence[Any]) -> Storage | None:
        return join(storages, stack=False)

    @classmethod
    def stack(cls, storages: Sequence[Any]) -> Storage | None:
        return join(storages, stack=True)

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        self.unpack.select(target)
        choice = self.times.select(target)
        held = f"{self.times.facts['bits']} bits, groups of {self.times.facts['group']}"
        if choice.kernel.layout is not None and isinstance(self.held, Planes):
            self.held = resolve(choice.kernel.layout)(self.held)
        return f"{self.format} ({held}): {choice.kernel.name} ({choice.reason})"


def join(storages: Sequence[Packed], *, stack: bool) -> Packed | None:
    """One storage of several, where all are of one kind."""
    first, *rest = storages
    for other in rest:
        same = type(other) is type(first) and other.planes.kind == first.planes.kind
        if not same or (other.format, other.dtype) != (first.format, first.dtype):
            return None
        if not alike(other.order, first.order):
            return None
    return first.of(Planes.join([storage.planes for storage in storages], stack=stack))


def alike(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
