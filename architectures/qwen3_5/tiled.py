"""Value heads of GGUF files, whose order is tiled: the first of each key head, then the second.

Checkpoints of the hub group value heads by key head. The order concerns rows of some tensors and
columns of others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostro import HeadRows, Storage
from ostro.architectures.qwen3_next.names import Filters, Rate
from ostro.errors import CheckpointError
from ostro.ops import Target


@dataclass(frozen=True)
class TiledRows:
    """Rows from `start` on are value heads of `size` rows, tiled in the file and grouped here.

    `first` is a transform of the file's tensor that precedes the change of the order.
    """

    key_heads: int
    share: int
    size: int = 1
    start: int = 0
    first: HeadRows | Filters | Rate | None = None

    @property
    def packed(self) -> bool:
        return self.first is None or self.first.packed

    def read(self, tensor: Tensor) -> Tensor:
        tensor = tensor if self.first is None else self.first.read(tensor)
        rows = self.start + self.key_heads * self.share * self.size
        if tensor.dim() == 0 or tensor.shape[0] != rows:
            raise CheckpointError(f"a tensor of shape {tuple(tensor.shape)}, expected {rows} rows")
        return self.reorder(tensor, (self.share, self.key_heads))

    def write(self, tensor: Tensor) -> Tensor:
        tensor = self.reorder(tensor, (self.key_heads, self.share))
        return tensor if self.first is None else self.first.write(tensor)

    def reorder(self, tensor: Tensor, heads: tuple[int, int]) -> Tensor:
        others, values = tensor[: self.start], tensor[self.start :]
        values = values.unflatten(0, (*heads, self.size)).transpose(0, 1).flatten(0, 2)
        return torch.cat((others, values))


@dataclass(frozen=True)
class TiledColumns:
    """Columns are value heads, tiled in the file and grouped here.

    Floats are reordered while they are read. Quantized blocks run along the columns: `wrap` keeps
    the order of the file, and reorders the inputs instead.
    """

    key_heads: int
    share: int
    packed: bool = field(default=False, init=False)

    @property
    def stored(self) -> None:
        return None

    def read(self, tensor: Tensor) -> Tensor:
        if tensor.dim() != 2 or tensor.shape[1] % (self.key_heads * self.share):
            raise CheckpointError(
                f"a weight of shape {tuple(tensor.shape)} does not have columns of "
                f"{self.key_heads * self.share} value heads"
            )
        return reorder_columns(tensor, self.share, self.key_heads)

    def write(self, tensor: Tensor) -> Tensor:
        return reorder_columns(tensor, self.key_heads, self.share)

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape

    def wrap(self, storage: Storage) -> Storage:
        return TiledStorage(storage, self.key_heads, self.share)


def reorder_columns(x: Tensor, outer: int, inner: int) -> Tensor:
    """Columns [outer, inner, size] -> [inner, outer, size]."""
    return x.unflatten(-1, (outer, inner, -1)).transpose(-3, -2).flatten(-3)


class TiledStorage(Storage):
    """A weight [n, k] with grouped value heads as columns; `storage` has them in tiled order."""

    def __init__(self, storage: Storage, key_heads: int, share: int) -> None:
        self.storage, self.key_heads, self.share = storage, key_heads, share
        self.shape, self.format = storage.shape, storage.format
        self.dtype, self.device = storage.dtype, storage.device

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        rows = self.storage.dequantize(start, stop)
        return reorder_columns(rows, self.share, self.key_heads)

    def matmul(self, x: Tensor) -> Tensor:
        return self.storage.matmul(reorder_columns(x, self.key_heads, self.share))

    def row_norms_sq(self) -> Tensor:
        return self.storage.row_norms_sq()

    @property
    def has_kernel(self) -> bool:
        return self.storage.has_kernel

    @property
    def nbytes(self) -> int:
        return self.storage.nbytes

    def save(self) -> dict[str, Tensor]:
        """The tensors of the file, in its order."""
        return self.storage.save()

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        return f"{self.storage.finalize(target, embedding=embedding)}, inputs in tiled order"
