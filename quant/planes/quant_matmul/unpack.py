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
def tile_weights(
    w,
    row,
    cell,
    cells,
    LAYOUT: tl.constexpr,
    EVEN: tl.constexpr,
    WARPS: tl.constexpr,
    ASM: tl.constexpr,
):
    """The weights of four cells times `w.factor`, float16 [rows, 128], in the order of tiles.

    A lane keeps the cell that it loads. Of 16 adjacent weights, a tensor core takes the first two
    and the ninth and tenth from one lane, and so on for three more lanes: here these are neighbours
    of one cell. The columns are ordered by word of a half, half, pair of the word's bytes, cell and
    byte; the rows as in `tile_rows`. row int64 [rows, 1]; EVEN if there are cells for all tiles.
    """
    scale, scale_b, offset, offset_b = tile_scales(w, row, cell, cells, LAYOUT, EVEN)
    words = half_words(w, row, cell, cells, 0, LAYOUT, EVEN)
    a, b, c, d = scale_bytes(w, words, scale, offset, LAYOUT, ASM)
    words = half_words(w, row, cell, cells, 1, LAYOUT, EVEN)
    e, f, g, h = scale_bytes(w, words, scale_b, offset_b, LAYOUT, ASM)
    # The last join is of values that share a register.
    value = tl.join(
        tl.join(tl.join(a, e), tl.join(c, g)),
        tl.join(tl.join(b, f), tl.join(d, h)),
    )
    parts: tl.constexpr = row.shape[0] // (16 * WARPS)
    value = value.reshape(parts, 2, WARPS, 8, 4, 4, 2, 2, 2)
    return value.permute(0, 2, 1, 3, 5, 6, 7, 4, 8).reshape(row.shape[0], 128)


@triton.jit
def tile_rows(ROWS: tl.constexpr, WARPS: tl.constexpr):
    """The rows of a tile in the order of `tile_weights`, int32 [ROWS].

    A warp of a tensor core has the rows i and i + 8 of 16 adjacent rows in each lane; here these
    are two rows that it loads one after the other.
    """
    row = tl.arange(0, ROWS)
    part, warp, half = row // (16 * WARPS), row // 16 % WARPS, row // 8 % 2
    return ((part * 2 + half) * WARPS + warp) * 8 + row % 8


@triton.jit
def tile_scales(w, row, cell, cells, LAYOUT: tl.constexpr, EVEN: tl.constexpr):
    """Scales and offsets of both halves of four cells, as `half_pairs`.

    Offsets contain the zeros that are not constant.
    """
    factor = tl.load(w.factor)
    scale = tile_values(w.scale, w.d, LAYOUT.d, row, cell, cells, LAYOUT, EVEN) * factor
    offset = tl.zeros_like(scale)
    if w.offset is not None:
        offset += tile_values(w.offset, w.m, LAYOUT.m, row, cell, cells, LAYOUT, EVEN) * factor
    if w.zero is not None:
        offset -= tile_values(w.zero, None, 1, row, cell, cells, LAYOUT, EVEN) * scale
    scale, offset = half_pairs(scale), half_pairs(offset)
    if LAYOUT.group == 16:
        scale, scale_b = tl.split(scale.reshape(row.shape[0], 4, 2))
        offset, offset_b = tl.split(offset.reshape(row.shape[0], 4, 2))
        return scale, scale_b, offset, offset_b
    else:
        return scale, scale, offset, offset


