"""Mxfp4: the storage of MXFP4 weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.ops import Op, Target
from ostro.quant.mxfp4 import naive
from ostro.quant.mxfp4.naive import BLOCK

MAX_EXPONENT = 240
"""The largest supported exponent: weights up to 2 ** 115."""

UQFF_FORMAT = 6
"""The id of this format in UQFF files."""


class Mxfp4(Storage):
    """A weight [n, k], or [experts, n, k]; `naive` documents the layout.

    `container` is the container whose layout `save` uses: "hub", "gguf", "uqff" or "mlx".
    """

    format = "MXFP4"

    def __init__(self, q: Tensor, e: Tensor, dtype: torch.dtype, *, container: str = "hub") -> None:
        self.q, self.e, self.container = q.contiguous(), e.contiguous(), container
        self.shape = (*e.shape[:-1], e.shape[-1] * BLOCK)
        self.dtype, self.device = dtype, q.device
        self.unpack, self.multiply = Op(naive.DEQUANTIZE), Op(naive.GROUPED)
        self.deterministic = False

    @classmethod
    def read(cls, stored: Stored) -> Self:
        """Read "blocks" and "scales" of the hub, or the tensors of other containers."""
        container = container_of(stored)
        weight = stored.tensors["blocks" if container == "hub" else "weight"].to(stored.device)
        if container == "gguf":
            blocks = weight.unflatten(-1, (-1, 1 + BLOCK // 2))
            q, e = blocks[..., 1:], blocks[..., 0]
        else:
            e = stored.tensors["weight.scales" if container == "uqff" else "scales"].to(
                stored.device
            )
            q = weight.contiguous().view(torch.uint8)
            if container != "hub" and q.shape == (*e.shape[:-1], e.shape[-1] * BLOCK // 2):
                q = q.unflatten(-1, (-1, BLOCK // 2))
            if q.shape != (*e.shape, BLOCK // 2):
                raise stored.fault(
                    f"has blocks of shape {list(q.shape)} for scales of shape {list(e.shape)}, "
                    f"expected {BLOCK // 2} bytes for each scale"
                )
            q = naive.from_hub(q)
        if e.numel() and (largest := int(e.max())) > MAX_EXPONENT:
            raise stored.fault(
                f"has the exponent {largest}, weights of 2**{largest - 127} or NaN; the file is "
                "damaged; download or convert it again"
            )
        return cls(q, e, stored.dtype, container=container)

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """Quantize a float weight [..., n, k] to "mxfp4"; k must be a multiple of 32."""
        return cls(*naive.quantize(weight), dtype)

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        q, e = self.q.flatten(0, -3)[start:stop], self.e.flatten(0, -2)[start:stop]
        weight: Tensor = self.unpack(q, e, self.dtype)
        return weight

    def matmul(self, x: Tensor) -> Tensor:
        if not self.deterministic:
            return super().matmul(x)
        rows = [super(Mxfp4, self).matmul(row) for row in x.reshape(-1, 1, x.shape[-1])]
        return torch.cat(rows).view(*x.shape[:-1], -1) if rows else x.new_empty(0, self.shape[-2])

    def rows(self, ids: Tensor) -> Tensor:
        found: Tensor = self.unpack(self.q[ids], self.e[ids], self.dtype)
        return found

    def grouped(self, x: Tensor, expert_of_row: Tensor) -> Tensor:
        """x [t, k], expert_of_row [t] int64, ascending -> [t, n]."""
        y: Tensor = self.multiply(x, self.q, self.e, expert_of_row)
        return y

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.e.nbytes

    def save(self) -> dict[str, Tensor]:
        if self.container == "gguf":
            return {"weight": torch.cat((self.e[..., None], self.q), -1).flatten(-2)}
        blocks = naive.to_hub(self.q)
        if self.container == "mlx":
            return {"weight": blocks.flatten(-2).view(torch.uint32), "scales": self.e}
        if self.container == "uqff":
            format = torch.tensor(UQFF_FORMAT, dtype=torch.uint8)
            weight = blocks.flatten(-2)
            return {"weight": weight, "weight.scales": self.e, "weight.format": format}
        return {"blocks": blocks, "scales": self.e}

    @classmethod
    def fuse(cls, storages: Sequence[Mxfp4]) -> Mxfp4 | None:
        if not can_join(storages):
            return None
        q, e = torch.cat([s.q for s in storages], -3), torch.cat([s.e for s in storages], -2)
        return cls(q, e, storages[0].dtype, container=storages[0].container)

    @classmethod
    def stack(cls, storages: Sequence[Mxfp4]) -> Mxfp4 | None:
        if not can_join(storages):
            return None
        q, e = torch.stack([s.q for s in storages]), torch.stack([s.e for s in storages])
        return cls(q, e, storages[0].dtype, container=storages[0].container)

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        self.deterministic = target.deterministic
        choice = self.unpack.select(target)
        how = f"dequantized in blocks of rows by {choice.kernel.name}"
        if len(self.shape) == 3:
            choice = self.multiply.select(target)
            how = f"grouped by {choice.kernel.name}"
        return f"MXFP4: {how} ({choice.reason})"


def container_of(stored: Stored) -> str:
    """The container whose layout the tensors have."""
    tensors = stored.tensors
    if "weight.format" in tensors:
        if (format := stored.number("weight.format")) != UQFF_FORMAT:
            raise stored.fault(
                f"has the tensors of MXFP4, but its format is {format}; the file is "
                "damaged; download it again",
                "weight",
            )
        return "uqff"
    if "weight" not in tensors:
        return "hub"
    return "mlx" if "scales" in tensors else "gguf"


def can_join(storages: Sequence[Storage]) -> bool:
    """Whether storages can be joined: all `Mxfp4`, with equal dtype and container."""
    kinds = {(s.dtype, s.container) for s in storages if isinstance(s, Mxfp4)}
    return len(kinds) == 1 and all(isinstance(s, Mxfp4) for s in storages)
