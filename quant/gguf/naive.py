"""The ggml formats in plain torch: the byte layouts and the reference implementation.

A row is a sequence of blocks; `ostro.checkpoints.GGML_TYPES` has their sizes. Values are little
endian. Fields are documented as type, name and count: `f16 d; u4 q[32]` is one float16 and 32 codes
of four bits.
"In runs of 16" describes the order of codes in bytes (see `fields.codes`); otherwise codes are in
order, the lowest bits first. Source of the layouts: the `block_*` structs and `dequantize_row_*` of
llama.cpp (ggml-common.h, ggml-quants.c).

The product of a scale and a code is exact in float32; a sum with it is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ostro.checkpoints import GGML_BY_NAME
from ostro.errors import Unsupported
from ostro.quant.gguf import naive_grids
from ostro.quant.gguf.fields import Parts, codes, half, minus, numbers, weights

E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of the four-bit floats of MXFP4 and NVFP4, without a negative zero."""

NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of the codes of IQ4_NL and IQ4_XS."""

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Float formats."""


def dequantize(format: str, data: Tensor) -> Tensor:
    """Unpack rows of `format` to float32.

    data: uint8 [..., bytes per row], as a container reads it. Returns [..., k]. Raises Unsupported
    for a format that is not in `BLOCKS` or `FLOATS`, ValueError for other dtypes and for incomplete
    blocks.
    """
    if format in FLOATS:
        return numbers(_as_blocks(format, data), FLOATS[format]).float().flatten(-2)
    return weights(unpack_blocks(format, data)).flatten(-2)


def unpack_blocks(format: str, data: Tensor) -> Parts:
    """The parts of all blocks of rows, [..., blocks, values per block]; see `dequantize`."""
    if format not in BLOCKS:
        known = ", ".join([*FLOATS, *BLOCKS])
        raise Unsupported(f"the GGUF format {format} is not supported; supported are {known}")
    return BLOCKS[format](_as_blocks(format, data))


def _as_blocks(format: str, data: Tensor) -> Tensor:
    """Rows as blocks: [..., bytes per row] -> [..., blocks, bytes per block]."""
    size = GGML_BY_NAME[format].nbytes
    if data.dtype != torch.uint8 or data.shape[-1] % size:
        raise ValueError(
            f"{format} rows must be uint8 and a multiple of {size} bytes, "
            f"got {data.dtype} {tuple(data.shape)}"
        )
    return data.unflatten(-1, (-1, size))


def _q1_0(blocks: Tensor) -> Parts:
    """f16 d; u1 q[128]: w = d (2 q - 1)."""
    d, q = blocks.split((2, 16), -1)
    return Parts(1, codes(q, 1), half(d), table=(-1, 1))


def _q2_0(blocks: Tensor) -> Parts:
    """f16 d; u2 q[64]: w = d (q - 1)."""
    d, q = blocks.split((2, 16), -1)
    return Parts(2, codes(q, 2), half(d), zero=1)


def _q4_0(blocks: Tensor) -> Parts:
    """f16 d; u4 q[32] in runs of 16: w = d (q - 8)."""
    d, q = blocks.split((2, 16), -1)
    return Parts(4, codes(q, 4, 16), half(d), zero=8)


def _q4_1(blocks: Tensor) -> Parts:
    """f16 d; f16 m; u4 q[32] in runs of 16: w = d q + m."""
    d, m, q = blocks.split((2, 2, 16), -1)
    return Parts(4, codes(q, 4, 16), half(d), offset=half(m))


def _q5_0(blocks: Tensor) -> Parts:
    """f16 d; u1 high[32]; u4 low[32] in runs of 16: w = d (low + 16 high - 16)."""
    d, high, low = blocks.split((2, 4, 16), -1)
    return Parts(5, codes(low, 4, 16) + 16 * codes(high, 1), half(d), zero=16)


