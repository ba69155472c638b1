"""Key up-projections of GGUF files, which hold the transpose of each head's matrix."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ostro import Storage
from ostro.errors import CheckpointError
from ostro.ops import Target


@dataclass(frozen=True)
class StackedHeads:
    """A matrix per head, [heads, rows, k] in GGUF files <-> one matrix [heads * rows, k]."""

    heads: int
    packed: bool = field(default=True, init=False)

    def read(self, tensor: Tensor) -> Tensor:
        return heads_of(tensor, self.heads).flatten(0, 1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (self.heads, -1))


@dataclass(frozen=True)
class TransposedHeads:
    """The transpose per head, [heads, k, rows] in GGUF files <-> one matrix [heads * rows, k].

    Floats are transposed while they are read. Quantized blocks run along the file's rows and cannot
    be transposed: `wrap` keeps them in the file's layout.
    """

    heads: int
    packed: bool = field(default=False, init=False)

    @property
    def stored(self) -> StackedHeads:
        return StackedHeads(self.heads)

    def read(self, tensor: Tensor) -> Tensor:
        return heads_of(tensor, self.heads).transpose(1, 2).flatten(0, 1)

    def write(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (self.heads, -1)).transpose(1, 2)

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        n, k = shape
        return self.heads * k, n // self.heads

    def wrap(self, storage: Storage) -> Storage:
        return TransposedStorage(storage, self.heads)


def heads_of(tensor: Tensor, heads: int) -> Tensor:
    """The tensor [heads, rows, k]. Raises CheckpointError for another shape."""
    if tensor.dim() != 3 or tensor.shape[0] != heads:
        raise CheckpointError(
            f"a weight of shape {tuple(tensor.shape)} does not hold a matrix for each of {heads} "
            "heads; convert the file again with a current llama.cpp"
        )
    return tensor


class TransposedStorage(Storage):
    """A weight [n, k] whose `storage` [heads * k, n / heads] holds the transpose of each head."""

    def __init__(self, storage: Storage, heads: int) -> None:
        stored_rows, width = storage.shape
        self.storage, self.heads = storage, heads
        self.shape = heads * width, stored_rows // heads
        self.format, self.dtype, self.device = storage.format, storage.dtype, storage.device

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        stored = self.storage.dequantize().unflatten(0, (self.heads, -1))
        return stored.transpose(1, 2).flatten(0, 1)[start:stop]

    def matmul(self, x: Tensor) -> Tensor:
        """x [..., k] -> [..., n]; every head has the same input."""
        rows = x.reshape(-1, 1, x.shape[-1]).expand(-1, self.heads, -1)
        return self.matmul_h(rows).reshape(*x.shape[:-1], -1)

    def matmul_t(self, x: Tensor) -> Tensor:
        return self.storage.matmul_h(x)

    def matmul_h(self, x: Tensor) -> Tensor:
        return self.storage.matmul_t(x)

    def row_norms_sq(self) -> Tensor:
        return self.dequantize().float().square().sum(-1)

    @property
    def nbytes(self) -> int:
        return self.storage.nbytes

    def save(self) -> dict[str, Tensor]:
        """The tensors of the file, transposed as in the file."""
        return self.storage.save()

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        return f"{self.storage.finalize(target, embedding=embedding)}, transposed per head"
