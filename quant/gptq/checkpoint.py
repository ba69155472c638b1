"""Read and validate the tensors of a GPTQ weight, and the groups of its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, gcd

import torch
from torch import Tensor

from ostro import Stored
from ostro.quant.gptq import INDEX, MARLIN, NEEDED, naive

V1, V2 = "gptq", "gptq_v2"
AGAIN = "the file does not match its config; download the model or quantize it again"


@dataclass(frozen=True)
class StoredFormat:
    """The format of a weight in a file.

    bits             bits of a code
    zeros_minus_one  whether the stored zeros are decremented by one
    groups           the group of each column, integers [k]
    indexed          whether the file contains `groups` as g_idx
    """

    bits: int
    zeros_minus_one: bool
    groups: Tensor
    indexed: bool

    @property
    def format(self) -> str:
        return f"GPTQ{self.bits}"

    def tensors(self, codes: Tensor, scales: Tensor, zeros: Tensor) -> dict[str, Tensor]:
        """codes [..., n, k], scales and zeros [..., n, groups] -> the tensors of a file."""
        zeros = zeros.mT.contiguous()
        found = {
            "qweight": naive.pack(codes, self.bits).mT.contiguous(),
            "qzeros": naive.pack_zeros(zeros, self.bits, zeros_minus_one=self.zeros_minus_one),
            "scales": scales.mT.contiguous(),
        }
        return found | {INDEX: self.groups} if self.indexed else found


def read(stored: Stored) -> tuple[Tensor, Tensor, Tensor, StoredFormat]:
    """Codes uint8 [n, k], scales floats and zeros uint8 [n, groups], and the stored format.

    Raises CheckpointError for unsupported formats and inconsistent tensors.
    """
    version = version_of(stored)
    (n, k), bits = stored.shape, bits_of(stored)
    qweight, qzeros, scales = (stored.tensors[name].to(stored.device) for name in NEEDED)
    if scales.dim() != 2 or scales.shape[-1] != n or not scales.is_floating_point():
        raise stored.fault(
            f"has shape {list(scales.shape)}, expected floats [groups, {n}]; {AGAIN}", "scales"
        )
    expected = (len(scales), ceil(n * bits / 32))
    if tuple(qzeros.shape) != expected or qzeros.dtype != torch.int32:
        raise stored.fault(
            f"has shape {list(qzeros.shape)} and type {qzeros.dtype}, expected int32 "
            f"{list(expected)} for {len(scales)} groups of {bits} bits; {AGAIN}",
            "qzeros",
        )
    stored_format = StoredFormat(
        bits, version == V1, groups_of(stored, len(scales)), INDEX in stored.tensors
    )
    codes = naive.unpack(qweight.t(), bits, k)
    zeros = naive.unpack_zeros(qzeros, bits, n, zeros_minus_one=stored_format.zeros_minus_one)
    return codes, scales.t(), zeros.t(), stored_format


def version_of(stored: Stored) -> str:
    """The version of the format. Raises CheckpointError for unsupported versions and tensors."""
    settings, found = stored.settings, stored.tensors.keys()
    version = str(settings.get("checkpoint_format") or settings.get("format") or V1).lower()
    if settings.get("is_marlin_format") or MARLIN in found:
        version = "marlin"
    if version not in (V1, V2):
        raise stored.fault(
            f"is of a GPTQ model of format {version!r}, which is not supported; use a file of "
            f"format {V1!r} or {V2!r}, or the float model"
        )
    if missing := [name for name in NEEDED if name not in found]:
        raise stored.fault(f"is missing {' and '.join(missing)}; download the model again")
    if extra := found - {*NEEDED, INDEX, "bias"}:
        raise stored.fault(
            f"has extra tensors {', '.join(sorted(extra))}, which are not part of GPTQ; use "
            "another file of the model, or the float model"
        )
    if "bias" in found and bool(stored.tensors["bias"].any()):
        raise stored.fault(
            "is a bias, which the architecture does not have here; the file is of another model",
            "bias",
        )
    return version


def bits_of(stored: Stored) -> int:
    """Bits of a code, from the shape; the config must match, unless it has per-layer rules."""
    qweight, (n, k) = stored.tensors["qweight"], stored.shape
    rows = qweight.shape[0]
    bits, remainder = divmod(rows * 32, k)
    if remainder or bits not in naive.BITS or tuple(qweight.shape) != (rows, n):
        raise stored.fault(
            f"has shape {list(qweight.shape)}, expected [{k} b / 32, {n}] for weights {[n, k]} of "
            f"b bits, b one of {', '.join(map(str, naive.BITS))}; {AGAIN}",
            "qweight",
        )
    if qweight.dtype != torch.int32:
        raise stored.fault(
            f"is packed in {qweight.dtype}, expected torch.int32; quantize the model again",
            "qweight",
        )
    configured = stored.settings.get("bits", bits)
    if configured != bits and not stored.settings.get("dynamic"):
        raise stored.fault(
            f"has the shape of {bits} bits, config.json has bits={configured!r:.80}; {AGAIN}",
            "qweight",
        )
    return bits


def groups_of(stored: Stored, groups: int) -> Tensor:
    """The group of each column, integers [k]; every group must have columns."""
    k, settings = stored.shape[-1], stored.settings
    if INDEX in stored.tensors:
        found = stored.tensors[INDEX].to(stored.device)
        is_valid = found.shape == (k,) and not found.is_floating_point()
        if not is_valid or int(found.min()) < 0 or int(found.max()) >= groups:
            raise stored.fault(
                f"has shape {list(found.shape)} and type {found.dtype}, expected integers [{k}] in "
                f"0..{groups - 1}; {AGAIN}",
                INDEX,
            )
        if empty := groups - len(found.unique()):
            raise stored.fault(f"leaves {empty} of {groups} groups empty; {AGAIN}", INDEX)
        return found
    if settings.get("desc_act"):
        raise stored.fault(
            f"is missing {INDEX}, but config.json has desc_act; download the model again"
        )
    return torch.arange(k, device=stored.device) // size_of(stored, groups)


def size_of(stored: Stored, groups: int) -> int:
    """The columns of a group of a file without g_idx; -1 in the config means all columns."""
    k, configured = stored.shape[-1], stored.settings.get("group_size")
    if groups and (configured is None or stored.settings.get("dynamic")) and k % groups == 0:
        return k // groups
    size = k if configured == -1 else configured
    if type(size) is not int or size < 1 or ceil(k / size) != groups:
        raise stored.fault(
            f"has {groups} groups for {k} columns, config.json has group_size={configured!r:.80}; "
            f"{AGAIN}",
            "scales",
        )
    return size


def contiguous_order(groups: Tensor) -> tuple[Tensor | None, Tensor]:
    """The column order that makes groups contiguous, and the group of each run of columns.

    The order is int64 [k], or None if groups are contiguous. Runs have equal size, so that groups
    of different sizes consist of several runs; the groups of runs are int64 [runs].
    """
    order = groups.argsort(stable=True)
    run = gcd(*groups.bincount().tolist())
    ordered = groups[order]
    return None if ordered.equal(groups) else order, ordered[::run].long()


def other_tensors(stored: Stored) -> Mapping[str, Tensor]:
    """Tensors that `save` returns unchanged: the zero biases of early files."""
    return {name: stored.tensors[name] for name in ("bias",) if name in stored.tensors}