def _q5_1(blocks: Tensor) -> Parts:
    """f16 d; f16 m; u1 high[32]; u4 low[32] in runs of 16: w = d (low + 16 high) + m."""
    d, m, high, low = blocks.split((2, 2, 4, 16), -1)
    return Parts(5, codes(low, 4, 16) + 16 * codes(high, 1), half(d), offset=half(m))


def _q8_0(blocks: Tensor) -> Parts:
    """f16 d; i8 q[32]: w = d q."""
    d, q = blocks.split((2, 32), -1)
    return Parts(8, q ^ 128, half(d), zero=128)


def _q8_1(blocks: Tensor) -> Parts:
    """f16 d; f16 s; i8 q[32]: w = d q. s is d times the sum of q, for dot products."""
    d, _, q = blocks.split((2, 2, 32), -1)
    return Parts(8, q ^ 128, half(d), zero=128)


def _q2_k(blocks: Tensor) -> Parts:
    """u4 s[16] and t[16], in one run of 16; u2 q[256] in runs of 32; f16 d; f16 m:
    w = d s q - m t.

    Each s and t is for 16 weights.
    """
    st, q, d, m = blocks.split((16, 64, 2, 2), -1)
    s, t = codes(st, 4, 16).chunk(2, -1)
    return Parts(2, codes(q, 2, 32), s, offset=t, d=half(d), m=minus(half(m)))


def _q3_k(blocks: Tensor) -> Parts:
    """u1 high[256] in runs of 32; u2 low[256] in runs of 32; u4 s_low[16] in runs of 8;
    u2 s_high[16] in runs of 4; f16 d: w = d (s_low + 16 s_high - 32) (low + 4 high - 4).

    Each s is for 16 weights.
    """
    high, low, s_low, s_high, d = blocks.split((32, 64, 8, 4, 2), -1)
    s = (codes(s_low, 4, 8) + 16 * codes(s_high, 2, 4)).to(torch.int8) - 32
    return Parts(3, codes(low, 2, 32) + 4 * codes(high, 1, 32), s, zero=4, d=half(d))


def _q4_k(blocks: Tensor) -> Parts:
    """f16 d; f16 m; s[8] and t[8] as `_scales_and_minima` finds them; u4 q[256] in runs of 32:
    w = d s q - m t.

    Each s and t is for 32 weights.
    """
    d, m, st, q = blocks.split((2, 2, 12, 128), -1)
    s, t = _scales_and_minima(st)
    return Parts(4, codes(q, 4, 32), s, offset=t, d=half(d), m=minus(half(m)))


def _q5_k(blocks: Tensor) -> Parts:
    """f16 d; f16 m; s[8] and t[8] as in Q4_K; u1 high[256] in runs of 32; u4 low[256] in runs of
    32: w = d s (low + 16 high) - m t.
    """
    d, m, st, high, low = blocks.split((2, 2, 12, 32, 128), -1)
    s, t = _scales_and_minima(st)
    q = codes(low, 4, 32) + 16 * codes(high, 1, 32)
    return Parts(5, q, s, offset=t, d=half(d), m=minus(half(m)))


def _scales_and_minima(field: Tensor) -> tuple[Tensor, Tensor]:
    """Eight scales s and eight minima t of six bits in 12 bytes: [..., 12] -> [..., 8] each.

    Byte 0..3 holds s[0..3] below the upper two bits of s[4..7], byte 4..7 the same of t, and byte
    8..11 the lower four bits of s[4..7] below those of t[4..7].
    """
    s, t, low = field.split(4, -1)
    return (
        torch.cat((s & 63, (low & 15) + 16 * (s >> 6)), -1),
        torch.cat((t & 63, (low >> 4) + 16 * (t >> 6)), -1),
    )


