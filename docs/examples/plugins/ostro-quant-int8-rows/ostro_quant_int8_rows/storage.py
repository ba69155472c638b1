"""Int8Rows: the storage of a weight with 8-bit integers and one scale per row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro_quant_int8_rows import NAME, naive


class Int8Rows(Storage):
    """A weight [n, k], or [experts, n, k]: `q` int8 of that shape, `scale` float32 without k.

    `dequantize` is required; `Storage` implements the other methods with it. `rows` is overridden
    because the default reads an embedding one row at a time.
    """

    format = NAME

    def __init__(self, q: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        self.q, self.scale = q, scale
        self.shape, self.dtype, self.device = tuple(q.shape), dtype, q.device

    @classmethod
    def read(cls, stored: Stored) -> Self:
        """Read a checkpoint's "weight" and "scale". Products have the dtype `stored.dtype`."""
        scale = stored.tensors["scale"].to(stored.device, torch.float32)
        if not bool(scale.isfinite().all()):
            raise stored.fault(
                "contains NaN or Inf; download or convert the checkpoint again", "scale"
            )
        return cls(stored.tensors["weight"].to(stored.device), scale, stored.dtype)

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """Quantize a float weight [n, k]. `format` is the only one of this plugin."""
        return cls(*naive.quantize(weight), dtype)

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        q, scale = self.q.flatten(0, -2)[start:stop], self.scale.flatten()[start:stop]
        return naive.dequantize(q, scale).to(self.dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return naive.dequantize(self.q[ids], self.scale[ids]).to(self.dtype)

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.scale.nbytes

    def save(self) -> dict[str, Tensor]:
        return {"weight": self.q, "scale": self.scale}

    @classmethod
    def fuse(cls, storages: Sequence[Int8Rows]) -> Int8Rows | None:
        """Concatenate the rows of several weights. Rows are independent of each other."""
        return joined(storages, torch.cat)

    @classmethod
    def stack(cls, storages: Sequence[Int8Rows]) -> Int8Rows | None:
        return joined(storages, torch.stack)


def joined(storages: Sequence[Int8Rows], join: Callable[[list[Tensor]], Tensor]) -> Int8Rows | None:
    """Join storages of one class and dtype; None for others."""
    if len({(type(s), s.dtype) for s in storages}) != 1:
        return None
    q, scale = join([s.q for s in storages]), join([s.scale for s in storages])
    return Int8Rows(q, scale, storages[0].dtype)
