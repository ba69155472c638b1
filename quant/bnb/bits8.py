"""Bits8: an LLM.int8() weight in planes."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.bnb import FORMAT, naive
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes

MIDDLE = 128
"""The offset that turns int8 into codes."""

AGAIN = "the file is damaged; download or convert it again"


class Bits8(Packed):
    """A weight [n, k], or [experts, n, k], with one scale per row, SCB / 127.

    bitsandbytes multiplies by SCB and by 1 / 127 in turn; its float32 values may differ by two
    units in the last place. Outliers, which LLM.int8() computes in float16, need no treatment of
    their own here. `beside` are the other tensors as they were read.
    """

    beside: dict[str, Tensor]

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """From "weight" int8 and "SCB"; a "weight_format" must be 0, row-major."""
        q, scb = (stored.tensors[name].to(stored.device) for name in ("weight", "SCB"))
        n, k = q.shape if q.dim() == 2 else (0, 0)
        if tuple(scb.shape) != (n,) or scb.dtype != torch.float32:
            raise stored.fault(
                f"has shape {list(scb.shape)} and type {scb.dtype}, expected a float32 for each "
                f"row of {list(q.shape)} weights; {AGAIN}",
                "SCB",
            )
        if not bool(scb.isfinite().all()):
            raise stored.fault(f"contains NaN or Inf; {AGAIN}", "SCB")
        if FORMAT in stored.tensors and bool(stored.tensors[FORMAT].any()):
            raise stored.fault(
                "marks rows as tiled for a GPU, which current versions of bitsandbytes do not read "
                "either; save the model again with a current version",
                FORMAT,
            )
        if k % CELL:
            return Dequantized(
                stored,
                "INT8",
                (n, k),
                {"q": q, "scb": scb},
                lambda rows, q, scb: naive.dequantize_int8(q[rows], scb[rows]),
                f"{k} columns are no multiple of {CELL}",
            )
        codes = pack_codes(q.contiguous().view(torch.uint8) ^ MIDDLE, 8)
        scale = (scb * naive.STEP)[:, None]
        made = cls("INT8", Planes(codes=codes, scale=scale, zero=MIDDLE), stored.dtype)
        made.beside = {name: t for name, t in stored.tensors.items() if name != "weight"}
        return made

    def of(self, planes: Planes) -> Self:
        made = super().of(planes)
        made.beside = {}
        return made

    def save(self) -> dict[str, Tensor]:
        weight = (unpack_codes(self.planes.codes) ^ MIDDLE).view(torch.int8)
        scb = self.planes.scale[..., 0] / naive.STEP
        return {"weight": weight, **(self.beside or {"SCB": scb})}