def _q6_k(blocks: Tensor) -> Parts:
    """u4 low[256] in runs of 64; u2 high[256] in runs of 32; i8 s[16]; f16 d:
    w = d s (low + 16 high - 32).

    Each s is for 16 weights.
    """
    low, high, s, d = blocks.split((128, 64, 16, 2), -1)
    q = codes(low, 4, 64) + 16 * codes(high, 2, 32)
    return Parts(6, q, s.view(torch.int8), zero=32, d=half(d))


def _q8_k(blocks: Tensor) -> Parts:
    """f32 d; i8 q[256]; i16 sums[16]: w = d q. The sums are those of 16 q, for dot products."""
    d, q, _ = blocks.split((4, 256, 32), -1)
    return Parts(8, q ^ 128, numbers(d, torch.float32), zero=128)


def _iq4_nl(blocks: Tensor) -> Parts:
    """f16 d; u4 q[32] in runs of 16: w = d NL[q]."""
    d, q = blocks.split((2, 16), -1)
    return Parts(4, codes(q, 4, 16), half(d), table=NL)


def _iq4_xs(blocks: Tensor) -> Parts:
    """f16 d; u2 s_high[8]; u4 s_low[8]; u4 q[256] in runs of 16:
    w = d (s_low + 16 s_high - 32) NL[q].

    Each s is for 32 weights.
    """
    d, s_high, s_low, q = blocks.split((2, 2, 4, 128), -1)
    s = (codes(s_low, 4) + 16 * codes(s_high, 2)).to(torch.int8) - 32
    return Parts(4, codes(q, 4, 16), s, table=NL, d=half(d))


def _tq1_0(blocks: Tensor) -> Parts:
    """u8 p[32]; u8 p[16]; u8 p[4]; f16 d: w = d (q - 1).

    A byte is five ternary digits q after the point, as a fraction of 256 that is rounded up. The
    bytes of a field are a run: their first digits are its first weights, their second ones the
    next, and so on. Those of the last field have four digits each.
    """
    first, second, last, d = blocks.split((32, 16, 4, 2), -1)
    q = torch.cat((_trits(first, 5), _trits(second, 5), _trits(last, 4)), -1)
    return Parts(2, q, half(d), zero=1)


def _trits(p: Tensor, count: int) -> Tensor:
    """The first `count` ternary digits of the fractions p / 256: [..., m] -> [..., count m]."""
    fractions = torch.cat([p * 3**i for i in range(count)], -1)
    return (fractions.short() * 3 >> 8).to(torch.uint8)


def _tq2_0(blocks: Tensor) -> Parts:
    """u2 q[256] in runs of 32; f16 d: w = d (q - 1)."""
    q, d = blocks.split((64, 2), -1)
    return Parts(2, codes(q, 2, 32), half(d), zero=1)


def _mxfp4(blocks: Tensor) -> Parts:
    """u8 e; u4 q[32] in runs of 16: w = 2 ** (e - 128) E2M1[q]."""
    e, q = blocks.split((1, 16), -1)
    return Parts(4, codes(q, 4, 16), torch.exp2(e.float() - 128), table=E2M1)


def _nvfp4(blocks: Tensor) -> Parts:
    """u8 s[4]; u4 q[64] in runs of 8: w = 0.5 E4M3(s) E2M1[q].

    Each s, a float of four bits of exponent and three of mantissa, is for 16 weights. Its sign is
    ignored, and what would be NaN with a plus is zero.
    """
    s, q = blocks.split((4, 32), -1)
    exponent = s >> 3 & 15
    mantissa = (s & 7) + 8 * (exponent > 0)
    scale = mantissa * torch.exp2(exponent.clamp(min=1).float() - 11)
    return Parts(4, codes(q, 4, 8), scale.masked_fill(s == 0x7F, 0).half(), table=E2M1)


BLOCKS: Mapping[str, Callable[[Tensor], Parts]] = {
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q8_1": _q8_1,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q8_K": _q8_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    **naive_grids.BLOCKS,
}
"""Functions from blocks uint8 [..., bytes per block] to the parts of each block."""
