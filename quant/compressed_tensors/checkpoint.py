"""What files hold of a weight of compressed-tensors: what kind it is, and its numbers."""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

import torch
from torch import Tensor

from ostro import Stored
from ostro.quant.compressed_tensors import config, naive

SCALE, ZERO, INDEX = "weight_scale", "weight_zero_point", "weight_g_idx"
SHAPE, GLOBAL = "weight_shape", "weight_global_scale"
UNUSED = frozenset(
    f"{of}_{what}" for of in ("input", "output") for what in ("scale", "zero_point", "global_scale")
)
"""Scales of activations, which are not applied here."""

KNOWN = UNUSED | {"weight", "weight_packed", SCALE, ZERO, INDEX, SHAPE, GLOBAL}
NVFP4_GROUP = 16
AGAIN = "the file does not match its config; download the model or quantize it again"


class Weight(NamedTuple):
    """codes uint8 [n, k] of so many bits; scale, and zero where not all share it, [n, groups]; a
    table of what codes stand for; d [n, 1], a factor of scales; the group of each column [k],
    where the file has it.
    """

    kind: str
    codes: Tensor
    bits: int
    scale: Tensor
    zero: float | Tensor = 0
    table: Tensor | None = None
    d: Tensor | None = None
    groups: Tensor | None = None

    @property
    def format(self) -> str:
        return {"fp8": "FP8", "nvfp4": "NVFP4"}.get(self.kind, f"INT{self.bits}")


def read(stored: Stored) -> Weight:
    """The numbers of what is stored. Refuses other kinds by name."""
    main = main_of(stored)
    held = stored.tensors[main].to(stored.device)
    if main == "weight_packed" and held.dtype == torch.int32:
        return packed(stored, held)
    if main == "weight_packed" and held.dtype == torch.uint8 and GLOBAL in stored.tensors:
        return nvfp4(stored, held)
    if main == "weight" and held.dtype in (torch.int8, torch.float8_e4m3fn):
        if tuple(held.shape) != stored.shape:
            raise stored.fault(misshapen(held, f"{list(stored.shape)}"), main)
        return int8(stored, held) if held.dtype == torch.int8 else fp8(stored, held)
    raise stored.fault(foreign(stored, f"has type {held.dtype} and"), main)


def main_of(stored: Stored) -> str:
    """The suffix of the tensor with the codes."""
    found = stored.tensors.keys()
    mains = found & {"weight", "weight_packed"}
    if len(mains) != 1 or found - KNOWN:
        more = ", ".join(sorted(found - KNOWN))
        raise stored.fault(foreign(stored, f"comes with {more} and" if more else ""))
    if SCALE not in found:
        raise stored.fault(f"lacks {SCALE}; download the model again")
    if places := config.online(stored.settings):
        raise stored.fault(
            f"is of a model that transforms activations at run time ({', '.join(places)}), which "
            "is not supported; use a file without transforms, or the float model"
        )
    return mains.pop()


def foreign(stored: Stored, what: str) -> str:
    return (
        f"{what} is of a compressed-tensors model of format {config.named(stored.settings)!r}, "
        "which is not supported; use pack-, int-, float- or nvfp4-pack-quantized files, or the "
        "float model"
    ).strip()


def misshapen(held: Tensor, wanted: str) -> str:
    return f"has shape {list(held.shape)} and type {held.dtype}, expected {wanted}; {AGAIN}"


def packed(stored: Stored, held: Tensor) -> Weight:
    (n, k), tensors = stored.shape, stored.tensors
    bits = bits_of(stored, held)
    if SHAPE in tensors and (shape := tensors[SHAPE].tolist()) != [n, k]:
        raise stored.fault(f"is {shape}, but the model's config expects {[n, k]}; {AGAIN}", SHAPE)
    scale = scale_of(stored)
    zero: float | Tensor = 2.0 ** (bits - 1)
    if ZERO in tensors:
        zero = packed_points(stored, bits, scale.shape[-1])
    codes, groups = naive.unpack(held, bits, k), groups_of(stored, scale.shape[-1])
    return Weight("packed", codes, bits, scale, zero, groups=groups)


def packed_points(stored: Stored, bits: int, groups: int) -> Tensor:
    """Zeros as codes, uint8 [n, groups]: packed, or of early files and whole tensors int8."""
    points, n = stored.tensors[ZERO].to(stored.device), stored.shape[0]
    if points.dtype == torch.int32:
        wanted = (ceil(n * bits / 32), groups)
        if tuple(points.shape) != wanted:
            raise stored.fault(misshapen(points, f"int32 {list(wanted)}"), ZERO)
        return naive.unpack(points.t(), bits, n).t()
    codes = points_of(stored) - (128 - 2 ** (bits - 1))
    if bool((codes >> bits).any()):
        raise stored.fault(f"has zeros of more than {bits} bits; {AGAIN}", ZERO)
    return codes


