"""Awq: an AWQ weight in planes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ostro import Storage, Stored
from ostro.nn import Dequantized
from ostro.quant.awq import naive
from ostro.quant.planes.storage import CELL, Packed, Planes, pack_codes, unpack_codes

NAMES = ("qweight", "qzeros", "scales")
AGAIN = "the file and its config do not agree, download the model or quantize it again"


class Awq(Packed):
    """A weight [n, k], or [experts, n, k], of groups along its rows: see `naive`."""

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """From "qweight", "qzeros" and "scales". The shapes say how large a group is."""
        check(stored)
        qweight, qzeros, scales = (stored.tensors[name].to(stored.device) for name in NAMES)
        codes, zeros = naive.unpack(qweight).t(), naive.unpack(qzeros).t()
        scales = scales.t().contiguous()
        if codes.shape[-1] % CELL:
            return Dequantized(
                stored,
                "AWQ4",
                tuple(codes.shape),
                {"codes": codes, "scales": scales, "zeros": zeros},
                naive.dequantize_rows,
                f"{codes.shape[-1]} columns are no multiple of {CELL}",
            )
        planes = Planes(codes=pack_codes(codes, 4), scale=scales, zero=zeros.contiguous())
        return cls("AWQ4", planes, stored.dtype)

    def save(self) -> dict[str, Tensor]:
        assert isinstance(self.planes.zero, Tensor), "AWQ has a zero for each group"
        return tensors(unpack_codes(self.planes.codes), self.planes.scale, self.planes.zero)


def tensors(codes: Tensor, scales: Tensor, zeros: Tensor) -> dict[str, Tensor]:
    """codes [..., n, k], scales and zeros [..., n, groups] -> the tensors of a file."""
    packed = (naive.pack(codes.mT), naive.pack(zeros.mT), scales.mT.contiguous())
    return dict(zip(NAMES, packed, strict=True))


def check(stored: Stored) -> None:
    """Refuse other versions by name, and tensors that do not fit each other or the config."""
    settings, found = stored.settings, stored.tensors
    version = first(settings, "version", "checkpoint_format", "format")
    if str(version or "gemm").lower() != "gemm":
        raise stored.fault(
            f"is of an AWQ model in the version {version!r:.80}, which is not read here; use a "
            "file of the model in the version 'gemm', or its floats"
        )
    if missing := [name for name in NAMES if name not in found]:
        raise stored.fault(f"has no {' and no '.join(missing)} beside it; download the model again")
    if extra := found.keys() - {*NAMES}:
        raise stored.fault(
            f"has {', '.join(sorted(extra))} beside it, which AWQ has not; use another file of "
            "the model, or its floats"
        )
    check_shapes(stored)
    said = first(settings, "bits", "w_bit")
    if said not in (None, 4):
        raise stored.fault(
            f"has the shape of 4 bits, and config.json says {said!r:.80} bits; {AGAIN}", "qweight"
        )


def check_shapes(stored: Stored) -> None:
    n, k = stored.shape
    qweight, qzeros, scales = (stored.tensors[name] for name in NAMES)
    if tuple(qweight.shape) != (k, n // 8) or n % 8 or qweight.dtype != torch.int32:
        raise stored.fault(
            f"has shape {list(qweight.shape)} of {qweight.dtype}, where weights {[n, k]} of 4 bits "
            f"are int32 [{k}, {n} / 8]; {AGAIN}",
            "qweight",
        )
    groups = scales.shape[0] if scales.dim() == 2 and scales.shape[1] == n else 0
    if not groups or k % groups or not scales.is_floating_point():
        raise stored.fault(
            f"has shape {list(scales.shape)} of {scales.dtype}, no floats [groups, {n}] of whole "
            f"groups of {k} columns; {AGAIN}",
            "scales",
        )
    if tuple(qzeros.shape) != (groups, n // 8) or qzeros.dtype != torch.int32:
        raise stored.fault(
            f"has shape {list(qzeros.shape)} of {qzeros.dtype}, where {groups} groups of zeros are "
            f"int32 [{groups}, {n} / 8]; {AGAIN}",
            "qzeros",
        )
    said = first(stored.settings, "group_size", "q_group_size")
    if said not in (None, k // groups) and (said, groups) != (-1, 1):
        raise stored.fault(
            f"has {groups} groups for {k} columns, and config.json says group_size={said!r:.80}; "
            f"{AGAIN}",
            "scales",
        )


def first(settings: Mapping[str, Any], *names: str) -> Any:
    """What a config says under the first of several names that it has."""
    return next((settings[name] for name in names if settings.get(name) is not None), None)
