"""Gptq: the storage of GPTQ weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.gptq import checkpoint, naive
from ostro.quant.gptq.checkpoint import StoredFormat
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes


class Gptq(Packed):
    """A weight [n, k], or [experts, n, k]; `stored_format` is its format in the file.

    If groups are scattered (act-order), columns are permuted so that groups are contiguous.
    """

    stored_format: StoredFormat
    other_tensors: Mapping[str, Tensor]

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """Read "qweight", "qzeros", "scales" and optionally "g_idx"; see `naive`."""
        codes, scales, zeros, stored_format = checkpoint.read(stored)
        other_tensors = checkpoint.other_tensors(stored)
        if codes.shape[-1] % CELL:
            return Dequantized(
                stored,
                stored_format.format,
                tuple(codes.shape),
                {"codes": codes, "scales": scales, "zeros": zeros, "groups": stored_format.groups},
                naive.dequantize_rows,
                f"{codes.shape[-1]} columns are not a multiple of {CELL}",
            )
        order, runs = checkpoint.contiguous_order(stored_format.groups)
        planes = Planes(
            codes=pack_codes(codes if order is None else codes[:, order], stored_format.bits),
            scale=scales[:, runs].contiguous(),
            zero=zeros[:, runs].contiguous(),
        )
        storage = cls(stored_format.format, planes, stored.dtype, order=order)
        storage.stored_format, storage.other_tensors = stored_format, other_tensors
        return storage

    def of(self, planes: Planes) -> Self:
        storage = super().of(planes)
        storage.other_tensors = {}
        return storage

    def save(self) -> dict[str, Tensor]:
        planes, order = self.planes, self.order
        assert isinstance(planes.zero, Tensor), "GPTQ has a zero for each group"
        codes = unpack_codes(planes.codes)
        if order is not None:
            codes = codes[..., order.argsort()]
        _, runs = checkpoint.contiguous_order(self.stored_format.groups)
        first = runs.diff(prepend=runs.new_tensor([-1])) > 0
        found = self.stored_format.tensors(codes, planes.scale[..., first], planes.zero[..., first])
        return {**found, **self.other_tensors}
