"""Convert ggml blocks to planes and back.

A block has 34 to 210 bytes and its fields are not aligned. Planes (`quant.planes`) store the fields
separately and aligned, in one layout for all formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ostro.checkpoints import GGML_BY_NAME as BY_NAME
from ostro.quant.gguf.fields import Parts, field, half, minus, raw
from ostro.quant.gguf.naive import NL, unpack_blocks
from ostro.quant.planes.storage import Planes, pack_codes, unpack_codes

CHUNK = 1 << 20
"""Weights repacked at a time, so that intermediate results fit the CPU's cache."""


def pack(format: str, data: Tensor) -> Planes:
    """Planes of a file's rows, uint8 [..., bytes per row]. Raises like `naive.dequantize`."""
    *lead, nbytes = data.shape
    rows, kind = data.reshape(-1, nbytes), BY_NAME[format]
    if format in CELLS and nbytes % kind.nbytes == 0:
        planes = CELLS[format](rows.unflatten(-1, (-1, kind.nbytes)))
        return planes.map(lambda tensor: tensor.unflatten(0, lead))
    step = max(1, CHUNK // max(1, nbytes // kind.nbytes * kind.block))
    chunks = [
        _planes(unpack_blocks(format, rows[start : start + step]))
        for start in range(0, max(1, len(rows)), step)
    ]
    return Planes.join(chunks).map(lambda tensor: tensor.unflatten(0, lead))


def _planes(parts: Parts) -> Planes:
    """Planes of n rows from parts [n, blocks, values per block]."""

    def joined(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.flatten(-2)

    table = parts.table
    return Planes(
        codes=pack_codes(parts.q.flatten(-2), parts.bits),
        scale=parts.scale.flatten(-2),
        zero=parts.zero,
        offset=joined(parts.offset),
        table=None if table is None else torch.tensor(table, device=parts.q.device).float(),
        d=joined(parts.d),
        m=joined(parts.m),
    )


def _q4_0_cells(blocks: Tensor) -> Planes:
    d, q = blocks.split((2, 16), -1)
    return Planes(codes=(q.contiguous(),), scale=half(d).flatten(-2), zero=8)


def _q4_1_cells(blocks: Tensor) -> Planes:
    d, m, q = blocks.split((2, 2, 16), -1)
    return Planes(codes=(q.contiguous(),), scale=half(d).flatten(-2), offset=half(m).flatten(-2))


def _q8_0_cells(blocks: Tensor) -> Planes:
    d, q = blocks.split((2, 32), -1)
    return Planes(codes=(q ^ 128,), scale=half(d).flatten(-2), zero=128)


def _iq4_nl_cells(blocks: Tensor) -> Planes:
    table = torch.tensor(NL, device=blocks.device).float()
    return replace(_q4_0_cells(blocks), zero=0, table=table)


CELLS: Mapping[str, Callable[[Tensor], Planes]] = {
    "Q4_0": _q4_0_cells,
    "Q4_1": _q4_1_cells,
    "Q8_0": _q8_0_cells,
    "IQ4_NL": _iq4_nl_cells,
}
"""Planes of blocks [rows, blocks, bytes], for formats whose block has the codes of one cell in the
order of a plane: they are copied and not unpacked. `naive` has the layouts."""


def unpack(format: str, planes: Planes) -> Tensor:
    """The rows of the file, bit-identical: uint8 [..., bytes per row].

    `format` must be one of `FIELDS`, the formats whose planes determine the blocks.
    """
    blocks = planes.shape[-1] // BY_NAME[format].block

    def per_block(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.unflatten(-1, (blocks, -1))

    q, scale = per_block(unpack_codes(planes.codes)), per_block(planes.scale)
    assert q is not None and scale is not None
    offset, d, m = per_block(planes.offset), per_block(planes.d), per_block(planes.m)
    parts = Parts(planes.bits, q, scale, offset=offset, d=d, m=m)
    fields = (each for each in FIELDS[format](parts) if each is not None)
    return torch.cat([raw(each) for each in fields], -1).flatten(-2)


Fields = tuple[Tensor | None, ...]


def _q1_0(p: Parts) -> Fields:
    return p.scale, field(p.q, 1)


def _q2_0(p: Parts) -> Fields:
    return p.scale, field(p.q, 2)


def _q4(p: Parts) -> Fields:
    return p.scale, p.offset, field(p.q, 4, 16)


def _q5(p: Parts) -> Fields:
    return p.scale, p.offset, field(p.q >> 4, 1), field(p.q, 4, 16)


def _q8_0(p: Parts) -> Fields:
    return p.scale, p.q ^ 128


def _q2_k(p: Parts) -> Fields:
    assert p.offset is not None and p.m is not None
    return p.scale | p.offset << 4, field(p.q, 2, 32), p.d, minus(p.m)


def _q3_k(p: Parts) -> Fields:
    s = (p.scale + 32).to(torch.uint8)
    return field(p.q >> 2, 1, 32), field(p.q, 2, 32), field(s, 4, 8), field(s >> 4, 2, 4), p.d


def _q4_k(p: Parts) -> Fields:
    assert p.m is not None
    return p.d, minus(p.m), _scales_and_minima(p), field(p.q, 4, 32)


def _q5_k(p: Parts) -> Fields:
    assert p.m is not None
    return p.d, minus(p.m), _scales_and_minima(p), field(p.q >> 4, 1, 32), field(p.q, 4, 32)


def _scales_and_minima(p: Parts) -> Tensor:
    """The 12 bytes of scales and minima in Q4_K and Q5_K; see `naive`."""
    assert p.offset is not None
    (s, late_s), (t, late_t) = p.scale.split(4, -1), p.offset.split(4, -1)
    low = late_s & 15 | (late_t & 15) << 4
    return torch.cat((s | late_s >> 4 << 6, t | late_t >> 4 << 6, low), -1)


def _q6_k(p: Parts) -> Fields:
    return field(p.q, 4, 64), field(p.q >> 4, 2, 32), p.scale, p.d


def _iq4_xs(p: Parts) -> Fields:
    s = (p.scale + 32).to(torch.uint8)
    return p.d, field(s >> 4, 2), field(s, 4), field(p.q, 4, 16)


def _tq2_0(p: Parts) -> Fields:
    return field(p.q, 2, 32), p.scale


FIELDS: Mapping[str, Callable[[Parts], Fields]] = {
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
    "Q4_0": _q4,
    "Q4_1": _q4,
    "Q5_0": _q5,
    "Q5_1": _q5,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _q4,
    "IQ4_XS": _iq4_xs,
    "TQ2_0": _tq2_0,
}
"""The fields of a block in order, as `naive` documents them.

The planes of other formats do not determine the blocks: they do not contain grid indices, sums or
packed ternary digits, or several blocks have the same planes.
"""
