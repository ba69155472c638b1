"""Packed: the storage of a quantized weight in planes, the base class of most formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from ostro import Fused, Storage, resolve
from ostro.ops import Op, Target
from ostro.quant.planes import quant_matmul
from ostro.quant.planes.planes import CELL, Planes, pack_codes, unpack_codes

__all__ = ["CELL", "Packed", "Planes", "pack_codes", "unpack_codes"]


class Packed(Storage):
    """A weight [n, k], or [experts, n, k], in planes; computes in `dtype`.

    A format derives from it and adds `read`, which converts a checkpoint's tensors to planes, and
    `save`, which converts planes back. `order` int64 [k] is set if columns were permuted to make
    groups contiguous: column i of the planes is column order[i] of the weight.
    """

    def __init__(
        self, format: str, planes: Planes, dtype: torch.dtype, *, order: Tensor | None = None
    ) -> None:
        self.format, self.order = format, order
        self.weight: Any = planes  # `finalize` replaces it with the kernel's layout
        self.shape = planes.shape
        self.dtype, self.device = dtype, planes.scale.device
        facts = {"bits": planes.bits, "group": planes.group}
        is_grouped = len(self.shape) == 3
        kernels = quant_matmul.GROUPED_MATMUL if is_grouped else quant_matmul.MATMUL
        self.matmul_op = Op(kernels, **facts)
        self.matmul_parts_op = Fused(quant_matmul.MATMUL_PARTS, **facts)
        self.dequantize_op = Op(quant_matmul.DEQUANTIZE, **facts)

    @property
    def planes(self) -> Planes:
        """The planes; converted back if the kernel uses another layout."""
        planes: Planes = self.weight if isinstance(self.weight, Planes) else self.weight.planes()
        return planes

    def of(self, planes: Planes) -> Self:
        """A storage of the same format, dtype and order with other planes, not finalized."""
        storage = copy(self)
        Packed.__init__(storage, self.format, planes, self.dtype, order=self.order)
        return storage

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        rows = prod(self.shape[:-1])
        if (start, stop) in ((0, None), (0, rows)):
            return self.dequantized(self.weight).flatten(0, -2)
        if isinstance(self.weight, Planes):
            return self.dequantized(self.weight.rows().select(slice(start, stop)))
        return self.rows(torch.arange(rows)[start:stop])

    def dequantized(self, weight: Any) -> Tensor:
        """Dequantize planes, or the kernel's layout of them, with columns in original order."""
        values: Tensor = self.dequantize_op(weight, self.dtype)
        if self.order is None:
            return values
        ordered = torch.empty_like(values)
        ordered[..., self.order] = values
        return ordered

    def matmul(self, x: Tensor) -> Tensor:
        flat = self.permute_columns(x.reshape(-1, x.shape[-1]))
        y: Tensor = self.matmul_op(flat, self.weight)
        return y.view(*x.shape[:-1], self.shape[-2])

    @classmethod
    def matmul_parts(cls, storages: Sequence[Any], x: Tensor) -> Tensor:
        if all(has_parts_kernel(storage) for storage in storages):
            first = storages[0]
            flat = first.permute_columns(x.reshape(-1, x.shape[-1]))
            y = first.matmul_parts_op(flat, [storage.weight for storage in storages])
            if y is not None:
                return y.view(*x.shape[:-1], y.shape[-1])
        return super().matmul_parts(storages, x)

    def grouped(self, x: Tensor, expert_of_row: Tensor) -> Tensor:
        """x [t, k], expert_of_row [t] int64, ascending -> [t, n]."""
        y: Tensor = self.matmul_op(self.permute_columns(x), self.weight, expert_of_row)
        return y

    def permute_columns(self, x: Tensor) -> Tensor:
        """x with its columns in the order of the planes, and contiguous rows for the kernels."""
        if self.order is not None:
            return x.index_select(-1, self.order)
        return x if x.stride(-1) == 1 else x.contiguous()

    def rows(self, ids: Tensor) -> Tensor:
        selected = self.dequantized(self.weight.select(ids.flatten()))
        return selected.view(*ids.shape, self.shape[-1])

    def permute_rows(self, permute: Callable[[Tensor], Tensor]) -> Self:
        return self.of(self.planes.map(lambda tensor: permute(tensor).contiguous()))

    @property
    def has_kernel(self) -> bool:
        return not self.matmul_op.kernel.__module__.endswith(".naive")

    @property
    def nbytes(self) -> int:
        return int(self.weight.nbytes) + (0 if self.order is None else self.order.nbytes)

    @classmethod
    def fuse(cls, storages: Sequence[Any]) -> Storage | None:
        return join(storages, stack=False)

    @classmethod
    def stack(cls, storages: Sequence[Any]) -> Storage | None:
        return join(storages, stack=True)

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        self.dequantize_op.select(target)
        self.matmul_parts_op.select(target)
        choice = self.matmul_op.select(target)
        facts = self.matmul_op.facts
        layout = f"{facts['bits']} bits, groups of {facts['group']}"
        if choice.kernel.layout is not None and isinstance(self.weight, Planes):
            self.weight = resolve(choice.kernel.layout)(self.weight)
        return f"{self.format} ({layout}): {choice.kernel.name} ({choice.reason})"


def join(storages: Sequence[Packed], *, stack: bool) -> Packed | None:
    """Join storages into one. Returns None if their layouts, dtypes or orders differ."""
    first, *rest = storages
    for other in rest:
        same = type(other) is type(first) and other.planes.join_key == first.planes.join_key
        if not same or (other.format, other.dtype) != (first.format, first.dtype):
            return None
        if not equal_orders(other.order, first.order):
            return None
    return first.of(Planes.join([storage.planes for storage in storages], stack=stack))


def has_parts_kernel(storage: Storage) -> bool:
    """Return whether the kernel of `matmul_parts` may multiply this storage."""
    return isinstance(storage, Packed) and storage.order is None and storage.matmul_parts_op.on


def equal_orders(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a, b)
