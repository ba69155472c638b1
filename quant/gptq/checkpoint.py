"""What files hold of a GPTQ weight: its tensors, and what they and the config say of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, gcd

import torch
from torch import Tensor

from ostro import Stored
from ostro.quant.gptq import INDEX, MARLIN, NEEDED, naive

V1, V2 = "gptq", "gptq_v2"
AGAIN = "the file and its config do not agree, download the model or quantize it again"


@dataclass(frozen=True)
class Form:
    """How a file holds a weight: the bits of a code, whether zeros are stored less one, the group
    of each column, integers [k], and whether the file says it.
    """

    bits: int
    less_one: bool
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
            "qzeros": naive.pack_zeros(zeros, self.bits, less_one=self.less_one),
            "scales": scales.mT.contiguous(),
        }
        return found | {INDEX: self.groups} if self.indexed else found


def read(stored: Stored) -> tuple[Tensor, Tensor, Tensor, Form]:
    """Codes uint8 [n, k], scales floats and zeros uint8 [n, groups], and the form."""
    version = version_of(stored)
    (n, k), bits = stored.shape, bits_of(stored)
    qweight, qzeros, scales = (stored.tensors[name].to(stored.device) for name in NEEDED)
    if scales.dim() != 2 or scales.shape[-1] != n or not scales.is_floating_point():
        raise stored.fault(
            f"has shape {list(scales.shape)}, no floats [groups, {n}]; {AGAIN}", "scales"
        )
    wanted = (len(scales), ceil(n * bits / 32))
    if tuple(qzeros.shape) != wanted or qzeros.dtype != torch.int32:
        raise stored.fault(
            f"has shape {list(qzeros.shape)} of {qzeros.dtype}, where {len(scales)} groups of "
            f"zeros of {bits} bits are int32 {list(wanted)}; {AGAIN}",
            "qzeros",
        )
    form = Form(bits, version == V1, groups_of(stored, len(scales)), INDEX in stored.tensors)
    codes = naive.unpack(qweight.t(), bits, k)
    zeros = naive.unpack_zeros(qzeros, bits, n, less_one=form.less_one)
    return codes, scales.t(), zeros.t(), form


def version_of(stored: Stored) -> str:
    """How the file holds zeros. Refuses what is no plain GPTQ, by name."""
    settings, found = stored.settings, stored.tensors.keys()
    said = str(settings.get("checkpoint_format") or settings.get("format") or V1).lower()
    if settings.get("is_marlin_format") or MARLIN in found:
        said = "marlin"
    if said not in (V1, V2):
        raise stored.fault(
            f"is of a GPTQ model in the format {said!r}, which is not read here; use a file of the "
            f"model in the format {V1!r} or {V2!r}, or its floats"
        )
    if missing := [name for name in NEEDED if name not in found]:
        raise stored.fault(f"has no {' and no '.join(missing)} beside it; download the model again")
    if extra := found - {*NEEDED, INDEX, "bias"}:
        raise stored.fault(
            f"has {', '.join(sorted(extra))} beside it, which GPTQ has not; use another file of "
            "the model, or its floats"
        )
    if "bias" in found and bool(stored.tensors["bias"].any()):
        raise stored.fault(
            "is a bias, for which the architecture has no place; the file is of another model",
            "bias",
        )
    return said


def bits_of(stored: Stored) -> int:
    """Bits of a code, as the shape has it; the config must agree, where it speaks of all layers."""
    qweight, (n, k) = stored.tensors["qweight"], stored.shape
    rows = qweight.shape[0]
    bits, over = divmod(rows * 32, k)
    if over or bits not in naive.BITS or tuple(qweight.shape) != (rows, n):
        raise stored.fault(
            f"has shape {list(qweight.shape)}, where weights {[n, k]} of b bits are [{k} b / 32, "
            f"{n}] and b is one of {', '.join(map(str, naive.BITS))}; {AGAIN}",
            "qweight",
        )
    if qweight.dtype != torch.int32:
        raise stored.fault(
            f"is packed in {qweight.dtype}, and only torch.int32 is read; quantize the model again",
            "qweight",
        )
    said = stored.settings.get("bits", bits)
    if said != bits and not stored.settings.get("dynamic"):
        raise stored.fault(
            f"has the shape of {bits} bits, and config.json says bits={said!r:.80}; {AGAIN}",
            "qweight",
        )
    return bits


def groups_of(stored: Stored, groups: int) -> Tensor:
    """The group of each column, integers [k], which all must have some."""
    k, settings = stored.shape[-1], stored.settings
    if INDEX in stored.tensors:
        found = stored.tensors[INDEX].to(stored.device)
        whole = found.shape == (k,) and not found.is_floating_point()
        if not whole or int(found.min()) < 0 or int(found.max()) >= groups:
            raise stored.fault(
                f"has shape {list(found.shape)} of {found.dtype}, where it says which of {groups} "
                f"groups each of {k} columns is of, or names other groups; {AGAIN}",
                INDEX,
            )
        if empty := groups - len(found.unique()):
            raise stored.fault(f"leaves {empty} of {groups} groups empty; {AGAIN}", INDEX)
        return found
    if settings.get("desc_act"):
        raise stored.fault(
            f"has no {INDEX} beside it, though config.json says desc_act; download the model again"
        )
    return torch.arange(k, device=stored.device) // size_of(stored, groups)


def size_of(stored: Stored, groups: int) -> int:
    """The columns of a group where no index says it. -1 in the config means all."""
    k, said = stored.shape[-1], stored.settings.get("group_size")
    if groups and (said is None or stored.settings.get("dynamic")) and k % groups == 0:
        return k // groups
    size = k if said == -1 else said
    if type(size) is not int or size < 1 or ceil(k / size) != groups:
        raise stored.fault(
            f"has {groups} groups for {k} columns, and config.json says group_size={said!r:.80}; "
            f"{AGAIN}",
            "scales",
        )
    return size


def arrange(groups: Tensor) -> tuple[Tensor | None, Tensor]:
    """The order of columns in which groups are neighbours, int64 [k] or None where they are so;
    and the group of each run of columns, int64 [runs]: runs are of one size that divides all.
    """
    order = groups.argsort(stable=True)
    run = gcd(*groups.bincount().tolist())
    ordered = groups[order]
    return None if ordered.equal(groups) else order, ordered[::run].long()


def beside(stored: Stored) -> Mapping[str, Tensor]:
    """What goes back as it came: biases of zeros, which early files have for every linear."""
    return {name: stored.tensors[name] for name in ("bias",) if name in stored.tensors}
