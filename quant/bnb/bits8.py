"""Bits8: the storage of LLM.int8() weights of bitsandbytes."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.bnb import FORMAT, naive
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes

OFFSET = 128
"""Added to int8 to get codes; codes ^ OFFSET has the same bits."""

AGAIN = "the file is damaged; download or convert it again"


class Bits8(Packed):
    """A weight [n, k], or [experts, n, k], with one scale per row, SCB / 127.

    bitsandbytes multiplies by SCB and 1 / 127 separately; its float32 values may differ by two
    units in the last place. LLM.int8() handles outliers of activations separately because it
    quantizes whole rows; the kernels here do not. `other_tensors` are all tensors but the codes.
    """

    other_tensors: dict[str, Tensor]

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """Read "weight" int8 and "SCB"; "weight_format" must be 0 (row-major) if present."""
        q, scb = (stored.tensors[name].to(stored.device) for name in ("weight", "SCB"))
        n, k = q.shape if q.dim() == 2 else (0, 0)
        if tuple(scb.shape) != (n,) or scb.dtype != torch.float32:
            raise stored.fault(
                f"has shape {list(scb.shape)} and type {scb.dtype}, expected one float32 per "
                f"row of {list(q.shape)} weights; {AGAIN}",
                "SCB",
            )
        if not bool(scb.isfinite().all()):
            raise stored.fault(f"contains NaN or Inf; {AGAIN}", "SCB")
        if FORMAT in stored.tensors and bool(stored.tensors[FORMAT].any()):
            raise stored.fault(
                "states a tiled GPU layout, which current versions of bitsandbytes do not support "
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
                f"{k} columns are not a multiple of {CELL}",
            )
        codes = pack_codes(q.contiguous().view(torch.uint8) ^ OFFSET, 8)
        scale = (scb * naive.STEP)[:, None]
        storage = cls("INT8", Planes(codes=codes, scale=scale, zero=OFFSET), stored.dtype)
        storage.other_tensors = {name: t for name, t in stored.tensors.items() if name != "weight"}
        return storage

    def of(self, planes: Planes) -> Self:
        storage = super().of(planes)
        storage.other_tensors = {}
        return storage

    def save(self) -> dict[str, Tensor]:
        weight = (unpack_codes(self.planes.codes) ^ OFFSET).view(torch.int8)
        scb = self.planes.scale[..., 0] / naive.STEP
        return {"weight": weight, **(self.other_tensors or {"SCB": scb})}
