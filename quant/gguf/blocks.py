"""Ggml blocks from codes and scales: the inverse of `naive`, which documents the layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ostro.quant.gguf.naive import E2M1, NL


class Codes(NamedTuple):
    """What blocks hold: w = d s q - m t.

    q int16 [b, weights per block], the levels themselves; s and t int16 [b, groups], the integers
    of each group of weights; d and m float32 [b], as numbers that the format can store.
    """

    q: Tensor
    d: Tensor
    s: Tensor
    m: Tensor
    t: Tensor


def write(format: str, codes: Codes) -> Tensor:
    """The blocks of `format`, uint8 [b, bytes per block]."""
    fields = FORMATS[format](codes)
    return torch.cat([field.contiguous().view(torch.uint8) for field in fields], 1)


def bits(codes: Tensor, width: int, run: int = 1) -> Tensor:
    """The lowest `width` bits of codes [b, n], several to a byte; see `fields.codes`."""
    at = torch.arange(0, 8, width, dtype=codes.dtype, device=codes.device)
    runs = codes.unflatten(1, (-1, 8 // width, run)) & (1 << width) - 1
    return (runs << at[:, None]).sum(2).flatten(1).to(torch.uint8)


def half(number: Tensor) -> Tensor:
    """[b] -> [b, 1] float16; numbers that are too large become the largest."""
    return number[:, None].clamp(-65504, 65504).half()


def indices(levels: tuple[int, ...], q: Tensor) -> Tensor:
    """The first place of each level in `levels`."""
    places = torch.zeros(max(levels) - min(levels) + 1, dtype=torch.int16, device=q.device)
    for place, level in reversed(list(enumerate(levels))):
        places[level - min(levels)] = place
    return places[q.int() - min(levels)]


Fields = tuple[Tensor, ...]


def _q4_0(c: Codes) -> Fields:
    return half(c.d), bits(c.q + 8, 4, 16)


def _q4_1(c: Codes) -> Fields:
    return half(c.d), half(0 - c.m), bits(c.q, 4, 16)


def _q5_0(c: Codes) -> Fields:
    q = c.q + 16
    return half(c.d), bits(q >> 4, 1), bits(q, 4, 16)


def _q5_1(c: Codes) -> Fields:
    return half(c.d), half(0 - c.m), bits(c.q >> 4, 1), bits(c.q, 4, 16)


def _q8_0(c: Codes) -> Fields:
    return half(c.d), c.q.to(torch.int8)


def _q8_1(c: Codes) -> Fields:
    return half(c.d), half(c.d * c.q.sum(1)), c.q.to(torch.int8)


def _q2_k(c: Codes) -> Fields:
    return (c.s + 16 * c.t).to(torch.uint8), bits(c.q, 2, 32), half(c.d), half(c.m)


def _q3_k(c: Codes) -> Fields:
    q, s = c.q + 4, c.s + 32
    return bits(q >> 2, 1, 32), bits(q, 2, 32), bits(s, 4, 8), bits(s >> 4, 2, 4), half(c.d)


def _q4_k(c: Codes) -> Fields:
    return half(c.d), half(c.m), _scales_and_minima(c), bits(c.q, 4, 32)


def _q5_k(c: Codes) -> Fields:
    high, low = bits(c.q >> 4, 1, 32), bits(c.q, 4, 32)
    return half(c.d), half(c.m), _scales_and_minima(c), high, low


def _scales_and_minima(c: Codes) -> Tensor:
    (s, s_last), (t, t_last) = c.s.split(4, 1), c.t.split(4, 1)
    low = (s_last & 15) + 16 * (t_last & 15)
    return torch.cat((s + 64 * (s_last >> 4), t + 64 * (t_last >> 4), low), 1).to(torch.uint8)


def _q6_k(c: Codes) -> Fields:
    q = c.q + 32
    return bits(q, 4, 64), bits(q >> 4, 2, 32), c.s.to(torch.int8), half(c.d)


def _q8_k(c: Codes) -> Fields:
    sums = c.q.unflatten(1, (-1, 16)).sum(2, dtype=torch.int16)
    return c.d[:, None], c.q.to(torch.int8), sums


def _iq4_nl(c: Codes) -> Fields:
    return half(c.d), bits(indices(NL, c.q), 4, 16)


def _iq4_xs(c: Codes) -> Fields:
    s = c.s + 32
    return half(c.d), bits(s >> 4, 2), bits(s, 4), bits(indices(NL, c.q), 4, 16)


def _tq1_0(c: Codes) -> Fields:
    first, second, last = (c.q + 1).split((160, 80, 16), 1)
    return _trits(first, 5), _trits(second, 5), _trits(last, 4), half(c.d)


def _trits(q: Tensor, count: int) -> Tensor:
    """The digits of `count` runs as fractions of 256, rounded up: [b, count m] -> [b, m]."""
    weights = [3 ** (4 - i) for i in range(count)]
    digits = torch.tensor(weights, dtype=torch.int32, device=q.device)
    number = (q.unflatten(1, (count, -1)) * digits[:, None]).sum(1)
    return ((number * 256 + 242) // 243).to(torch.uint8)


def _tq2_0(c: Codes) -> Fields:
    return bits(c.q + 1, 2, 32), half(c.d)


def _mxfp4(c: Codes) -> Fields:
    exponent = torch.frexp(c.d).exponent + 127
    return exponent[:, None].to(torch.uint8), bits(indices(E2M1, c.q), 4, 16)


FORMATS: Mapping[str, Callable[[Codes], Fields]] = {
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
}
"""Codes -> the fields of the blocks, in order, each of them [b, some]."""
