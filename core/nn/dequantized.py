"""Dequantized: storage of quantized weights that have no kernel and are dequantized on use."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from ostro.core.nn.storage import Storage, Stored
from ostro.core.ops import Target


class Dequantized(Storage):
    """A quantized weight [n, k] in its checkpoint layout; a matmul dequantizes blocks of rows.

    `tensors` hold the weight on its device. `dequantize(rows, **tensors)` returns the rows of a
    slice as floats [rows, k]. `reason` explains why no kernel supports it. `save` returns the
    tensors of `stored`.
    """

    def __init__(
        self,
        stored: Stored,
        format: str,
        shape: tuple[int, ...],
        tensors: Mapping[str, Tensor],
        dequantize: Callable[..., Tensor],
        reason: str,
    ) -> None:
        self.format, self.shape, self.reason = format, shape, reason
        self.dtype, self.device = stored.dtype, stored.device
        self.tensors = dict(tensors)
        self.dequantize_rows = dequantize
        # A closure: the offloader moves tensors that are attributes, and would pin the file's.
        self.saved: Callable[[], dict[str, Tensor]] = lambda: dict(stored.tensors)

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        return self.dequantize_rows(slice(start, stop), **self.tensors).to(self.dtype)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def save(self) -> dict[str, Tensor]:
        return self.saved()

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        return f"{super().finalize(target, embedding=embedding)} ({self.reason})"
