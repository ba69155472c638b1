"""Mxfp4: a weight of four bits, which computes in a float type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ostro.core.errors import Unsupported
from ostro.core.nn.storage import Storage, Stored
from ostro.core.ops import Op, Target
from ostro.quant.mxfp4 import naive
from ostro.quant.mxfp4.naive import BLOCK

LARGEST = 240
"""The largest exponent that is read: weights up to 2 ** 115."""


class Mxfp4(Storage):
    """A weight [n, k], or [experts, n, k], laid out as `naive` describes.

    `gguf` says where its bytes come from, in whose order `save` gives them back.
    """

    format = "MXFP4"

    def __init__(self, q: Tensor, e: Tensor, dtype: torch.dtype, *, gguf: bool = False) -> None:
        self.q, self.e, self.gguf = q.contiguous(), e.contiguous(), gguf
        self.shape = (*e.shape[:-1], e.shape[-1] * BLOCK)
        self.dtype, self.device = dtype, q.device
        self.unpack, self.times = Op(naive.DEQUANTIZE), Op(naive.GROUPED)
        self.alone = False

    @classmethod
    def read(cls, stored: Stored) -> Self:
        """From the hub's "blocks" and "scales", or a GGUF file's "weight"."""
        tensors, device = stored.tensors, stored.device
        if gguf := "weight" in tensors:
            blocks = tensors["weight"].to(device).unflatten(-1, (-1, 1 + BLOCK // 2))
            q, e = blocks[..., 1:], blocks[..., 0]
        else:
            q, e = tensors["blocks"].to(device), tensors["scales"].to(device)
            if q.shape != (*e.shape, BLOCK // 2):
                raise stored.fault(
                    f"has blocks of shape {list(q.shape)} beside scales of {list(e.shape)}; "
                    f"a scale has {BLOCK // 2} bytes"
                )
            q = naive.from_hub(q)
        if e.numel() and (most := int(e.max())) > LARGEST:
            raise stored.fault(
                f"has the exponent {most}, weights of 2**{most - 127} or NaN; the file is damaged, "
                "download or convert it again"
            )
        return cls(q, e, stored.dtype, gguf=gguf)

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        q, e = self.q.flatten(0, -3)[start:stop], self.e.flatten(0, -2)[start:stop]
        weight: Tensor = self.unpack(q, e, self.dtype)
        return weight

    def matmul(self, x: Tensor) -> Tensor:
        if not self.alone:
            return super().matmul(x)
        rows = [super(Mxfp4, self).matmul(row) for row in x.reshape(-1, 1, x.shape[-1])]
        return torch.cat(rows).view(*x.shape[:-1], -1) if rows else x.new_empty(0, self.shape[-2])

    def rows(self, ids: Tensor) -> Tensor:
        found: Tensor = self.unpack(self.q[ids], self.e[ids], self.dtype)
        return found

    def grouped(self, x: Tensor, expert_of_row: Tensor) -> Tensor:
        """x [t, k], expert_of_row [t] int64, ascending -> [t, n]."""
        y: Tensor = self.times(x, self.q, self.e, expert_of_row)
        return y

    def slice(self, axis: int, start: int, stop: int) -> Mxfp4:
        if axis == len(self.shape) - 1:
            if start % BLOCK or stop % BLOCK:
                raise Unsupported(
                    f"MXFP4 weights share scales among {BLOCK} columns and cannot be cut at "
                    f"{start}..{stop}; use another number of ranks"
                )
            start, stop = start // BLOCK, stop // BLOCK
        q, e = (each.narrow(axis, start, stop - start) for each in (self.q, self.e))
        return Mxfp4(q, e, self.dtype, gguf=self.gguf)

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.e.nbytes

    def save(self) -> dict[str, Tensor]:
        if self.gguf:
            return {"weight": torch.cat((self.e[..., None], self.q), -1).flatten(-2)}
        return {"blocks": naive.to_hub(self.q), "scales": self.e}

    @classmethod
    def fuse(cls, storages: Sequence[Mxfp4]) -> Mxfp4 | None:
        if len({(type(s), s.dtype, s.gguf) for s in storages}) != 1:
            return None
        q, e = torch.cat([s.q for s in storages], -3), torch.cat([s.e for s in storages], -2)
        return cls(q, e, storages[0].dtype, gguf=storages[0].gguf)

    @classmethod
    def stack(cls, storages: Sequence[Mxfp4]) -> Mxfp4 | None:
        if len({(type(s), s.dtype, s.gguf) for s in storages}) != 1:
            return None
        q, e = torch.stack([s.q for s in storages]), torch.stack([s.e for s in storages])
        return cls(q, e, storages[0].dtype, gguf=storages[0].gguf)

    def settle(
        self, deterministic: bool = False, rows: bool = False, *, exact: bool = False
    ) -> str:
        target = Target(device=self.device, dtype=self.dtype, deterministic=deterministic)
        self.alone = deterministic
        choice = self.unpack.settle(target)
        how = f"dequantized in blocks of rows by {choice.kernel.name}"
        if len(self.shape) == 3:
            choice = self.times.settle(target)
            how = f"grouped by {choice.kernel.name}"
        return f"MXFP4: {how} ({choice.reason})"
