"""Triton functions that load codes and scales of `Planes` and unpack them in registers.

Rows are those of a matrix, or of all experts concatenated. A row is `cells` cells of 32 codes. In a
plane of b bits a cell is b words; turn s of word w, the word shifted right by b s, holds the codes
4 (w + b s) .. + 3 in its bytes. A unit is a turn of a plane: `unit` words of four codes each (a
cell of eight bits, whose words hold one code per byte, is two units of four words).
"""

# Triton's language only looks like Python: it has no types to check, and no (*a, b).
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call, assignment"
# ruff: noqa: RUF005

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def group_value(fine, coarse, SPAN: tl.constexpr, row, group, groups):
    """Load a value per group, float32, times its superblock's value (`coarse`, one per SPAN groups,
    or None).
    """
    value = tl.load(fine + row * groups + group).to(tl.float32)
    if coarse is not None:
        value *= tl.load(coarse + row * (groups // SPAN) + group // SPAN).to(tl.float32)
    return value


@triton.jit
def group_index(cell, cells, HALF: tl.constexpr, LAYOUT: tl.constexpr):
    """The group of a row that contains this half of a cell, and the number of groups."""
    if LAYOUT.group == 16:
        return cell * 2 + HALF, cells * 2
    else:
        return cell // (LAYOUT.group // 32), cells // (LAYOUT.group // 32)


@triton.jit
def half_weights(w, row, cell, cells, HALF: tl.constexpr, LAYOUT: tl.constexpr):
    """The weights 16 HALF .. + 15 of cells, float32 [rows, cells, 16], by the formula of
    `quant.planes.planes`; row int64 [rows, 1], cell [1, cells].
    """
    group, groups = group_index(cell, cells, HALF, LAYOUT)
    value = decode(w, half_codes(w, row * cells + cell, HALF, LAYOUT), LAYOUT)
    if w.zero is not None:
        value -= tl.load(w.zero + row * groups + group).to(tl.float32)[:, :, None]
    value *= group_value(w.scale, w.d, LAYOUT.d, row, group, groups)[:, :, None]
    if w.offset is not None:
        value += group_value(w.offset, w.m, LAYOUT.m, row, group, groups)[:, :, None]
    return value


@triton.jit
def decode(w, code, LAYOUT: tl.constexpr):
    """The values of codes minus the constant zero, float32."""
    if LAYOUT.exponent == 5:
        # The bits of a float16, without the low half of its mantissa.
        return (code << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) - LAYOUT.zero
    elif LAYOUT.exponent == 4 and LAYOUT.converts:
        return code.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32) - LAYOUT.zero
    elif LAYOUT.exponent == 4:
        # As a float16, these bits have one more exponent bit: the value is 2 ** 8 times too small.
        bits = ((code << 8) & 0x8000) | ((code << 7) & 0x3F80)
        value = bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        return value * 256.0 - LAYOUT.zero
    elif w.table is not None:
        return tl.load(w.table + code) - LAYOUT.zero
    elif LAYOUT.zero % 1 == 0:
        # OR-ed below the bits of 2 ** 23, a code adds itself. Integer conversions are slower.
        return (code | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + LAYOUT.zero)
    else:
        return code.to(tl.float32) - LAYOUT.zero


@triton.jit
def half_codes(w, position, HALF: tl.constexpr, LAYOUT: tl.constexpr):
    """The codes 16 HALF .. + 15 of cells, int32 [rows, cells, 16]; position [rows, cells]."""
    code = None
    for p in tl.static_range(len(LAYOUT.widths)):
        part = plane_codes(w.codes[p], position, HALF, LAYOUT.widths[p]) << LAYOUT.lows[p]
        code = part if code is None else code | part
    return code


@triton.jit
def plane_codes(plane, position, HALF: tl.constexpr, WIDTH: tl.constexpr):
    size: tl.constexpr = min(4 * WIDTH, 16)
    turns: tl.constexpr = 16 // size
    byte = tl.arange(0, size) + (16 * HALF if WIDTH == 8 else 0)
    code = tl.load(plane + position[:, :, None, None] * (4 * WIDTH) + byte[None, None, None, :])
    code = code.to(tl.int32)
    if WIDTH < 8:
        turn = tl.arange(0, turns) + HALF * turns
        code = (code >> (turn * WIDTH)[None, None, :, None]) & (2**WIDTH - 1)
    return code.reshape(position.shape[0], position.shape[1], 16)


@triton.jit
def cell_words(w, row, cell, cells, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """All units of cells, int32 [rows, cells, unit], by plane and turn.

    Each byte is signed: a code, a code of eight bits minus 128, or a value of `ints`.
    """
    planes, position = (), row * cells + cell
    for p in tl.static_range(len(LAYOUT.widths)):
        planes = planes + (plane_words(w.words[p], w.ints, position, LAYOUT.widths[p], ASM),)
    return planes


@triton.jit
def plane_words(plane, ints, position, WIDTH: tl.constexpr, ASM: tl.constexpr):
    at = plane + position[:, :, None] * WIDTH + tl.arange(0, min(WIDTH, 4))[None, None, :]
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
    """The values of the codes in the low halves of bytes, and of those in the high halves.

    `permute` selects from eight values by three bits of a code, and a second time by the fourth.
    Each lane loads its own copy of the table: the compiler would move uniform values before each
    use.
    """
    lane = ints + (tl.arange(0, word.shape[1]) % 32)[None, :, None]
    a, b, c, d = tl.load(lane), tl.load(lane + 32), tl.load(lane + 64), tl.load(lane + 96)
    if ASM == "hip":
        low, high = word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F
        return by_bytes(a, b, c, d, low, ASM), by_bytes(a, b, c, d, high, ASM)
    else:
        code = word & 0x77777777
        selector = ((word >> 1) & 0x44444444) | 0x32103210
        x = permute(permute(a, b, code, ASM), permute(c, d, code, ASM), selector, ASM)
        code, selector = code >> 16, selector >> 16
        y = permute(permute(a, b, code, ASM), permute(c, d, code, ASM), selector, ASM)
        return permute(x, y, word * 0 + 0x6420, ASM), permute(x, y, word * 0 + 0x7531, ASM)


@triton.jit
def by_bytes(a, b, c, d, code, ASM: tl.constexpr):
    three = code & 0x07070707
    selector = ((code >> 1) & 0x04040404) | 0x03020100
    return permute(permute(a, b, three, ASM), permute(c, d, three, ASM), selector, ASM)


@triton.jit
def permute(a, b, selector, ASM: tl.constexpr):
    """Four of the eight bytes of a and b. The selector has 4 bits per byte, on AMD 8 bits."""
    if ASM == "cuda":
        return tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, selector], tl.int32, is_pure=True, pack=1
        )
    elif ASM == "hip":
        return tl.inline_asm_elementwise(
            "v_perm_b32 $0, $2, $1, $3",
            "=v,v,v,v",
            [a, b, selector],
            tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        chosen = selector & 0
        for i in tl.static_range(4):
            position = (selector >> (4 * i)) & 7
            byte = tl.where(position < 4, a, b) >> (8 * (position & 3))
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
