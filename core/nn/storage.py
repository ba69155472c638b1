"""Storage: the memory layout of a weight and its matmul.

A format implements `dequantize`; the defaults of all other operations dequantize blocks of rows,
and a kernel may replace each of them. A storage is independent of the module that holds it, of
adapters, and of the other parts of a linear.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from ostro.core.errors import CheckpointError, Unsupported
from ostro.core.ops import Target
from ostro.core.records import TensorInfo

ROWS = 1024  # rows that the defaults dequantize at a time: a few MB, which stay in the cache


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The tensors of one weight in a checkpoint, by suffix ("weight", "scales"...), as input of a
    storage's `read`.

    `shape` is the [n, k] that the model expects, `settings` the quantization config of the
    checkpoint. The storage is to be on `device` and to compute in `dtype`.
    """

    tensors: Mapping[str, Tensor]
    infos: Mapping[str, TensorInfo]
    shape: tuple[int, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    device: torch.device
    dtype: torch.dtype

    def fault(self, what: str, suffix: str | None = None) -> CheckpointError:
        """The error for a fault, `what`, of the tensor of that suffix, or of the first tensor."""
        info = next(iter(self.infos.values())) if suffix is None else self.infos[suffix]
        return CheckpointError(f"{info.file}: {info.name} {what}")

    def number(self, suffix: str) -> float:
        """The value of a tensor of one number, an int for integer types.

        Raises the fault of a tensor of another size, and of NaN and Inf.
        """
        held = self.tensors[suffix].flatten()
        if held.numel() != 1 or not isfinite(held.item()):
            raise self.fault(
                f"is {held.tolist()!s:.40}, expected one finite number; the file is damaged; "
                "download it again",
                suffix,
            )
        return held.item()


class Storage(ABC):
    """A weight of `shape` [n, k], or [experts, n, k], that computes in `dtype` on `device`."""

    format: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows start..stop in `dtype`, [rows, k]; the rows of all experts count end to end."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the device, including copies that are kept for speed."""

    @property
    def has_kernel(self) -> bool:
        """Whether `matmul` runs a kernel of the format instead of dequantizing the weight first."""
        return False

    @abstractmethod
    def save(self) -> dict[str, Tensor]:
        """The tensors by suffix ("weight", ...), equal to those that were read."""

    def matmul(self, x: Tensor) -> Tensor:
        """x [..., k] -> [..., n]: x W^T."""
        n = self.shape[-2]
        blocks = [x @ self.dequantize(i, min(i + ROWS, n)).t() for i in range(0, n, ROWS)]
        return torch.cat(blocks, -1)

    def matmul_t(self, x: Tensor) -> Tensor:
        """x [t, h, n/h] -> [t, h, k]: x W for each head, for absorbed latent attention."""
        heads, width = x.shape[-2:]
        weight = self.dequantize().view(heads, width, -1)
        return torch.einsum("thn,hnk->thk", x, weight)

    def matmul_h(self, x: Tensor) -> Tensor:
        """x [t, h, k] -> [t, h, n/h]: x W^T for each head, with the rows of that head."""
        weight = self.dequantize().view(x.shape[1], -1, x.shape[2])
        return torch.einsum("thk,hnk->thn", x, weight)

    def rows(self, ids: Tensor) -> Tensor:
        """ids [t] int64 -> [t, k]: embedding lookup."""
        out = torch.empty(*ids.shape, self.shape[-1], dtype=self.dtype, device=self.device)
        for i, row in enumerate(ids.flatten().tolist()):
            out.view(-1, self.shape[-1])[i] = self.dequantize(row, row + 1)[0]
        return out

    def grouped(self, x: Tensor, expert_of_row: Tensor) -> Tensor:
        """x [t, k], expert_of_row [t] int64 -> [t, n]: each row times the weight of its expert."""
        n = self.shape[-2]
        out = x.new_empty(x.shape[0], n)
        for expert in expert_of_row.unique().tolist():
            mine = expert_of_row == expert
            out[mine] = x[mine] @ self.dequantize(expert * n, (expert + 1) * n).t()
        return out

    def row_norms_sq(self) -> Tensor:
        """The squared L2 norm of every row, [n] float32; DoRA adapters need it."""
        n = self.shape[-2]
        blocks = [
            self.dequantize(i, min(i + ROWS, n)).float().square().sum(-1) for i in range(0, n, ROWS)
        ]
        return torch.cat(blocks)

    def permute_rows(self, permute: Callable[[Tensor], Tensor]) -> Storage | None:
        """The weight with its rows in another order, or None where the format cannot reorder them.

        `permute` reorders the first axis of a tensor [n, ...].
        """
        return None

    @classmethod
    def fuse(cls, storages: Sequence[Any]) -> Storage | None:
        """One storage for the rows of all parts, end to end, or None where they cannot be fused."""
        return None

    @classmethod
    def stack(cls, storages: Sequence[Any]) -> Storage | None:
        """One storage [experts, n, k] of the storages of single experts, or None."""
        return None

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        """Repack for the device and choose kernels, once, after fusing; may be called again.

        `target` names the device and dtype of this storage. `embedding` is set where `rows` is
        called as well as `matmul`. Returns the name of the kernel and the reason for the choice.
        Raises Unsupported where the target is deterministic: the defaults are not.
        """
        if target.deterministic:
            raise Unsupported(
                f"{self.format} weights have no kernel that is reproducible row by row; leave "
                "--deterministic out"
            )
        return f"{self.format}: dequantized in blocks of rows"
