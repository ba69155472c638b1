"""Packed: a weight in a ggml block format, as its file holds it or taken apart into planes."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Self

import torch
from torch import Tensor

from ostro.core.errors import Unsupported
from ostro.core.load.ggml import BY_NAME
from ostro.core.nn.storage import Storage, Stored
from ostro.quant.gguf import naive
from ostro.quant.gguf.planes import PLANES, Int8


class Packed(Storage):
    """A weight [n, k], or [experts, n, k], of which every row is a run of `format`'s blocks.

    `data` is uint8 [..., n, bytes per row] until `settle` takes it apart, `planes` what it then is,
    and `native` the kernels for planes, where the machine has them.
    """

    def __init__(self, format: str, data: Tensor, dtype: torch.dtype) -> None:
        kind = BY_NAME[format]
        self.format = format
        self.shape = (*data.shape[:-1], data.shape[-1] // kind.nbytes * kind.block)
        self.dtype, self.device = dtype, data.device
        self.data: Tensor | None = data
        self.planes: Int8 | None = None
        self.native: ModuleType | None = None
        self.alone = False

    @classmethod
    def read(cls, stored: Stored) -> Self:
        """From a GGUF file's "weight", whose bytes stay as they are; it computes in `dtype`."""
        data = stored.tensors["weight"].to(stored.device)
        return cls(stored.infos["weight"].format, data, stored.dtype)

    def raw(self) -> Tensor:
        """The file's bytes, uint8 [..., n, bytes per row]."""
        if self.data is not None:
            return self.data
        assert self.planes is not None
        return self.planes.unpack()

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        if self.planes is not None:
            return self.floats(self.planes.take(slice(start, stop)))
        rows = self.raw().flatten(0, -2)[start:stop]
        return naive.dequantize(self.format, rows).to(self.dtype)

    def floats(self, planes: Int8) -> Tensor:
        kernels = self.native
        return kernels.dequantize(planes, self.dtype) if kernels else planes.dequantize(self.dtype)

    def matmul(self, x: Tensor) -> Tensor:
        flat, times = x.reshape(-1, x.shape[-1]), super().matmul
        if self.native and (self.alone or len(flat) <= self.native.FEW):
            y = self.native.product(flat, self.planes)
        elif self.alone:
            y = torch.cat([times(row) for row in torch.split(flat, 1)])
        else:
            y = times(flat)
        return y.view(*x.shape[:-1], self.shape[-2])

    def rows(self, ids: Tensor) -> Tensor:
        if self.planes is not None:
            return self.floats(self.planes.take(ids))
        return naive.dequantize(self.format, self.raw()[ids]).to(self.dtype)

    def slice(self, axis: int, start: int, stop: int) -> Packed:
        data, kind = self.raw(), BY_NAME[self.format]
        if axis == len(self.shape) - 1:
            if start % kind.block or stop % kind.block:
                raise Unsupported(
                    f"{self.format} weights share scales among {kind.block} columns and cannot be "
                    f"cut at {start}..{stop}; use another number of ranks"
                )
            start, stop = kind.row_bytes(start), kind.row_bytes(stop)
        cut = data.narrow(axis, start, stop - start).contiguous()
        return Packed(self.format, cut, self.dtype)

    @property
    def nbytes(self) -> int:
        return self.planes.nbytes if self.planes is not None else self.raw().nbytes

    def save(self) -> dict[str, Tensor]:
        return {"weight": self.raw()}

    @classmethod
    def fuse(cls, storages: Sequence[Packed]) -> Packed | None:
        if len({(type(s), s.format, s.dtype) for s in storages}) != 1:
            return None
        first = storages[0]
        return cls(first.format, torch.cat([s.raw() for s in storages], -2), first.dtype)

    @classmethod
    def stack(cls, storages: Sequence[Packed]) -> Packed | None:
        if len({(type(s), s.format) for s in storages}) != 1:
            return None
        first = storages[0]
        return cls(first.format, torch.stack([s.raw() for s in storages]), first.dtype)

    def settle(
        self, deterministic: bool = False, rows: bool = False, *, exact: bool = False
    ) -> str:
        """Take the blocks apart where the format has planes; see `Storage.settle`."""
        self.alone = deterministic
        how = "each row alone, " if deterministic else ""
        if self.format not in PLANES or len(self.shape) != 2:
            return f"{self.format}: {how}dequantized in blocks of rows"
        if self.planes is None:
            self.planes, self.data = PLANES[self.format].pack(self.raw()), None
        if self.device.type != "cpu":
            return f"{self.format} in planes: {how}dequantized in blocks of rows"
        try:
            from ostro.quant.gguf import native
        except ImportError as error:
            return f"{self.format} in planes: {how}dequantized in blocks of rows (native: {error})"
        self.native = native
        if deterministic:
            return f"{self.format} in planes: {how}native product"
        return f"{self.format} in planes: native product up to {native.FEW} rows, then blocks"
