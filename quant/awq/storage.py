"""Awq: the storage of AWQ weights."""

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
AGAIN = "the file does not match its config; download the model or quantize it again"


class Awq(Packed):
    """A weight [n, k], or [experts, n, k], with groups along its rows; see `naive`."""

    @classmethod
    def read(cls, stored: Stored) -> Storage:
        """Read "qweight", "qzeros" and "scales"; the shapes determine the group size."""
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
                f"{codes.shape[-1]} columns are not a multiple of {CELL}",
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
    """Raise CheckpointError for other versions of AWQ and for inconsistent tensors."""
    settings, found = stored.settings, stored.tensors
    version = first(settings, "version", "checkpoint_format", "format")
    if str(version or "gemm").lower() != "gemm":
        raise stored.fault(
            f"is of an AWQ model of version {version!r:.80}, which is not supported; use a file of "
            "version 'gemm', or the float model"
        )
    if missing := [name for name in NAMES if name not in found]:
        raise stored.fault(f"is missing {' and '.join(missing)}; download the model again")
    if extra := found.keys() - {*NAMES}:
        raise stored.fault(
            f"comes with {', '.join(sorted(extra))}, which are not part of AWQ; use another file "
            "of the model, or the float model"
        )
    check_shapes(stored)
    bits = first(settings, "bits", "w_bit")
    if bits not in (None, 4):
        raise stored.fault(
            f"has the shape of 4 bits, config.json has {bits!r:.80} bits; {AGAIN}", "qweight"
        )


def check_shapes(stored: Stored) -> None:
    n, k = stored.shape
    qweight, qzeros, scales = (stored.tensors[name] for name in NAMES)
    if tuple(qweight.shape) != (k, n // 8) or n % 8 or qweight.dtype != torch.int32:
        raise stored.fault(
            f"has shape {list(qweight.shape)} and type {qweight.dtype}, expected int32 "
            f"[{k}, {n} / 8] for weights {[n, k]} of 4 bits; {AGAIN}",
            "qweight",
        )
    groups = scales.shape[0] if scales.dim() == 2 and scales.shape[1] == n else 0
    if not groups or k % groups or not scales.is_floating_point():
        raise stored.fault(
            f"has shape {list(scales.shape)} and type {scales.dtype}, expected floats "
            f"[groups, {n}] of groups that divide {k} columns; {AGAIN}",
            "scales",
        )
    if tuple(qzeros.shape) != (groups, n // 8) or qzeros.dtype != torch.int32:
        raise stored.fault(
            f"has shape {list(qzeros.shape)} and type {qzeros.dtype}, expected int32 "
            f"[{groups}, {n} / 8]; {AGAIN}",
            "qzeros",
        )
    size = first(stored.settings, "group_size", "q_group_size")
    if size not in (None, k // groups) and (size, groups) != (-1, 1):
        raise stored.fault(
            f"has {groups} groups for {k} columns, config.json has group_size={size!r:.80}; "
            f"{AGAIN}",
            "scales",
        )


def first(settings: Mapping[str, Any], *names: str) -> Any:
    """The first value that is not None among several names in a config."""
    return next((settings[name] for name in names if settings.get(name) is not None), None)
