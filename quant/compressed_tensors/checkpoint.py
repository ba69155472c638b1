"""Read and validate the tensors of a compressed-tensors weight."""

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
"""Scales of activations, which are not applied."""

KNOWN = UNUSED | {"weight", "weight_packed", SCALE, ZERO, INDEX, SHAPE, GLOBAL}
NVFP4_GROUP = 16
AGAIN = "the file does not match its config; download the model or quantize it again"


class Weight(NamedTuple):
    """The contents of a weight.

    kind    "packed", "int8", "fp8" or "nvfp4"
    codes   uint8 [n, k]
    scale   [n, groups]
    zero    [n, groups], or a number shared by all groups
    table   the values of codes, or None
    d       [n, 1], a factor of scales, or None
    groups  the group of each column [k], if the file has it
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
    """Read a weight. Raises CheckpointError for unsupported kinds and inconsistent tensors."""
    suffix = codes_suffix(stored)
    codes = stored.tensors[suffix].to(stored.device)
    if suffix == "weight_packed" and codes.dtype == torch.int32:
        return packed(stored, codes)
    if suffix == "weight_packed" and codes.dtype == torch.uint8 and GLOBAL in stored.tensors:
        return nvfp4(stored, codes)
    if suffix == "weight" and codes.dtype in (torch.int8, torch.float8_e4m3fn):
        if tuple(codes.shape) != stored.shape:
            raise stored.fault(wrong_shape(codes, f"{list(stored.shape)}"), suffix)
        return int8(stored, codes) if codes.dtype == torch.int8 else fp8(stored, codes)
    raise stored.fault(unsupported(stored, f"has type {codes.dtype} and"), suffix)


def codes_suffix(stored: Stored) -> str:
    """The suffix of the tensor with the codes. Raises CheckpointError for unsupported tensors."""
    found = stored.tensors.keys()
    suffixes = found & {"weight", "weight_packed"}
    if len(suffixes) != 1 or found - KNOWN:
        more = ", ".join(sorted(found - KNOWN))
        raise stored.fault(unsupported(stored, f"comes with {more} and" if more else ""))
    if SCALE not in found:
        raise stored.fault(f"is missing {SCALE}; download the model again")
    if locations := config.online_transforms(stored.settings):
        raise stored.fault(
            f"is of a model that transforms activations at run time ({', '.join(locations)}), "
            "which is not supported; use a file without transforms, or the float model"
        )
    return suffixes.pop()


def unsupported(stored: Stored, what: str) -> str:
    format = config.format_name(stored.settings)
    return (
        f"{what} belongs to a compressed-tensors model of format {format!r}, "
        "which is not supported; use pack-, int-, float- or nvfp4-pack-quantized files, or the "
        "float model"
    ).strip()


def wrong_shape(codes: Tensor, expected: str) -> str:
    return f"has shape {list(codes.shape)} and type {codes.dtype}, expected {expected}; {AGAIN}"


def packed(stored: Stored, codes: Tensor) -> Weight:
    (n, k), tensors = stored.shape, stored.tensors
    bits = bits_of(stored, codes)
    if SHAPE in tensors and (shape := tensors[SHAPE].tolist()) != [n, k]:
        raise stored.fault(f"is {shape}, but the model's config expects {[n, k]}; {AGAIN}", SHAPE)
    scale = scale_of(stored)
    zero: float | Tensor = 2.0 ** (bits - 1)
    if ZERO in tensors:
        zero = packed_zeros(stored, bits, scale.shape[-1])
    codes, groups = naive.unpack(codes, bits, k), groups_of(stored, scale.shape[-1])
    return Weight("packed", codes, bits, scale, zero, groups=groups)


def packed_zeros(stored: Stored, bits: int, groups: int) -> Tensor:
    """Zeros as codes, uint8 [n, groups]; early files and per-tensor scales have them as int8."""
    zeros, n = stored.tensors[ZERO].to(stored.device), stored.shape[0]
    if zeros.dtype == torch.int32:
        expected = (ceil(n * bits / 32), groups)
        if tuple(zeros.shape) != expected:
            raise stored.fault(wrong_shape(zeros, f"int32 {list(expected)}"), ZERO)
        return naive.unpack(zeros.t(), bits, n).t()
    codes = int8_zeros(stored) - (128 - 2 ** (bits - 1))
    if bool((codes >> bits).any()):
        raise stored.fault(f"has zeros of more than {bits} bits; {AGAIN}", ZERO)
    return codes


def bits_of(stored: Stored, codes: Tensor) -> int:
    """Bits of a packed code, from the shape; one scheme of the config must match."""
    n, k = stored.shape
    rows, words = codes.shape if codes.dim() == 2 else (0, 0)
    fits = [bits for bits in range(1, 9) if ceil(k * bits / 32) == words]
    configured = config.bits(stored.settings)
    if rows != n or len(fits) != 1:
        raise stored.fault(
            wrong_shape(codes, f"[{n}, ceil({k} b / 32)] of 1 to 8 bits"), "weight_packed"
        )
    if configured and fits[0] not in configured:
        raise stored.fault(
            f"has the shape of {fits[0]} bits, config.json has num_bits "
            f"{', '.join(map(repr, configured))}; {AGAIN}",
            "weight_packed",
        )
    return fits[0]


def int8(stored: Stored, codes: Tensor) -> Weight:
    zero: float | Tensor = 128.0
    if ZERO in stored.tensors:
        zero = int8_zeros(stored)
    return Weight("int8", naive.unsigned(codes), 8, scale_of(stored), zero)


def fp8(stored: Stored, codes: Tensor) -> Weight:
    codes, scale = codes.contiguous().view(torch.uint8), scale_of(stored)
    if bool((codes & 0x7F == 0x7F).any()):
        raise stored.fault("contains NaN or Inf; download the model again", "weight")
    reject_zeros(stored)
    return Weight("fp8", codes, 8, scale, table=naive.table_of_fp8().to(codes.device))


def nvfp4(stored: Stored, codes: Tensor) -> Weight:
    n, k = stored.shape
    if tuple(codes.shape) != (n, k // 2) or k % NVFP4_GROUP:
        raise stored.fault(wrong_shape(codes, f"[{n}, {k} / 2]"), "weight_packed")
    scale, whole = stored.tensors[SCALE].to(stored.device), stored.number(GLOBAL)
    expected = (n, k // NVFP4_GROUP)
    if tuple(scale.shape) != expected or scale.dtype != torch.float8_e4m3fn:
        raise stored.fault(wrong_shape(scale, f"float8_e4m3fn {list(expected)}"), SCALE)
    if not bool(scale.float().isfinite().all()):
        raise stored.fault("contains NaN or Inf; download the model again", SCALE)
    if not whole > 0:
        raise stored.fault(f"is {whole}, expected a positive number; {AGAIN}", GLOBAL)
    reject_zeros(stored)
    d = torch.tensor(whole, dtype=torch.float32, device=stored.device).reciprocal().expand(n, 1)
    table = naive.table_of_fp4().to(stored.device)
    return Weight("nvfp4", naive.unpack_halves(codes), 4, scale, table=table, d=d)


def scale_of(stored: Stored) -> Tensor:
    """The scale of every group of every row, floats [n, groups]."""
    scale = stored.tensors[SCALE].to(stored.device)
    floats = scale.dtype in (torch.float32, torch.bfloat16, torch.float16)
    if not floats or not bool(scale.isfinite().all()):
        raise stored.fault(f"has type {scale.dtype}, or contains NaN or Inf; {AGAIN}", SCALE)
    return expand(stored, scale, SCALE)


def int8_zeros(stored: Stored) -> Tensor:
    """Zeros of int8 tensors, plus 128: uint8 [n, groups]."""
    zeros = stored.tensors[ZERO].to(stored.device)
    if zeros.dtype != torch.int8:
        raise stored.fault(f"has type {zeros.dtype}, expected torch.int8; {AGAIN}", ZERO)
    return expand(stored, naive.unsigned(zeros), ZERO)


def reject_zeros(stored: Stored) -> None:
    """Raise CheckpointError for zero points of floats other than 0."""
    if ZERO in stored.tensors and bool(stored.tensors[ZERO].float().any()):
        raise stored.fault(f"has zero points other than 0 for floats; {AGAIN}", ZERO)


def expand(stored: Stored, shared: Tensor, suffix: str) -> Tensor:
    """Expand values per tensor, row, group or block to values per row and group, [n, groups]."""
    n, k = stored.shape
    if shared.numel() == 1:
        return shared.reshape(1, 1).expand(n, 1)
    if tuple(shared.shape) == (n,):
        return shared[:, None]
    if shared.dim() == 2 and shared.shape[0] == n and shared.shape[1] and not k % shared.shape[1]:
        return shared
    for rows, columns in config.blocks(stored.settings):
        if tuple(shared.shape) == (ceil(n / rows), ceil(k / columns)):
            return naive.expand(shared, rows, columns, gcd(k, columns), n, k)
    raise stored.fault(
        f"has shape {list(shared.shape)}, expected one value per tensor, row, group or block "
        f"{config.blocks(stored.settings)} of {[n, k]} weights; {AGAIN}",
        suffix,
    )


def groups_of(stored: Stored, groups: int) -> Tensor | None:
    """The group of each column; None if the file has no g_idx, or -1 everywhere."""
    if INDEX not in stored.tensors:
        return None
    found, k = stored.tensors[INDEX].to(stored.device), stored.shape[-1]
    if found.shape != (k,) or found.is_floating_point():
        raise stored.fault(wrong_shape(found, f"integers [{k}]"), INDEX)
    if bool((found == -1).all()):
        return None
    known = int(found.min()) >= 0 and int(found.max()) < groups
    if not known or bool((found.long().bincount(minlength=groups) * groups != k).any()):
        raise stored.fault(f"does not contain {groups} groups of equal size; {AGAIN}", INDEX)
    return found
