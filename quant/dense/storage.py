"""Dense: a float weight [n, k], or [experts, n, k], packed once for its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from ostro import Storage, Stored
from ostro.ops import Op, Target
from ostro.ops import grouped_matmul as grouped
from ostro.quant.dense import cpu, panels
from ostro.quant.dense.panels import Panels

TILE = 32  # rows of every matmul of a deterministic target, whatever the batch

REASONS = {
    "panels": "panels of 64 rows",
    "blocked": "oneDNN blocks",
    "plain": "plain rows",
}
"""Why a layout of `cpu.pack` was chosen."""


class Dense(Storage):
    """A float weight; on CPU in the layout of `cpu.pack`.

    It computes in `dtype`, by default the weight's. Until `finalize`, a weight in bfloat16 stays so
    if panels multiply it in `dtype`.
    """

    format = "dense"

    def __init__(self, weight: Tensor, dtype: torch.dtype | None = None) -> None:
        self.dtype, self.device = dtype or weight.dtype, weight.device
        narrow = weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
        keep = narrow and panels.supported(self.dtype)
        self.weight: Tensor | Panels = weight if keep else weight.to(self.dtype)
        self.shape = tuple(weight.shape)
        self.multiply: Callable[..., Tensor] = (
            Op(grouped.KERNELS) if weight.dim() == 3 else F.linear
        )
        self.table: Tensor | None = None

    @classmethod
    def read(cls, stored: Stored) -> Self:
        """Read "weight", to compute in the model's dtype."""
        weight = stored.tensors["weight"]
        dtype = weight.dtype if stored.device.type == "cpu" else stored.dtype
        return cls(weight.to(device=stored.device, dtype=dtype), stored.dtype)

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        return self.unpacked().flatten(0, -2)[start:stop].to(self.dtype)

    def plain(self) -> Tensor:
        """The weight in the strided layout of torch, in the compute dtype."""
        return self.unpacked().to(self.dtype)

    def unpacked(self) -> Tensor:
        """The weight in the strided layout of torch, as it is stored."""
        return cpu.unpack(self.weight)

    def matmul(self, x: Tensor) -> Tensor:
        return self.multiply(x, self.weight)

    def matmul_t(self, x: Tensor) -> Tensor:
        heads, width = x.shape[-2:]
        return torch.einsum("thn,hnk->thk", x, self.plain().view(heads, width, -1))

    def matmul_h(self, x: Tensor) -> Tensor:
        return torch.einsum("thk,hnk->thn", x, self.plain().view(x.shape[1], -1, x.shape[2]))

    def rows(self, ids: Tensor) -> Tensor:
        if isinstance(self.weight, Panels):
            return self.weight.rows(ids).to(self.dtype)
        return F.embedding(ids, self.plain() if self.table is None else self.table)

    def grouped(self, x: Tensor, expert_of_row: Tensor) -> Tensor:
        """x [t, k], expert_of_row [t] int64, ascending -> [t, n]."""
        return self.multiply(x, self.weight, expert_of_row)

    @property
    def nbytes(self) -> int:
        if isinstance(self.weight, Panels):
            return self.weight.nbytes
        copies = 1 if self.table is None else 2
        return copies * prod(self.shape) * self.weight.dtype.itemsize

    def save(self) -> dict[str, Tensor]:
        return {"weight": self.unpacked()}

    @classmethod
    def fuse(cls, storages: Sequence[Dense]) -> Dense | None:
        if len({(type(s), s.dtype) for s in storages}) > 1:
            return None
        return cls(torch.cat([s.unpacked() for s in storages]), storages[0].dtype)

    @classmethod
    def stack(cls, storages: Sequence[Dense]) -> Dense | None:
        if len({(type(s), s.dtype) for s in storages}) > 1:
            return None
        return cls(torch.stack([s.unpacked() for s in storages]), storages[0].dtype)

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        packs = self.device.type == "cpu" and len(self.shape) == 2 and cpu.packable(self.dtype)
        if packs and not target.deterministic:
            return self.pack(embedding)
        self.weight = self.plain()
        if isinstance(self.multiply, Op):
            choice = self.multiply.select(target)
            return f"grouped by {choice.kernel.name} ({choice.reason})"
        if target.deterministic:
            self.multiply = matmul_deterministic
            return f"row by row in tiles of {TILE}"
        return "torch matmul" if self.device.type == "cpu" else "cuBLAS"

    def pack(self, embedding: bool) -> str:
        """Convert the weight to the layout of this CPU; returns the reason."""
        weight = self.unpacked()
        self.weight, self.multiply = cpu.pack(weight, self.dtype), cpu.matmul
        layout = cpu.layout_of(self.weight)
        if embedding and layout == "blocked":
            # oneDNN's blocked layout cannot be indexed by row.
            self.table = weight.to(self.dtype)
        narrow = isinstance(self.weight, Panels) and self.dtype != torch.bfloat16
        return f"{REASONS[layout]} in bfloat16" if narrow else REASONS[layout]


def matmul_deterministic(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., k], weight [n, k] -> [..., n], batch-invariant: one row at a time in a padded tile.

    A matmul of fixed size sums over k in a fixed order, whatever the other rows of the batch are.
    """
    flat = x.reshape(-1, x.shape[-1])
    tile = x.new_zeros(TILE, x.shape[-1])
    out = x.new_empty(flat.shape[0], weight.shape[0])
    for i, row in enumerate(flat):
        tile[0] = row
        out[i] = F.linear(tile, weight)[0]
    return out.view(*x.shape[:-1], -1)
