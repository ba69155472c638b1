"""Hqq: a weight in planes, where its groups lie along rows; Across: one whose groups do not."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored, errors
from ostro.quant.hqq import GROUP, checkpoint, naive, solver
from ostro.quant.hqq.checkpoint import Form
from ostro.quant.planes.storage import Packed, Planes, pack_codes, unpack_codes

CELL = 32


class Hqq(Packed):
    """A weight [n, k], or [experts, n, k], of groups along its rows; `form` is how it is saved."""

    form: Form

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """From what the hqq package saves of a layer, or a UQFF file; see `checkpoint`."""
        words, scale, zero, form = checkpoint.read(stored)
        layout = form.layout
        k = layout.shape[1]
        if not layout.axis or k % layout.group or k % CELL:
            return Across(words, scale, zero, form, stored.dtype)
        codes = naive.unpack(words, layout).view(layout.shape)
        groups = (layout.shape[0], k // layout.group)
        return cls.of_codes(codes, scale.view(groups), zero.view(groups), form, stored.dtype)

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """A float weight [..., n, k] as "hqq1" to "hqq8", in groups of 64; k must be of groups."""
        bits = int(format.removeprefix("hqq"))
        return cls.of_codes(*solver.solve(weight, bits, GROUP), checkpoint.form(bits, GROUP), dtype)

    @classmethod
    def of_codes(
        cls, codes: Tensor, scale: Tensor, zero: Tensor, form: Form, dtype: torch.dtype
    ) -> Self:
        """codes uint8 [..., k], scale and zero floats [..., k / group]."""
        planes = Planes(codes=pack_codes(codes, form.layout.bits), scale=scale, zero=zero)
        made = cls(form.format, planes, dtype)
        made.form = form
        return made

    def save(self) -> dict[str, Tensor]:
        planes = self.planes.rows()
        assert isinstance(planes.zero, Tensor), "HQQ has a zero for each group"
        form = self.form.of(planes.shape[0], planes.shape[1])
        layout = form.layout
        words = naive.pack(unpack_codes(planes.codes).view(layout.matrix), layout)
        scales = (planes.scale.reshape(layout.scales), planes.zero.reshape(layout.scales))
        return form.tensors(words, *scales)


class Across(Storage):
    """A weight [n, k] whose groups lie across rows, or end elsewhere than these; as it was read.

    It has no kernels: rows are dequantized and then multiplied.
    """

    def __init__(
        self, words: Tensor, scale: Tensor, zero: Tensor, form: Form, dtype: torch.dtype
    ) -> None:
        self.words, self.scale, self.zero, self.form = words, scale, zero, form
        self.format, self.shape = form.format, form.layout.shape
        self.dtype, self.device = dtype, words.device

    def dequantize(self, start: int = 0, stop: int | None = None) -> Tensor:
        parts = (self.words, self.scale, self.zero)
        return naive.dequantize(*parts, self.form.layout, start, stop).to(self.dtype)

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scale.nbytes + self.zero.nbytes

    def save(self) -> dict[str, Tensor]:
        return self.form.tensors(self.words, self.scale, self.zero)

    def slice(self, axis: int, start: int, stop: int) -> Storage:
        raise errors.Unsupported(
            f"{self.format} weights whose groups lie across rows cannot be cut; use one rank"
        )

    def settle(
        self, deterministic: bool = False, rows: bool = False, *, exact: bool = False
    ) -> str:
        if deterministic:
            raise errors.Unsupported(
                f"{self.format} weights whose groups lie across rows have no kernel that is "
                "reproducible row by row; leave --deterministic out"
            )
        layout = self.form.layout
        why = f"groups of {layout.group} along axis {layout.axis} do not fit planes"
        return f"{self.format}: dequantized in blocks of rows ({why})"
