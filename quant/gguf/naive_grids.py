"""Decode the ggml formats with grids (IQ1, IQ2, IQ3): a block stores indices into a codebook.

The notation of fields is that of `naive`. `G` is the format's grid, see `grids`; one of its vectors
has the magnitudes of as many adjacent weights as it has components. A set `sign` bit means a
negative weight.

The result has one code per weight: the code of the component in the grid, and the sign in the bit
above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from ostro.quant.gguf.fields import Parts, codes, half, numbers, pieces, words
from ostro.quant.gguf.grids import GRIDS, vectors


def _iq2_xxs(blocks: Tensor) -> Parts:
    """f16 d; 8 times (u8 i[4]; u7 signs[4]; u4 s), each for 32 weights:
    w = d (2 s + 1) / 8 sign G[i].

    Seven sign bits encode eight signs, see `_eight`.
    """
    d, rest = blocks.split((2, 64), -1)
    i, word = rest.unflatten(-1, (8, 8)).split(4, -1)
    sign, s = _signs_and_scales(word.flatten(-2))
    return _signed("IQ2_XXS", i.flatten(-2), sign, s, half(d).float() / 8)


def _iq2_xs(blocks: Tensor) -> Parts:
    """f16 d; 32 times (u9 i; u7 signs); u4 s[16]: w = d (2 s + 1) / 8 sign G[i].

    16 weights share an s; seven sign bits encode eight signs, see `_eight`.
    """
    d, word, s = blocks.split((2, 64, 8), -1)
    word = words(word)
    return _signed("IQ2_XS", word & 511, _eight(word >> 9), codes(s, 4), half(d).float() / 8)


def _iq2_s(blocks: Tensor) -> Parts:
    """f16 d; u8 low[32]; u1 sign[256]; u2 high[32]; u4 s[16]:
    w = d (2 s + 1) / 8 sign G[low + 256 high].

    16 weights share an s.
    """
    d, low, sign, high, s = blocks.split((2, 32, 32, 8, 8), -1)
    i = low.int() + 256 * codes(high, 2).int()
    return _signed("IQ2_S", i, codes(sign, 1), codes(s, 4), half(d).float() / 8)


def _iq3_xxs(blocks: Tensor) -> Parts:
    """f16 d; u8 i[64]; 8 times (u7 signs[4]; u4 s), each for 32 weights:
    w = d (2 s + 1) / 4 sign G[i].

    Seven sign bits encode eight signs, see `_eight`.
    """
    d, i, word = blocks.split((2, 64, 32), -1)
    sign, s = _signs_and_scales(word)
    return _signed("IQ3_XXS", i, sign, s, half(d).float() / 4)


def _iq3_s(blocks: Tensor) -> Parts:
    """f16 d; u8 low[64]; u1 high[64]; u1 sign[256]; u4 s[8]:
    w = d (2 s + 1) sign G[low + 256 high].

    32 weights share an s.
    """
    d, low, high, sign, s = blocks.split((2, 64, 8, 32, 4), -1)
    i = low.int() + 256 * codes(high, 1).int()
    return _signed("IQ3_S", i, codes(sign, 1), codes(s, 4), half(d))


def _signed(name: str, i: Tensor, sign: Tensor, s: Tensor, d: Tensor) -> Parts:
    """The parts of w = d (2 s + 1) sign G[i]: sign uint8 bits [..., k], i [..., k / digits]."""
    values = GRIDS[name].values
    bits = (len(values) - 1).bit_length()
    some = values + (0,) * (2**bits - len(values))
    q = _vectors(name, i) + (sign << bits)
    return Parts(bits + 1, q, 2 * s + 1, table=some + tuple(-v for v in some), d=d)


def _eight(seven: Tensor) -> Tensor:
    """The signs of eight weights from seven bits: [..., m] -> uint8 [..., 8 m].

    The eighth sign is the parity of the seven: an even number of the eight weights is negative.
    """
    return _eights().to(seven.device)[seven.int()].flatten(-2)


@cache
def _eights() -> Tensor:
    """The table of `_eight` for all values of seven bits, uint8 [128, 8]."""
    seven = pieces(torch.arange(128), 1, 7)
    return torch.cat((seven, seven.sum(-1, keepdim=True) & 1), -1).to(torch.uint8)


def _signs_and_scales(field: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack 32-bit fields u7 signs[4]; u4 s: [..., 4 m] uint8 -> uint8 [..., 32 m], [..., m]."""
    word = numbers(field, torch.int32)
    return _eight(pieces(word, 7, 4).flatten(-2)), (word >> 28 & 15).to(torch.uint8)


def _iq1_s(blocks: Tensor) -> Parts:
    """f16 d; u8 low[32]; 8 times (u3 high[4]; u3 s; u1 sign), each for 32 weights:
    w = d (2 s + 1) (G[low + 256 high] + sign / 8).
    """
    d, low, word = blocks.split((2, 32, 16), -1)
    word = words(word)
    i = low.int() + 256 * pieces(word, 3, 4).flatten(-2)
    return _shifted(i, word >> 15, word >> 12 & 7, half(d))


def _iq1_m(blocks: Tensor) -> Parts:
    """u8 low[32]; 32 times (u3 high; u1 sign); 4 times (u3 s[4]; u4 d):
    w = d (2 s + 1) (G[low + 256 high] + sign / 8).

    The four parts of d are an f16, lowest bits first. 16 weights share an s.
    """
    low, nibbles, word = blocks.split((32, 16, 8), -1)
    high, word = codes(nibbles, 4), words(word)
    places = torch.arange(0, 16, 4, dtype=torch.int32, device=word.device)
    d = (word >> 12 << places).sum(-1, keepdim=True).to(torch.int16).view(torch.float16)
    i = low.int() + 256 * (high & 7).int()
    return _shifted(i, high >> 3, pieces(word, 3, 4).flatten(-2), d)


def _shifted(i: Tensor, sign: Tensor, s: Tensor, d: Tensor) -> Parts:
    """The parts of w = d (2 s + 1) (G[i] + sign / 8): i [..., 32], signs shared by equal runs of i.

    Codes are values of 8 (G[i] + sign / 8), integers from -9 to 9; d is divided by 8 in return.
    """
    q = _vectors("IQ1", i)
    shift = sign.to(torch.uint8).repeat_interleave(q.shape[-1] // sign.shape[-1], -1)
    table = (-7, 1, 9, 0, -9, -1, 7, 0)
    return Parts(3, q + 4 * shift, (2 * s + 1).to(torch.uint8), table=table, d=d.float() / 8)


def _vectors(name: str, i: Tensor) -> Tensor:
    """The concatenated codes of vectors of a grid: [..., m] -> uint8 [..., m digits]."""
    return vectors(name).to(i.device)[i.int()].flatten(-2)


BLOCKS: Mapping[str, Callable[[Tensor], Parts]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
"""See `naive.BLOCKS`."""
