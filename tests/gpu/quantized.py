"""Random weights in the layouts of quantized formats, made on the device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ostro.plugins.conformance.kernels import DEVICE
from ostro.quant.fp8.naive import table
from ostro.quant.planes.planes import WIDTHS, Planes
from ostro.quant.planes.quant_matmul import naive

HALF, BF16, FLOAT = torch.float16, torch.bfloat16, torch.float32
U8, I8 = torch.uint8, torch.int8

STD = 0.02
"""The standard deviation of the weights, as in models: results stay within float16."""

# The quantiles of a normal distribution, of which NF4 (Dettmers et al. 2023) has another set.
NORMAL = torch.linspace(0.03, 0.97, 16).mul(2).sub(1).erfinv().div(1.34)
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])

WHOLE = 0
"""The group of formats with one scale per row."""

FORMATS: dict[str, dict[str, Any]] = {
    "Q4_0": {"bits": 4, "group": 32, "scale": HALF, "zero": 8},
    "Q8_0": {"bits": 8, "group": 32, "scale": HALF, "zero": 128},
    "Q2_K": {"bits": 2, "group": 16, "scale": U8, "offset": U8, "d": 16},
    "Q3_K": {"bits": 3, "group": 16, "scale": I8, "zero": 4, "d": 16},
    "Q4_K": {"bits": 4, "group": 32, "scale": U8, "offset": U8, "d": 8},
    "Q5_K": {"bits": 5, "group": 32, "scale": U8, "offset": U8, "d": 8},
    "Q6_K": {"bits": 6, "group": 16, "scale": I8, "zero": 32, "d": 16},
    "hqq4": {"bits": 4, "group": 64, "scale": BF16, "zero": BF16},
    "gptq4": {"bits": 4, "group": 128, "scale": HALF, "zero": U8},
    "awq4": {"bits": 4, "group": 128, "scale": HALF, "zero": I8},
    "afq4": {"bits": 4, "group": 64, "scale": BF16, "offset": BF16},
    "nf4": {"bits": 4, "group": 64, "scale": FLOAT, "table": NORMAL},
    "fp4": {"bits": 4, "group": 32, "scale": FLOAT, "table": FP4},
    "fp8": {"bits": 8, "group": WHOLE, "scale": FLOAT, "table": table(torch.float8_e4m3fn)},
    "fp8 blocks": {
        "bits": 8,
        "group": 128,
        "scale": FLOAT,
        "table": table(torch.float8_e4m3fn),
    },
    "int8": {"bits": 8, "group": WHOLE, "scale": FLOAT, "zero": 128},
    "f8q8": {"bits": 8, "group": 32, "scale": FLOAT, "zero": 128},
}
"""Bits, weights per scale, dtypes of scales, zeros and offsets, groups per `d`, and the table."""


def step(format: str) -> int:
    """The columns that a row must have a multiple of."""
    fields = FORMATS[format]
    return max(32, (fields["group"] or 32) * fields.get("d", 1))


def random_planes(format: str, n: int, k: int, lead: tuple[int, ...] = ()) -> Planes:
    """Random planes [*lead, n, k] with a standard deviation of `STD`."""
    fields = FORMATS[format]
    group = fields["group"] or k
    shape, ratio = (*lead, n, k // group), fields.get("d", 0)
    coarse = (*lead, n, k // group // ratio) if ratio else ()
    offset, zero = fields.get("offset"), fields.get("zero", 0)
    codes = tuple(
        torch.randint(256, (*lead, n, k // 32, 4 * width), dtype=U8, device=DEVICE)
        for width in WIDTHS[fields["bits"]]
    )
    if format.startswith("fp8"):
        codes[0][codes[0] & 0x7F == 0x7F] = 0  # NaN, which storages refuse
    made = Planes(
        codes=codes,
        scale=numbers(shape, fields["scale"]),
        zero=zero if isinstance(zero, int) else numbers(shape, zero) * 6,
        offset=None if offset is None else numbers(shape, offset),
        table=fields["table"].float().to(DEVICE) if "table" in fields else None,
        d=numbers(coarse, HALF) if ratio else None,
        m=-numbers(coarse, HALF) if ratio and offset else None,
    )
    return normalise(made)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Scales: integers of at most six bits, or floats from 0.5 to 1.5."""
    if dtype in (U8, I8):
        low = 0 if dtype == U8 else -31
        return torch.randint(low, 32, shape, device=DEVICE).to(dtype)
    return (torch.rand(shape, device=DEVICE) + 0.5).to(dtype)


def normalise(planes: Planes) -> Planes:
    """Scale weights, so that their standard deviation is `STD`."""
    sample = planes.select(slice(0, 16)) if len(planes.shape) == 2 else planes.select(slice(0, 1))
    factor = STD / float(naive.dequantize(sample, FLOAT).std())
    names = ("d", "m") if planes.d is not None else ("scale", "offset")
    found = {name: getattr(planes, name) for name in names}
    return replace(planes, **{name: x * factor for name, x in found.items() if x is not None})
