"""Fp8: the storage of float8 weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor

from ostro import Storage, Stored, errors
from ostro.nn import Dequantized
from ostro.ops import Target
from ostro.quant.fp8 import SCALES, UNUSED, UQFF, naive
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes

UQFF_FORMAT = 3
"""The id of this format in UQFF files."""

TYPES = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}
AGAIN = "the file is damaged or does not match its config; download or convert it again"


class Fp8(Packed):
    """A weight [n, k], or [experts, n, k]: codes with a table of 256 values, and scales per group.

    `other_tensors` are the tensors besides the codes; `save` returns them unchanged, except for
    fused or stacked weights. `unused` names the activation scales among them.
    """

    other_tensors: Mapping[str, Tensor]
    unused = ""

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """Read "weight" and "weight_scale" or "weight_scale_inv", or the tensors of a UQFF file.

        Activation scales are not applied: kernels keep x in its dtype or quantize it dynamically.
        Without "weight_block_size" in the config, blocks divide the weight evenly.
        """
        format = stored.infos["weight"].format
        q = stored.tensors["weight"].to(stored.device)
        scale = read_scales(stored)
        if not naive.is_finite(q):
            raise stored.fault(f"contains NaN or Inf; {AGAIN}", "weight")
        other_tensors = {name: t for name, t in stored.tensors.items() if name != "weight"}
        if q.shape[-1] % CELL:
            return Dequantized(
                stored,
                format,
                tuple(q.shape),
                {"q": q, "scale": scale},
                lambda rows, q, scale: naive.dequantize(q[rows], scale[rows]),
                f"{q.shape[-1]} columns are not a multiple of {CELL}",
            )
        storage = cls.from_float8(format, q, scale, stored.dtype)
        storage.other_tensors, storage.unused = (
            other_tensors,
            " and ".join(sorted(UNUSED & other_tensors.keys())),
        )
        return storage

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """Quantize a float weight [..., n, k] to "fp8", one scale per matrix.

        k must be a multiple of 32.
        """
        q, scale = naive.quantize(weight)
        storage = cls.from_float8("F8_E4M3", q, scale.expand(*q.shape[:-1], 1), dtype)
        storage.other_tensors = {"weight_scale": scale.reshape(())} if weight.dim() == 2 else {}
        return storage

    @classmethod
    def from_float8(cls, format: str, q: Tensor, scale: Tensor, dtype: torch.dtype) -> Self:
        """q of a float8 dtype [..., k], scale floats [..., k / group]."""
        codes = pack_codes(q.contiguous().view(torch.uint8), 8)
        table = naive.table(q.dtype).to(q.device)
        storage = cls(format, Planes(codes=codes, scale=scale.contiguous(), table=table), dtype)
        storage.other_tensors = {}
        return storage

    def of(self, planes: Planes) -> Self:
        storage = super().of(planes)
        storage.other_tensors = {}
        return storage

    def save(self) -> dict[str, Tensor]:
        weight = unpack_codes(self.planes.codes).view(TYPES[self.format])
        return {"weight": weight, **(self.other_tensors or {"weight_scale": self.planes.scale})}

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        chosen = super().finalize(target, embedding=embedding)
        return f"{chosen}; {self.unused} not applied" if self.unused else chosen


def read_scales(stored: Stored) -> Tensor:
    """The scale of every group of every row, [n, k / group]."""
    uqff = stored.tensors.keys() == UQFF
    if uqff and (format := stored.number("weight.format")) != UQFF_FORMAT:
        raise stored.fault(f"has the tensors of FP8, but its format is {format}; {AGAIN}", "weight")
    name = "weight.dequant_w_scale" if uqff else next(iter(SCALES & stored.tensors.keys()))
    scale, shape = stored.tensors[name].to(stored.device), stored.tensors["weight"].shape
    if scale.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        scale = scale.float()
    if not bool(scale.isfinite().all()):
        raise stored.fault(f"contains NaN or Inf; {AGAIN}", name)
    size = block_size(stored)
    found = naive.blocks(scale, *shape, size) if len(shape) == 2 else None
    if found is None:
        blocks = f"blocks of {list(size)}" if size else "whole blocks"
        raise stored.fault(
            f"has shape {list(scale.shape)}, expected one scale per tensor, per row, or per block "
            f"({blocks}) of {list(shape)} weights; {AGAIN}",
            name,
        )
    return found.expand(*shape)


def block_size(stored: Stored) -> tuple[int, int] | None:
    """The `weight_block_size` of the config, rows and columns, or None."""
    size: Any = stored.settings.get("weight_block_size")
    if size is None:
        return None
    numbers = isinstance(size, list) and all(type(each) is int and each > 0 for each in size)
    if not numbers or len(size) != 2:
        raise errors.ConfigError(
            f"config.json: quantization_config.weight_block_size={size!r:.80}, expected two "
            "positive integers"
        )
    return size[0], size[1]
