"""Planes: a ggml format's fields, each in an array of its own.

A block of a file has 34 bytes here and 210 there, so what it holds lies at odd addresses. Taken
apart it is the same bytes, aligned, which a kernel loads wide. Repacking is lossless both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from ostro.core.load.ggml import BY_NAME


class Int8:
    """Q8_0, [n, k]: q int8 [n, k / 32, 32] and d float16 [n, k / 32]; w = d q."""

    def __init__(self, q: Tensor, d: Tensor) -> None:
        self.q, self.d = q, d

    @classmethod
    def pack(cls, data: Tensor) -> Self:
        """From a file's rows, uint8 [n, bytes per row]."""
        blocks = data.view(*data.shape[:-1], -1, BY_NAME["Q8_0"].nbytes)
        d, q = blocks[..., :2], blocks[..., 2:]
        contiguous = torch.contiguous_format
        d, q = d.clone(memory_format=contiguous), q.clone(memory_format=contiguous)
        return cls(q.view(torch.int8), d.view(torch.float16)[..., 0])

    def unpack(self) -> Tensor:
        """The file's rows again, byte for byte."""
        d = self.d[..., None].contiguous().view(torch.uint8)
        return torch.cat((d, self.q.view(torch.uint8)), -1).flatten(-2)

    def take(self, rows: slice | Tensor) -> Self:
        """Some of the rows: a view of a slice, a copy of those that ids [t] name."""
        return type(self)(self.q[rows], self.d[rows])

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """[n, k]: computed in float32 and rounded once."""
        return self.q.float().mul_(self.d.float()[..., None]).flatten(-2).to(dtype)

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.d.nbytes


PLANES: Mapping[str, type[Int8]] = {"Q8_0": Int8}
"""By format. One that is not here stays as the file has it and is dequantized by `naive`."""
