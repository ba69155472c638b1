"""Gptq: a GPTQ weight in planes; Ragged: one whose rows planes do not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored, errors
from ostro.quant.gptq import checkpoint
from ostro.quant.gptq.checkpoint import Form
from ostro.quant.planes.storage import Packed, Planes, pack_codes, unpack_codes

CELL = 32


class Gptq(Packed):
    """A weight [n, k], or [experts, n, k]. Columns whose groups are scattered, as act-order leaves
    them, are moved to their neighbours; `form` says how a file holds them.
    """

    form: Form
    beside: Mapping[str, Tensor]

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """From "qweight", "qzeros", "scales" and, mostly, "g_idx": see `naive`."""
        codes, scales, zeros, form = checkpoint.read(stored)
        beside = checkpoint.beside(stored)
        if codes.shape[-1] % CELL:
            return Ragged(codes, scales, zeros, form, stored.dtype, beside)
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

    def slice(self, axis: int, start: int, stop: int) -> Self:
        made = super().slice(axis, start, stop)
        if axis == len(self.shape) - 1:
            made.form = self.form.columns(start, stop)
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


class Ragged(Storage):
    """A weight [n, k] of a k that is no multiple of 32; dequantized in blocks of rows.

    codes uint8 [n, k], scales floats and zeros uint8 [n, groups].
    """

    def __init__(
        self,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor,
        form: Form,
        dtype: torch.dtype,
        beside: Mapping[str, Tensor],
    ) -> None:
        self.codes, self.scales, self.zeros, self.form = codes, scales, zeros, form
        self.format, self.shape, self.beside = form.format, tuple(codes.shape), beside
        self.dtype, self.device = dtype, codes.device

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        group = self.form.groups.long()
        zeros, scales = self.zeros[start:stop, group], self.scales[start:stop, group]
        return ((self.codes[start:stop].float() - zeros) * scales.float()).to(self.dtype)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.zeros.nbytes + self.form.groups.nbytes

    def save(self) -> dict[str, Tensor]:
        return {**self.form.tensors(self.codes, self.scales, self.zeros), **self.beside}

    def settle(
        self, deterministic: bool = False, rows: bool = False, *, exact: bool = False
    ) -> str:
        if deterministic:
            raise errors.Unsupported(
                f"{self.format} rows of {self.shape[-1]} weights have no kernel that is "
                "reproducible row by row; leave --deterministic out"
            )
        why = f"rows of {self.shape[-1]} are no cells of {CELL}"
        return f"{self.format}: dequantized in blocks of rows ({why})"
