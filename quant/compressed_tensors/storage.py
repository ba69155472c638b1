"""Compressed: the storage of compressed-tensors weights."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored, errors
from ostro.nn import Dequantized
from ostro.ops import Target
from ostro.quant.compressed_tensors import checkpoint, naive
from ostro.quant.compressed_tensors.checkpoint import INDEX, SCALE, SHAPE, UNUSED, ZERO, Weight
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes


class Compressed(Packed):
    """A weight [n, k], or [experts, n, k], of one of the kinds that `naive` describes.

    `other_tensors` are the tensors besides the codes; `save` returns them unchanged, except for
    fused or stacked weights. If groups are scattered, columns are permuted so that groups are
    contiguous; `groups` is the group of each column, if the file has it. NVFP4's global scale is
    applied as its reciprocal, with one more rounding in float32.
    """

    kind: str
    other_tensors: Mapping[str, Tensor]
    groups: Tensor | None

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """Read the tensors of a pack-, int-, float- or nvfp4-pack-quantized linear.

        Activation scales are not applied: kernels keep x in its dtype or quantize it dynamically.
        """
        weight = checkpoint.read(stored)
        other_tensors = {
            s: t for s, t in stored.tensors.items() if s not in ("weight", "weight_packed")
        }
        if weight.codes.shape[-1] % CELL:
            return dequantized(stored, weight)
        order = None if weight.groups is None else weight.groups.argsort(stable=True)
        if order is not None and bool((order.diff() == 1).all()):
            order = None
        codes = weight.codes if order is None else weight.codes[:, order]
        planes = Planes(
            codes=pack_codes(codes, weight.bits),
            scale=weight.scale.contiguous(),
            zero=weight.zero.contiguous() if isinstance(weight.zero, Tensor) else weight.zero,
            table=weight.table,
            d=None if weight.d is None else weight.d.contiguous(),
        )
        storage = cls(weight.format, planes, stored.dtype, order=order)
        storage.kind, storage.groups = weight.kind, weight.groups
        storage.other_tensors = other_tensors
        return storage

    def of(self, planes: Planes) -> Self:
        storage = super().of(planes)
        storage.other_tensors = {}
        return storage

    def save(self) -> dict[str, Tensor]:
        codes = unpack_codes(self.planes.codes)
        if self.order is not None:
            codes = codes[..., self.order.argsort()]
        return {
            **codes_tensor(self.kind, codes, self.planes.bits),
            **(self.other_tensors or self.merged_tensors()),
        }

    def merged_tensors(self) -> dict[str, Tensor]:
        """The tensors that `save` adds to the codes of a fused or stacked weight."""
        planes = self.planes
        if self.kind == "nvfp4":
            raise errors.Unsupported(
                "fused or stacked NVFP4 weights have no common global scale; save the weights "
                "before they are fused"
            )
        found = {SCALE: planes.scale}
        if isinstance(planes.zero, Tensor):
            int8 = self.kind == "int8"
            zeros = planes.zero if int8 else naive.pack(planes.zero.mT, planes.bits).mT
            found[ZERO] = naive.signed(zeros) if int8 else zeros.contiguous()
        if self.kind == "packed":
            found[SHAPE] = torch.tensor(self.shape)
        if self.groups is not None:
            found[INDEX] = self.groups
        return found

    def finalize(self, target: Target, *, embedding: bool = False) -> str:
        chosen = super().finalize(target, embedding=embedding)
        unused = " and ".join(sorted(UNUSED & self.other_tensors.keys()))
        return f"{chosen}; {unused} not applied" if unused else chosen


def dequantized(stored: Stored, weight: Weight) -> Dequantized:
    """The storage of a weight whose rows are not whole cells."""
    if weight.groups is not None:
        column = weight.groups.long()
        zero = weight.zero[:, column] if isinstance(weight.zero, Tensor) else weight.zero
        weight = weight._replace(scale=weight.scale[:, column], zero=zero, groups=None)
    parts = weight._asdict()
    tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
    constant = 0 if isinstance(weight.zero, Tensor) else weight.zero
    rows_of = partial(naive.dequantize_rows, zero=constant)
    shape = tuple(weight.codes.shape)
    reason = f"{shape[-1]} columns are not a multiple of {CELL}"
    return Dequantized(stored, weight.format, shape, tensors, rows_of, reason)


def codes_tensor(kind: str, codes: Tensor, bits: int) -> dict[str, Tensor]:
    """The tensor of a file with the codes uint8 [..., k]."""
    match kind:
        case "packed":
            return {"weight_packed": naive.pack(codes, bits)}
        case "nvfp4":
            return {"weight_packed": naive.pack_halves(codes)}
        case "int8":
            return {"weight": naive.signed(codes)}
    return {"weight": codes.view(torch.float8_e4m3fn)}
