"""What kernels of planes share: codes and scales in registers.

Rows are those of a matrix, or of all experts end to end. A row is `cells` of 32 codes; in a plane
of b bits a cell is b words, of which turn s, shifted right by b s, holds in its bytes the codes
4 (w + b s) .. + 3 of word w. A cell's units are its planes' turns: `unit` words of four codes each
(a cell of eight bits, whose words hold one code per byte, is two units of four).
"""

# Triton's language only looks like Python: it has no types to check, and no (*a, b).
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"
# ruff: noqa: RUF005

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def group_number(fine, coarse, SPAN: tl.constexpr, row, group, groups):
    """What groups share, float32; SPAN of them share one of `coarse`, where there is that."""
    number = tl.load(fine + row * groups + group).to(tl.float32)
    if coarse is not None:
        number *= tl.load(coarse + row * (groups // SPAN) + group // SPAN).to(tl.float32)
    return number


@triton.jit
def group_place(cell, cells, HALF: tl.constexpr, KIND: tl.constexpr):
    """Which group of a row has this half of a cell, and how many there are."""
    if KIND.group == 16:
        return cell * 2 + HALF, cells * 2
    else:
        return cell // (KIND.group // 32), cells // (KIND.group // 32)


@triton.jit
def half_weights(w, row, cell, cells, HALF: tl.constexpr, KIND: tl.constexpr):
    """The weights 16 HALF .. + 15 of cells, float32 [rows, cells, 16], by the formula of
    `quant.planes.planes`; row int64 [rows, 1], cell [1, cells].
    """
    group, groups = group_place(cell, cells, HALF, KIND)
    value = values(w, half_codes(w, row * cells + cell, HALF, KIND), KIND)
    if w.zero is not None:
        value -= tl.load(w.zero + row * groups + group).to(tl.float32)[:, :, None]
    value *= group_number(w.scale, w.d, KIND.d, row, group, groups)[:, :, None]
    if w.offset is not None:
        value += group_number(w.offset, w.m, KIND.m, row, group, groups)[:, :, None]
    return value


@triton.jit
def values(w, code, KIND: tl.constexpr):
    """What codes mean, less a zero that all share, float32."""
    if w.table is not None:
        return tl.load(w.table + code) - KIND.zero
    elif KIND.zero % 1 == 0:
        # Put below the bits of 2 ** 23, a code is that much more. Conversions are slow.
        return (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + KIND.zero)
    else:
        return code.to(tl.float32) - KIND.zero


@triton.jit
def half_codes(w, place, HALF: tl.constexpr, KIND: tl.constexpr):
    """The codes of those weights, int32; place [rows, cells] of the cells."""
    code = None
    for p in tl.static_range(len(KIND.widths)):
        some = plane_codes(w.codes[p], place, HALF, KIND.widths[p]) << KIND.lows[p]
        code = some if code is None else code | some
    return code


@triton.jit
def plane_codes(plane, place, HALF: tl.constexpr, WIDTH: tl.constexpr):
    size: tl.constexpr = min(4 * WIDTH, 16)
    turns: tl.constexpr = 16 // size
    byte = tl.arange(0, size) + (16 * HALF if WIDTH == 8 else 0)
    code = tl.load(plane + place[:, :, None, None] * (4 * WIDTH) + byte[None, None, None, :])
    code = code.to(tl.int32)
    if WIDTH < 8:
        turn = tl.arange(0, turns) + HALF * turns
        code = (code >> (turn * WIDTH)[None, None, :, None]) & (2**WIDTH - 1)
    return code.reshape(place.shape[0], place.shape[1], 16)


@triton.jit
def cell_words(w, row, cell, cells, KIND: tl.constexpr, ASM: tl.constexpr):
    """All units of cells, int32 [rows, cells, unit], by plane and turn.

    Their bytes are codes, those of eight bits less 128, or values in `ints`: all are signed.
    """
    planes, place = (), row * cells + cell
    for p in tl.static_range(len(KIND.widths)):
        planes = planes + (plane_words(w.words[p], w.ints, place, KIND.widths[p], ASM),)
    return planes


@triton.jit
def plane_words(plane, ints, place, WIDTH: tl.constexpr, ASM: tl.constexpr):
    at = plane + place[:, :, None] * WIDTH + tl.arange(0, min(WIDTH, 4))[None, None, :]
    word = tl.load(at)
    if WIDTH == 8:
        return word ^ -0x7F7F7F80, tl.load(at + 4) ^ -0x7F7F7F80
    elif ints is not None:
        return look_up(ints, word, ASM)
    else:
        units = ()
        for turn in tl.static_range(8 // WIDTH):
            units = units + ((word >> (WIDTH * turn)) & (0x01010101 * (2**WIDTH - 1)),)
        return units


@triton.jit
def look_up(ints, word, ASM: tl.constexpr):
    """The values of codes in the low halves of bytes, and of those in the high halves.

    `permute` picks from eight values by three bits of a code; a second time, by the fourth. Every
    lane loads the values from a place of its own: uniform ones would be moved before each use.
    """
    lane = ints + (tl.arange(0, word.shape[1]) % 32)[None, :, None]
    a, b, c, d = tl.load(lane), tl.load(lane + 32), tl.load(lane + 64), tl.load(lane + 96)
    if ASM == "hip":
        low, high = word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F
        return by_bytes(a, b, c, d, low, ASM), by_bytes(a, b, c, d, high, ASM)
    else:
        code = word & 0x77777777
        which = ((word >> 1) & 0x44444444) | 0x32103210
        x = permute(permute(a, b, code, ASM), permute(c, d, code, ASM), which, ASM)
        code, which = code >> 16, which >> 16
        y = permute(permute(a, b, code, ASM), permute(c, d, code, ASM), which, ASM)
        return permute(x, y, word * 0 + 0x6420, ASM), permute(x, y, word * 0 + 0x7531, ASM)


@triton.jit
def by_bytes(a, b, c, d, code, ASM: tl.constexpr):
    three = code & 0x07070707
    which = ((code >> 1) & 0x04040404) | 0x03020100
    return permute(permute(a, b, three, ASM), permute(c, d, three, ASM), which, ASM)


@triton.jit
def permute(a, b, which, ASM: tl.constexpr):
    """Four of the eight bytes of a and b: numbered in four halves of bytes, on AMD in bytes."""
    if ASM == "cuda":
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, which], tl.int32, is_pure=True, pack=1
        )
    elif ASM == "hip":
        return tl.inline_asm_elementwise(
            "v_perm_b32 $0, $2, $1, $3", "=v,v,v,v", [a, b, which], tl.int32, is_pure=True, pack=1
        )
    else:
        chosen = which & 0
        for i in tl.static_range(4):
            place = (which >> (4 * i)) & 7
            byte = tl.where(place < 4, a, b) >> (8 * (place & 3))
            chosen |= (byte & 255) << (8 * i)
        return chosen


@triton.jit
def dot4(a, b, c, ASM: tl.constexpr):
    """c + the sum of the products of the four signed bytes of a and b, int32."""
    if ASM == "cuda":
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], tl.int32, is_pure=True, pack=1
        )
    elif ASM == "hip":
        return tl.inline_asm_elementwise(
            "v_dot4_i32_i8 $0, $1, $2, $3", "=v,v,v,v", [a, b, c], tl.int32, is_pure=True, pack=1
        )
    else:
        for i in tl.static_range(4):
            c += ((a << (24 - 8 * i)) >> 24) * ((b << (24 - 8 * i)) >> 24)
        return c
