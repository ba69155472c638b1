"""Hqq: a weight in planes, where its groups lie along rows."""

from __future__ import annotations

from functools import partial
from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.hqq import GROUP, checkpoint, naive, solver
from ostro.quant.hqq.checkpoint import Form
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes


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
            return Dequantized(
                stored,
                form.format,
                layout.shape,
                {"words": words, "scale": scale, "zero": zero},
                partial(naive.dequantize_rows, layout=layout),
                f"groups of {layout.group} along axis {layout.axis} do not fit planes",
            )
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
