"""Storage: the memory layout of a weight and the operations on it, such as matmul.

A format implements `dequantize`. The default of every other operation dequantizes blocks of rows; a
format overrides those for which it has a kernel. A storage is independent of the module that uses
it, of adapters, and of the other parts of a linear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite, prod
from typing import Any, Protocol

import torch
from torch import Tensor

from ostro.core.errors import CheckpointError, Unsupported
from ostro.core.ops import Target
from ostro.core.records import TensorInfo
from ostro.core.results import InvalidResult

ROWS = 1024  # rows that the defaults dequantize at a time: a few MB, which fit the CPU's cache


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The tensors of one weight in a checkpoint: the input of a storage's `read`.

    tensors, infos  by suffix ("weight", "scales", ...)
    shape           the [n, k] that the model expects
    settings        the quantization config of the checkpoint
    device, dtype   where the storage must be, and in which dtype it computes
    """

    tensors: Mapping[str, Tensor]
    infos: Mapping[str, TensorInfo]
    shape: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device
    dtype: torch.dtype

    def fault(self, what: str, suffix: str | None = None) -> CheckpointError:
        """The error "FILE: TENSOR what" for the tensor of that suffix, or the first tensor."""
        info = next(iter(self.infos.values())) if suffix is None else self.infos[suffix]
        return CheckpointError(f"{info.file}: {info.name} {what}")

    def number(self, suffix: str) -> float:
        """The value of a tensor with one element; an int for integer dtypes.

        Raises CheckpointError if it has another size or is NaN or Inf.
        """
        value = self.tensors[suffix].flatten()
        if value.numel() != 1 or not isfinite(value.item()):
            raise self.fault(
                f"is {value.tolist()!s:.40}, expected one finite number; the file is damaged; "
                "download it again",
                suffix,
            )
        return value.item()


class Storage(ABC):
    """A weight of `shape` [n, k], or [experts, n, k], that computes in `dtype` on `device`."""

    format: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows start..stop in `dtype`, [rows, k]; rows of experts are concatenated."""

    def checked_rows(self, start: int = 0, stop: int | None = None) -> Tensor:
        """The result of `dequantize`. Raises InvalidResult if it has another shape or dtype."""
        rows = self.dequantize(start, stop)
        count = (prod(self.shape[:-1]) if stop is None else stop) - start
        self.check("dequantize", rows, (count, self.shape[-1]), self.dtype)
        return rows

    def check(
        self, operation: str, value: object, shape: Sequence[int], dtype: torch.dtype
    ) -> None:
        """Raise InvalidResult unless the result of an operation has this shape and dtype."""
        if not isinstance(value, Tensor) or value.shape != (*shape,) or value.dtype != dtype:
            expected = f"{[*shape]} {str(dtype).removeprefix('torch.')}"
            raise InvalidResult(type(self), operation, value, expected)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the device, including all copies."""

    @property
    def has_kernel(self) -> bool:
        """Whether `matmul` runs a kernel of the format instead of dequantizing the weight first."""
        return False

    @abstractmethod
    def save(self) -> dict[str, Tensor]:
        """The tensors by suffix ("weight", ...), equal to the tensors that were read."""

    def matmul(self, x: Tensor) -> Tensor:
        """x [..., k] -> [..., n]: x W^T."""
        n = self.shape[-2]
        blocks = [x @ self.checked_rows(i, min(i + ROWS, n)).t() for i in range(0, n, ROWS)]
        return torch.cat(blocks, -1)

    @classmethod
    def matmul_parts(cls, storages: Sequence[Any], x: Tensor) -> Tensor:
        """x [..., k] -> [..., n of all storages]: their products, concatenated."""
        products = [storage.matmul(x) for storage in storages]
        for storage, product in zip(storages, products, strict=True):
            storage.check("matmul", product, (*x.shape[:-1], storage.shape[-2]), x.dtype)
        return torch.cat(products, -1)

    def matmul_t(self, x: Tensor) -> Tensor:
        """x [t, h, n/h] -> [t, h, k]: x W for each head, for absorbed latent attention."""
        heads, width = x.shape[-2:]
        weight = self.checked_rows().view(heads, width, -1)
        return torch.einsum("thn,hnk->thk", x, weight)

    def matmul_h(self, x: Tensor) -> Tensor:
        """x [t, h, k] -> [t, h, n/h]: x W^T for each head, with the rows of the head."""
        weight = self.checked_rows().view(x.shape[1], -1, x.shape[2])
        return torch.einsum("thk,hnk->thn", x, weight)

    def rows(self, ids: Tensor) -> Tensor:
        """ids [t] int64 -> [t, k]: embedding lookup."""
        out = torch.empty(*ids.shape, self.shape[-1], dtype=self.dtype, device=self.device)
        for i, row in enumerate(ids.flatten().tolist()):
            out.view(-1, self.shape[-1])[i] = self.checked_rows(row, row + 1)[0]
        return out

    def grouped(self, x: Tensor, expert_of_row: Tensor) -> Tensor:
        """x [t, k], expert_of_row [t] int64 -> [t, n]: each row times the weight of its expert."""
        n = self.shape[-2]
        out = x.new_empty(x.shape[0], n)
        for expert in expert_of_row.unique().tolist():
            rows = expert_of_row == expert
            out[rows] = x[rows] @ self.checked_rows(expert * n, (expert + 1) * n).t()
        return out

    def row_norms_sq(self) -> Tensor:
        """The squared L2 norm of every row, [n] float32, for DoRA adapters."""
        n = self.shape[-2]
        blocks = [
            self.checked_rows(i, min(i + ROWS, n)).float().square().sum(-1)
            for i in range(0, n, ROWS)
        ]
        return torch.cat(blocks)

    def permute_rows(self, permute: Callable[[Tensor], Tensor]) -> Storage | None:
        """The weight with permuted rows, or None if the format does not support it.

        `permute` permutes the first axis of a tensor [n, ...].
        """
        return None

    @classmethod
    def fuse(cls, storages: Sequence[Any]) -> Storage | None:
        """Concatenate the rows of all parts in one storage; None if they cannot be fused."""
        return None

    @classmethod
    def stack(cls, storages: Sequence[Any]) -> Storage | None:
        """Stack the storages of experts as one of [experts, n, k]; None if they cannot be."""
        return None

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        """Convert to the kernel's layout and select kernels, after fusing; may be called again.

        `target` has the device and dtype of this storage. `embedding` is True if `rows` is called
        as well as `matmul`. Returns the name of the kernel and the reason for the choice. Raises
        Unsupported if the target is deterministic: the default operations are not batch-invariant.
        """
        if target.deterministic:
            raise Unsupported(
                f"{self.format} weights have no deterministic kernel; remove --deterministic"
            )
        return f"{self.format}: dequantized in blocks of rows"


class StorageClass(Protocol):
    """`Quantizer.storage`: a class of storages."""

    def read(self, stored: Stored, /) -> Storage:
        """The storage of what a checkpoint holds for one part of a linear."""


class QuantizingStorageClass(StorageClass, Protocol):
    """`Quantizer.storage` of a quantizer that makes formats."""

    def quantize(
        self, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None, /
    ) -> Storage:
        """Quantize a float weight [..., n, k] to a format of the record's `makes`.

        dtype: that of the computation. importance [k] float32: weights of the errors by column.
        """