def bits_of(stored: Stored, held: Tensor) -> int:
    """Bits of a packed code, from the shape; some scheme of the config must match."""
    n, k = stored.shape
    rows, words = held.shape if held.dim() == 2 else (0, 0)
    fits = [bits for bits in range(1, 9) if ceil(k * bits / 32) == words]
    configured = config.bits(stored.settings)
    if rows != n or len(fits) != 1:
        raise stored.fault(
            misshapen(held, f"[{n}, ceil({k} b / 32)] of 1 to 8 bits"), "weight_packed"
        )
    if configured and fits[0] not in configured:
        raise stored.fault(
            f"has the shape of {fits[0]} bits, config.json has num_bits "
            f"{', '.join(map(repr, configured))}; {AGAIN}",
            "weight_packed",
        )
    return fits[0]


def int8(stored: Stored, held: Tensor) -> Weight:
    zero: float | Tensor = 128.0
    if ZERO in stored.tensors:
        zero = points_of(stored)
    return Weight("int8", naive.unsigned(held), 8, scale_of(stored), zero)


def fp8(stored: Stored, held: Tensor) -> Weight:
    codes, scale = held.contiguous().view(torch.uint8), scale_of(stored)
    if bool((codes & 0x7F == 0x7F).any()):
        raise stored.fault("contains NaN or Inf; download the model again", "weight")
    refuse_points(stored)
    return Weight("fp8", codes, 8, scale, table=naive.table_of_fp8().to(held.device))


def nvfp4(stored: Stored, held: Tensor) -> Weight:
    n, k = stored.shape
    if tuple(held.shape) != (n, k // 2) or k % NVFP4_GROUP:
        raise stored.fault(misshapen(held, f"[{n}, {k} / 2]"), "weight_packed")
    scale, whole = stored.tensors[SCALE].to(stored.device), stored.number(GLOBAL)
    wanted = (n, k // NVFP4_GROUP)
    if tuple(scale.shape) != wanted or scale.dtype != torch.float8_e4m3fn:
        raise stored.fault(misshapen(scale, f"float8_e4m3fn {list(wanted)}"), SCALE)
    if not bool(scale.float().isfinite().all()):
        raise stored.fault("contains NaN or Inf; download the model again", SCALE)
    if not whole > 0:
        raise stored.fault(f"is {whole}, expected a positive number; {AGAIN}", GLOBAL)
    refuse_points(stored)
    d = torch.tensor(whole, dtype=torch.float32, device=stored.device).reciprocal().expand(n, 1)
    table = naive.table_of_fp4().to(stored.device)
    return Weight("nvfp4", naive.unpack_halves(held), 4, scale, table=table, d=d)


def scale_of(stored: Stored) -> Tensor:
    """The scale of every group of every row, floats [n, groups]."""
    scale = stored.tensors[SCALE].to(stored.device)
    floats = scale.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if not floats or not bool(scale.isfinite().all()):
        raise stored.fault(f"has type {scale.dtype}, or contains NaN or Inf; {AGAIN}", SCALE)
    return spread(stored, scale, SCALE)


def points_of(stored: Stored) -> Tensor:
    """int8 zeros, plus 128: uint8 [n, groups]."""
    points = stored.tensors[ZERO].to(stored.device)
    if points.dtype != torch.int8:
        raise stored.fault(f"has type {points.dtype}, expected torch.int8; {AGAIN}", ZERO)
    return spread(stored, naive.unsigned(points), ZERO)


def refuse_points(stored: Stored) -> None:
    """Raise the fault of zero points other than 0 for low-bit floats."""
    if ZERO in stored.tensors and bool(stored.tensors[ZERO].float().any()):
        raise stored.fault(f"has zero points other than 0 for floats; {AGAIN}", ZERO)


def spread(stored: Stored, shared: Tensor, suffix: str) -> Tensor:
    """Numbers of the tensor, of rows, groups or blocks -> those of each row, [n, groups]."""
    n, k = stored.shape
    if shared.numel() == 1:
        return shared.reshape(1, 1).expand(n, 1)
    if tuple(shared.shape) == (n,):
        return shared[:, None]
    if shared.dim() == 2 and shared.shape[0] == n and shared.shape[1] and not k % shared.shape[1]:
        return shared
    for high, wide in config.blocks(stored.settings):
        if tuple(shared.shape) == (ceil(n / high), ceil(k / wide)):
            return naive.spread(shared, high, wide, gcd(k, wide), n, k)
    raise stored.fault(
        f"has shape {list(shared.shape)}, expected one number, one for each row, for each of its "
        f"groups, or for each block {config.blocks(stored.settings)} of {[n, k]} weights; {AGAIN}",
        suffix,
    )


def groups_of(stored: Stored, groups: int) -> Tensor | None:
    """The group of each column, or None where the file has none: -1 stands for none."""
    if INDEX not in stored.tensors:
        return None
    found, k = stored.tensors[INDEX].to(stored.device), stored.shape[-1]
    if found.shape != (k,) or found.is_floating_point():
        raise stored.fault(misshapen(found, f"integers [{k}]"), INDEX)
    if bool((found == -1).all()):
        return None
    known = int(found.min()) >= 0 and int(found.max()) < groups
    if not known or bool((found.long().bincount(minlength=groups) * groups != k).any()):
        raise stored.fault(f"does not name {groups} groups of one size; {AGAIN}", INDEX)
    return found
