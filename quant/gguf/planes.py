"""Convert ggml blocks to planes and back.

A block has 34 to 210 bytes and its fields are not aligned. Planes (`quant.planes`) store the fields
separately and aligned, in one layout for all formats. `naive` documents the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ostro.checkpoints import GGML_BY_NAME
from ostro.quant.gguf.cells import cells, runs
from ostro.quant.gguf.fields import Parts, codes, field, half, minus, numbers, raw
from ostro.quant.gguf.naive import NL, unpack_blocks
from ostro.quant.planes.storage import Planes, pack_codes, unpack_codes

CHUNK = 1 << 20
"""Weights repacked at a time, so that intermediate results fit the CPU's cache."""

LOW_6, LOW_4, LOW_2 = 0x3F3F3F3F, 0x0F0F0F0F, 0x03030303
"""The low bits of each byte of a word."""


def pack(format: str, data: Tensor) -> Planes:
    """Planes of a file's rows, uint8 [..., bytes per row]. Raises like `naive.dequantize`."""
    *lead, nbytes = data.shape
    rows, kind = data.reshape(-1, nbytes), GGML_BY_NAME[format]
    step = max(1, CHUNK // max(1, nbytes // kind.nbytes * kind.block))
    planes = _pack(format, rows[:step])
    if len(rows) > step:
        whole = {name: x.new_empty(len(rows), x.shape[-1]) for name, x in planes.flat().items()}
        for start in range(0, len(rows), step):
            part = planes if start == 0 else _pack(format, rows[start : start + step])
            for name, tensor in part.flat().items():
                whole[name][start : start + step] = tensor
        planes = planes.from_flat(whole)
    return planes.map(lambda tensor: tensor.unflatten(0, lead))


def _pack(format: str, rows: Tensor) -> Planes:
    nbytes = GGML_BY_NAME[format].nbytes
    if format in CELLS and rows.shape[-1] % nbytes == 0:
        return CELLS[format](rows.unflatten(-1, (-1, nbytes)))
    return _planes(unpack_blocks(format, rows))


def _planes(parts: Parts) -> Planes:
    """Planes of n rows from parts [n, blocks, values per block]."""
    table = parts.table
    return Planes(
        codes=pack_codes(parts.q.flatten(-2), parts.bits),
        scale=parts.scale.flatten(-2),
        zero=parts.zero,
        offset=None if parts.offset is None else parts.offset.flatten(-2),
        table=None if table is None else torch.tensor(table, device=parts.q.device).float(),
        d=None if parts.d is None else parts.d.flatten(-2),
        m=None if parts.m is None else parts.m.flatten(-2),
    )


def plane(field: Tensor, bits: int, run: int) -> Tensor:
    """A plane [rows, cells, 4 bits] of the codes of all blocks [rows, blocks, m]."""
    return cells(field, bits, run).flatten(-3, -2)


def joined(numbers: Tensor) -> Tensor:
    """The numbers of all blocks of a row: [rows, blocks, m] -> [rows, blocks m]."""
    return numbers.flatten(-2)


def _q4_0_cells(blocks: Tensor) -> Planes:
    d, q = blocks.split((2, 16), -1)
    return Planes(codes=(plane(q, 4, 16),), scale=joined(half(d)), zero=8)


def _q4_1_cells(blocks: Tensor) -> Planes:
    d, m, q = blocks.split((2, 2, 16), -1)
    return Planes(codes=(plane(q, 4, 16),), scale=joined(half(d)), offset=joined(half(m)))


def _q5_0_cells(blocks: Tensor) -> Planes:
    d, high, low = blocks.split((2, 4, 16), -1)
    return Planes(codes=(plane(low, 4, 16), plane(high, 1, 1)), scale=joined(half(d)), zero=16)


def _q5_1_cells(blocks: Tensor) -> Planes:
    d, m, high, low = blocks.split((2, 2, 4, 16), -1)
    planes = plane(low, 4, 16), plane(high, 1, 1)
    return Planes(codes=planes, scale=joined(half(d)), offset=joined(half(m)))


def _q8_0_cells(blocks: Tensor) -> Planes:
    d, q = blocks.split((2, 32), -1)
    return Planes(codes=(plane(q, 8, 32) ^ 128,), scale=joined(half(d)), zero=128)


def _q2_k_cells(blocks: Tensor) -> Planes:
    st, q, d, m = blocks.split((16, 64, 2, 2), -1)
    words = numbers(st, torch.int32)
    return Planes(
        codes=(plane(q, 2, 32),),
        scale=joined(raw(words & LOW_4)),
        offset=joined(raw(words >> 4 & LOW_4)),
        d=joined(half(d)),
        m=joined(minus(half(m))),
    )


def _q3_k_cells(blocks: Tensor) -> Planes:
    high, low, s, d = blocks.split((32, 64, 12, 2), -1)
    a, b, top = numbers(s, torch.int32).unbind(-1)
    words = (
        a & LOW_4 | (top & LOW_2) << 4,
        b & LOW_4 | (top >> 2 & LOW_2) << 4,
        a >> 4 & LOW_4 | (top >> 4 & LOW_2) << 4,
        b >> 4 & LOW_4 | (top >> 6 & LOW_2) << 4,
    )
    scale = torch.stack(words, -1).view(torch.int8) - 32
    planes = plane(low, 2, 32), plane(high, 1, 32)
    return Planes(codes=planes, scale=joined(scale), zero=4, d=joined(half(d)))


def _q4_k_cells(blocks: Tensor) -> Planes:
    return replace(_scaled(blocks), codes=(plane(blocks[..., 16:], 4, 32),))


def _q5_k_cells(blocks: Tensor) -> Planes:
    _, high, low = blocks.split((16, 32, 128), -1)
    return replace(_scaled(blocks), codes=(plane(low, 4, 32), plane(high, 1, 32)))


def _scaled(blocks: Tensor) -> Planes:
    """The scales and minima of blocks of Q4_K and Q5_K, without codes."""
    d, m, st, _ = blocks.split((2, 2, 12, blocks.shape[-1] - 16), -1)
    s, t, low = numbers(st, torch.int32).unbind(-1)
    late_s = low & LOW_4 | (s >> 6 & LOW_2) << 4
    late_t = low >> 4 & LOW_4 | (t >> 6 & LOW_2) << 4
    return Planes(
        codes=(),
        scale=joined(raw(torch.stack((s & LOW_6, late_s), -1))),
        offset=joined(raw(torch.stack((t & LOW_6, late_t), -1))),
        d=joined(half(d)),
        m=joined(minus(half(m))),
    )


def _q6_k_cells(blocks: Tensor) -> Planes:
    low, high, s, d = blocks.split((128, 64, 16, 2), -1)
    planes = plane(low, 4, 64), plane(high, 2, 32)
    return Planes(codes=planes, scale=joined(numbers(s, torch.int8)), zero=32, d=joined(half(d)))


def _iq4_nl_cells(blocks: Tensor) -> Planes:
    return replace(_q4_0_cells(blocks), zero=0, table=_table(blocks))


def _iq4_xs_cells(blocks: Tensor) -> Planes:
    d, s_high, s_low, q = blocks.split((2, 2, 4, 128), -1)
    s = (codes(s_low, 4) + 16 * codes(s_high, 2)).to(torch.int8) - 32
    planes = (plane(q, 4, 16),)
    return Planes(codes=planes, scale=joined(s), table=_table(blocks), d=joined(half(d)))


def _table(blocks: Tensor) -> Tensor:
    return torch.tensor(NL, device=blocks.device).float()


def _tq2_0_cells(blocks: Tensor) -> Planes:
    q, d = blocks.split((64, 2), -1)
    return Planes(codes=(plane(q, 2, 32),), scale=joined(half(d)), zero=1)


CELLS: Mapping[str, Callable[[Tensor], Planes]] = {
    "Q4_0": _q4_0_cells,
    "Q4_1": _q4_1_cells,
    "Q5_0": _q5_0_cells,
    "Q5_1": _q5_1_cells,
    "Q8_0": _q8_0_cells,
    "Q2_K": _q2_k_cells,
    "Q3_K": _q3_k_cells,
    "Q4_K": _q4_k_cells,
    "Q5_K": _q5_k_cells,
    "Q6_K": _q6_k_cells,
    "IQ4_NL": _iq4_nl_cells,
    "IQ4_XS": _iq4_xs_cells,
    "TQ2_0": _tq2_0_cells,
}
"""Planes of blocks [rows, blocks, bytes], which move codes without unpacking them."""


def unpack(format: str, planes: Planes) -> Tensor:
    """The rows of the file, bit-identical: uint8 [..., bytes per row].

    `format` must be one of `FIELDS`, the formats whose planes determine the blocks.
    """
    *lead, k = planes.shape
    rows, kind = planes.rows(), GGML_BY_NAME[format]
    n, step = rows.shape[0], max(1, CHUNK // max(1, k))
    data = torch.empty(n, kind.row_bytes(k), dtype=torch.uint8, device=planes.scale.device)
    for start in range(0, n, step):
        part = rows.select(slice(start, start + step))
        data[start : start + step] = _unpack(format, part, k // kind.block)
    return data.unflatten(0, lead)


def _unpack(format: str, rows: Planes, blocks: int) -> Tensor:
    per_block = rows.map(lambda tensor: tensor.unflatten(-1, (blocks, -1)))
    fields = (each for each in FIELDS[format](per_block) if each is not None)
    return torch.cat([raw(each) for each in fields], -1).flatten(-2)


Fields = tuple[Tensor | None, ...]


def _q1_0(p: Planes) -> Fields:
    return p.scale, field(unpack_codes(p.codes), 1)


def _q2_0(p: Planes) -> Fields:
    return p.scale, field(unpack_codes(p.codes), 2)


def _q4(p: Planes) -> Fields:
    return p.scale, p.offset, runs(p.codes[0], 16)


def _q5(p: Planes) -> Fields:
    low, high = p.codes
    return p.scale, p.offset, runs(high, 1), runs(low, 16)


def _q8_0(p: Planes) -> Fields:
    return p.scale, runs(p.codes[0], 32) ^ 128


def _q2_k(p: Planes) -> Fields:
    assert p.offset is not None and p.m is not None
    return p.scale | p.offset << 4, runs(p.codes[0], 32), p.d, minus(p.m)


def _q3_k(p: Planes) -> Fields:
    low, high = p.codes
    a, b, c, d = numbers(p.scale + 32, torch.int32).unbind(-1)
    top = (a >> 4 & LOW_2) | (b >> 4 & LOW_2) << 2 | (c >> 4 & LOW_2) << 4 | (d >> 4 & LOW_2) << 6
    s = (a & LOW_4 | (c & LOW_4) << 4, b & LOW_4 | (d & LOW_4) << 4, top)
    return runs(high, 32), runs(low, 32), torch.stack(s, -1), p.d


def _q4_k(p: Planes) -> Fields:
    assert p.m is not None
    return p.d, minus(p.m), _scales_and_minima(p), runs(p.codes[0], 32)


def _q5_k(p: Planes) -> Fields:
    assert p.m is not None
    low, high = p.codes
    return p.d, minus(p.m), _scales_and_minima(p), runs(high, 32), runs(low, 32)


def _scales_and_minima(p: Planes) -> Tensor:
    """The 12 bytes of scales and minima in Q4_K and Q5_K as three words; see `naive`."""
    assert p.offset is not None
    s, late_s = numbers(p.scale, torch.int32).unbind(-1)
    t, late_t = numbers(p.offset, torch.int32).unbind(-1)
    low = late_s & LOW_4 | (late_t & LOW_4) << 4
    return torch.stack((s | (late_s >> 4 & LOW_2) << 6, t | (late_t >> 4 & LOW_2) << 6, low), -1)


def _q6_k(p: Planes) -> Fields:
    low, high = p.codes
    return runs(low, 64), runs(high, 32), p.scale, p.d


def _iq4_xs(p: Planes) -> Fields:
    s = (p.scale + 32).to(torch.uint8)
    return p.d, field(s >> 4, 2), field(s, 4), runs(p.codes[0], 16)


def _tq2_0(p: Planes) -> Fields:
    return runs(p.codes[0], 32), p.scale


FIELDS: Mapping[str, Callable[[Planes], Fields]] = {
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
