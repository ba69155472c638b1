"""Hqq: the storage of HQQ weights."""

from __future__ import annotations

from functools import partial
from typing import Self

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.hqq import GROUP, checkpoint, naive, solver
from ostro.quant.hqq.checkpoint import StoredLayout
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes


class Hqq(Packed):
    """A weight [n, k], or [experts, n, k], with groups along its rows."""

    stored_layout: StoredLayout

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """Read the tensors of the hqq package or of a UQFF file; see `checkpoint`."""
        words, scale, zero, stored_layout = checkpoint.read(stored)
        layout = stored_layout.layout
        k = layout.shape[1]
        if not layout.axis or k % layout.group or k % CELL:
            return Dequantized(
                stored,
                stored_layout.format,
                layout.shape,
                {"words": words, "scale": scale, "zero": zero},
                partial(naive.dequantize_rows, layout=layout),
                f"groups of {layout.group} along axis {layout.axis} do not fit planes",
            )
        codes = naive.unpack(words, layout).view(layout.shape)
        groups = (layout.shape[0], k // layout.group)
        return cls.from_codes(
            codes, scale.view(groups), zero.view(groups), stored_layout, stored.dtype
        )

    @classmethod
    def quantize(
        cls, weight: Tensor, format: str, dtype: torch.dtype, importance: Tensor | None = None
    ) -> Self:
        """Quantize a float weight [..., n, k] to "hqq1" ... "hqq8"; k must be a multiple of 64."""
        bits = int(format.removeprefix("hqq"))
        return cls.from_codes(
            *solver.solve(weight, bits, GROUP), checkpoint.hqq_layout(bits, GROUP), dtype
        )

    @classmethod
    def from_codes(
        cls,
        codes: Tensor,
        scale: Tensor,
        zero: Tensor,
        stored_layout: StoredLayout,
        dtype: torch.dtype,
    ) -> Self:
        """codes uint8 [..., k], scale and zero floats [..., k / group]."""
        planes = Planes(codes=pack_codes(codes, stored_layout.layout.bits), scale=scale, zero=zero)
        storage = cls(stored_layout.format, planes, dtype)
        storage.stored_layout = stored_layout
        return storage

    def save(self) -> dict[str, Tensor]:
        planes = self.planes.rows()
        assert isinstance(planes.zero, Tensor), "HQQ has a zero for each group"
        stored_layout = self.stored_layout.with_shape(planes.shape[0], planes.shape[1])
        layout = stored_layout.layout
        words = naive.pack(unpack_codes(planes.codes).view(layout.matrix), layout)
        scales = (planes.scale.reshape(layout.scales), planes.zero.reshape(layout.scales))
        return stored_layout.tensors(words, *scales)
