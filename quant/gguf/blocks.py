"""Write ggml blocks from codes and scales: the inverse of `naive`, which documents the layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ostro.quant.gguf.fields import field, minus, raw
from ostro.quant.gguf.naive import E2M1, NL
from ostro.quant.gguf.planes import FIELDS
from ostro.quant.gguf.schemes import FORMATS as SCHEMES
from ostro.quant.planes.storage import Planes, pack_codes

Fields = tuple[Tensor | None, ...]


class Codes(NamedTuple):
    """The codes and scales of blocks: w = d s q - m t.

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
    write = FORMATS.get(format) or planes(format)
    return torch.cat([raw(each) for each in write(codes) if each is not None], 1)


def planes(format: str) -> Callable[[Codes], Fields]:
    """The writer of a format whose planes determine its blocks."""
    scheme, fields = SCHEMES[format], FIELDS[format]

    def write(c: Codes) -> Fields:
        q = indices(NL, c.q) if scheme.levels.table is not None else c.q + zero
        codes, d, m = pack_codes(q.to(torch.uint8), bits), half(c.d), half(c.m)
        if scheme.scales is None:
            offset = None if scheme.minimum == "none" else minus(m)
            return fields(Planes(codes=codes, scale=d, offset=offset))
        s = c.s.to(torch.int8 if scheme.scales.first < 0 else torch.uint8)
        t = None if scheme.minimum == "none" else c.t.to(torch.uint8)
        return fields(Planes(codes=codes, scale=s, offset=t, d=d, m=minus(m)))

    zero = 128 if scheme.levels.last == 127 else -scheme.levels.first
    first, last = scheme.levels.first, scheme.levels.last
    bits = 4 if scheme.levels.table is not None else (last - first).bit_length()
    return write


def half(number: Tensor) -> Tensor:
    """[b] -> [b, 1] float16, clamped to the finite range."""
    return number[:, None].clamp(-65504, 65504).half()


def indices(levels: tuple[int, ...], q: Tensor) -> Tensor:
    """The first index of each level in `levels`."""
    places = torch.zeros(max(levels) - min(levels) + 1, dtype=torch.int16, device=q.device)
    for place, level in reversed(list(enumerate(levels))):
        places[level - min(levels)] = place
    return places[q.int() - min(levels)]


def _q8_1(c: Codes) -> Fields:
    return half(c.d), half(c.d * c.q.sum(1)), c.q.to(torch.int8)


def _q8_k(c: Codes) -> Fields:
    sums = c.q.unflatten(1, (-1, 16)).sum(2, dtype=torch.int16)
    return c.d[:, None], c.q.to(torch.int8), sums


def _tq1_0(c: Codes) -> Fields:
    first, second, last = (c.q + 1).split((160, 80, 16), 1)
    return _trits(first, 5), _trits(second, 5), _trits(last, 4), half(c.d)


def _trits(q: Tensor, count: int) -> Tensor:
    """The digits of `count` runs as fractions of 256, rounded up: [b, count m] -> [b, m]."""
    weights = [3 ** (4 - i) for i in range(count)]
    digits = torch.tensor(weights, dtype=torch.int32, device=q.device)
    number = (q.unflatten(1, (count, -1)) * digits[:, None]).sum(1)
    return ((number * 256 + 242) // 243).to(torch.uint8)


def _mxfp4(c: Codes) -> Fields:
    exponent = torch.frexp(c.d).exponent + 127
    return exponent[:, None].to(torch.uint8), field(indices(E2M1, c.q).to(torch.uint8), 4, 16)


FORMATS: Mapping[str, Callable[[Codes], Fields]] = {
    "Q8_1": _q8_1,
    "Q8_K": _q8_k,
    "TQ1_0": _tq1_0,
    "MXFP4": _mxfp4,
}
"""Writers of formats whose planes do not determine the blocks: codes to fields [b, some]."""