@triton.jit
def tile_values(
    fine, coarse, SPAN: tl.constexpr, row, cell, cells, LAYOUT: tl.constexpr, EVEN: tl.constexpr
):
    """As `group_value`, for four cells: float32 [rows, 4], or [rows, 8] for groups of 16."""
    halves: tl.constexpr = 32 // min(LAYOUT.group, 32)
    # If the cells share a group, or a superblock, its value is loaded once.
    count: tl.constexpr = 1 if LAYOUT.group % 128 == 0 else 4 * halves
    wide: tl.constexpr = LAYOUT.group * SPAN % 128 == 0
    groups = cells * 32 // LAYOUT.group
    if LAYOUT.group <= 32:
        index = cell * halves + tl.arange(0, count)
    else:
        index = (cell + tl.arange(0, count)) * 32 // LAYOUT.group
    # The alignment is that of a cell, so that a lane loads the values of one cell.
    size: tl.constexpr = halves * fine.dtype.element_ty.primitive_bitwidth // 8
    at = tl.multiple_of(fine + row * groups + index[None, :], [1, size])
    value = load_inside(at, (index < groups)[None, :], EVEN).to(tl.float32)
    if coarse is not None:
        index = index // SPAN
        if wide:
            index = cell * 32 // (LAYOUT.group * SPAN) + tl.arange(0, 1)
        at = coarse + row * (groups // SPAN) + index[None, :]
        value *= load_inside(at, (index < groups // SPAN)[None, :], EVEN).to(tl.float32)
    return tl.broadcast_to(value, (row.shape[0], 4 * halves))


@triton.jit
def load_inside(at, inside, EVEN: tl.constexpr):
    """Load without a mask if EVEN; else zeros where not `inside`."""
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, inside, 0)


@triton.jit
def half_words(w, row, cell, cells, HALF: tl.constexpr, LAYOUT: tl.constexpr, EVEN: tl.constexpr):
    """The codes 16 HALF .. + 15 of four cells, four per word, int32 [rows, 4, 4]."""
    words = None
    for p in tl.static_range(len(LAYOUT.widths)):
        part = plane_quads(w.words[p], row, cell, cells, HALF, LAYOUT.widths[p], EVEN)
        part = part << LAYOUT.lows[p]
        words = part if words is None else words | part
    return words


@triton.jit
def plane_quads(
    plane, row, cell, cells, HALF: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr
):
    """The bits of a plane for quads 4 HALF .. + 3: quad q is word q % WIDTH, turn q // WIDTH."""
    size: tl.constexpr = min(WIDTH, 4)
    index = tl.arange(0, 4 * size)
    if WIDTH == 8:
        index = index // 4 * 8 + index % 4 + HALF * 4
    inside = (cell + index // WIDTH < cells)[None, :]
    # The alignment is that of a cell, so that a lane loads the words of one cell.
    at = tl.multiple_of(plane + (row * cells + cell) * WIDTH + index[None, :], [1, 4 * size])
    words = load_inside(at, inside, EVEN).reshape(row.shape[0], 4, 1, size)
    if WIDTH < 8:
        turn = tl.arange(0, 4 // size) + HALF * (4 // size)
        words = (words >> (turn * WIDTH)[None, None, :, None]) & (0x01010101 * (2**WIDTH - 1))
    return words.reshape(row.shape[0], 4, 4)


@triton.jit
def half_pairs(value):
    """Values as float16 in both halves of words, int32."""
    bits = value.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return bits * 0x00010001


@triton.jit
def scale_bytes(w, words, scale, offset, LAYOUT: tl.constexpr, ASM: tl.constexpr):
    """value(byte) * scale + offset of the four bytes of words, float16."""
    scale, offset = scale[:, :, None], offset[:, :, None]
    if LAYOUT.bytes and ASM == "cuda":
        # A byte below the bits of 1024, a float16, adds itself.
        bias = tl.full(words.shape, 1024.0 + LAYOUT.zero, tl.float16)
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 low, high, bias;
            mov.b32 bias, {$7, $7};
            prmt.b32 low, $4, 0x64646464, 0x4140;
            prmt.b32 high, $4, 0x64646464, 0x4342;
            sub.rn.f16x2 low, low, bias;
            sub.rn.f16x2 high, high, bias;
            fma.rn.f16x2 low, low, $5, $6;
            fma.rn.f16x2 high, high, $5, $6;
            mov.b32 {$0, $1}, low;
            mov.b32 {$2, $3}, high;
            }""",
            "=h,=h,=h,=h,r,r,r,h",
            [
                words,
                tl.broadcast_to(scale, words.shape),
                tl.broadcast_to(offset, words.shape),
                bias.to(tl.int16, bitcast=True),
            ],
            (tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=1,
        )
    else:
        scale, offset = half_float(scale), half_float(offset)
        a = scale_byte(w, words, scale, offset, LAYOUT)
        b = scale_byte(w, words >> 8, scale, offset, LAYOUT)
        c = scale_byte(w, words >> 16, scale, offset, LAYOUT)
        d = scale_byte(w, words >> 24, scale, offset, LAYOUT)
        return a, b, c, d


@triton.jit
def scale_byte(w, words, scale, offset, LAYOUT: tl.constexpr):
    """As `scale_bytes`, of the lowest byte."""
    return (decode(w, words & 0xFF, LAYOUT) * scale + offset).to(tl.float16)


@triton.jit
def half_float(bits):
    """The float16 in the low half of a word, float32."""
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


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
