"""Gptq: a GPTQ weight in planes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.gptq import checkpoint, naive
from ostro.quant.gptq.checkpoint import Form
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes


class Gptq(Packed):
    """A weight [n, k], or [experts, n, k]. The columns of scattered groups, as act-order leaves
    them, are reordered so that groups are contiguous; `form` is the form in the file.
    """

    form: Form
    beside: Mapping[str, Tensor]

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """From "qweight", "qzeros", "scales" and, mostly, "g_idx": see `naive`."""
        codes, scales, zeros, form = checkpoint.read(stored)
        beside = checkpoint.beside(stored)
        if codes.shape[-1] % CELL:
            return Dequantized(
                stored,
                form.format,
                tuple(codes.shape),
                {"codes": codes, "scales": scales, "zeros": zeros, "groups": form.groups},
                naive.dequantize_rows,
                f"{codes.shape[-1]} columns are no multiple of {CELL}",
            )
        order, runs = checkpoint.arrange(form.groups)
        planes = Planes(
            codes=pack_codes(codes if order is None else codes[:, order], form.bits),
            scale=scales[:, runs].contiguous(),
            zero=zeros[:, runs].contiguous(),
        )
        made = cls(form.format, planes, stored.dtype, order=order)
        made.form, made.beside = form, beside
        return made

    def of(self, planes: Planes) -> Self:
        made = super().of(planes)
        made.beside = {}
        return made

    def save(self) -> dict[str, Tensor]:
        planes, order = self.planes, self.order
        assert isinstance(planes.zero, Tensor), "GPTQ has a zero for each group"
        codes = unpack_codes(planes.codes)
        if order is not None:
            codes = codes[..., order.argsort()]
        _, runs = checkpoint.arrange(self.form.groups)
        first = runs.diff(prepend=runs.new_tensor([-1])) > 0
        found = self.form.tensors(codes, planes.scale[..., first], planes.zero[..., first])
        return {**found, **self.beside}
