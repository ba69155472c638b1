// Weights in planes as native.cpp reads them, sixteen rows at a time.
//
// Sixteen rows make a strip and are the lanes of a vector (strips.py): the words of a plane, of each
// row one, lie beside each other, and so do the numbers that groups share. A word holds four
// neighbouring codes at a time (quant/planes/planes.py).
#pragma once

#include "ostro.h"

#include <algorithm>

enum { CELL = 32, CELLS = 16, BLOCK = CELL * CELLS, UNITS = 2 * CELLS };

// Not copied to every place that calls it: that takes long to compile.
#define APART __attribute__((noinline))

enum Type { F32, F16, BF16, I8, U8, E8M0, E4M3 };

// What groups share: `many` numbers of each row; absent where there is no data.
struct Numbers {
    const uint8_t* data;
    int64_t many, type;
};

// As `Weights` of native.py, which says what the fields are.
struct Weights {
    const uint8_t* codes[3];
    int64_t widths[3];
    Numbers scale, zero, offset, d, m;
    const float* table;
    const float* values;
    const uint8_t* bytes;
    int64_t bits, n, k, group, experts, together;
    float constant, unit, rest;
    int32_t start, e4m3;
};

static constexpr int size_of(int64_t type) {
    return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1;
}

// A byte of eight bits of exponent, and one of a sign, four bits of exponent, three of fraction.
static inline v16 from_e8m0(v16u x) {
    v16u power = select(x == 0u, v16u{} + 0x00400000u, x << 23);
    return as_floats(select(x == 255u, v16u{} + 0x7fc00000u, power));
}

static inline v16 from_e4m3(v16u x) {
    v16u size = (x & 0x7fu) << 20;
    v16 number = as_floats((x & 0x80u) << 24 | size) * 0x1p120f;
    return select(size == 0x07f00000u, splat(NAN), number);
}

// Sixteen numbers of a type, beside each other.
template <int TYPE>
static inline v16 number(const uint8_t* p) {
    switch (TYPE) {
        case F32: return load((const float*)p);
        case F16: return load((const f16*)p);
        case BF16: return load((const bf16*)p);
        case I8: return as_floats(((widen(p) + 128u) & 255u) | 0x4b000000u) - 8388736.0f;
        case U8: return as_floats(widen(p) | 0x4b000000u) - 8388608.0f;
        case E8M0: return from_e8m0(widen(p));
        default: return from_e4m3(widen(p));
    }
}

// The numbers of a strip: a vector holds one of each row.
struct Column {
    const uint8_t* data;
    int64_t type;

    void begin(const Numbers& numbers, int64_t strip) {
        type = numbers.type;
        data = numbers.data + strip * numbers.many * 16 * size_of(type);
    }

    // Of the units first.. + count, `together` of which share a number.
    APART void read(int64_t first, int64_t count, int64_t together, v16* to) const {
        switch (type) {
            case F32: return read_as<F32>(first, count, together, to);
            case F16: return read_as<F16>(first, count, together, to);
            case BF16: return read_as<BF16>(first, count, together, to);
            case I8: return read_as<I8>(first, count, together, to);
            case U8: return read_as<U8>(first, count, together, to);
            case E8M0: return read_as<E8M0>(first, count, together, to);
            default: return read_as<E4M3>(first, count, together, to);
        }
    }

    template <int TYPE>
    void read_as(int64_t first, int64_t count, int64_t together, v16* to) const {
        const uint8_t* p = data + first / together * 16 * size_of(TYPE);
        int64_t until = together - first % together;
        for (int64_t i = 0; i < count; until += together, p += 16 * size_of(TYPE)) {
            __builtin_prefetch(p + 16 * size_of(TYPE) * 2 * UNITS);
            v16 x = number<TYPE>(p);
            for (; i < std::min(count, until); i++) to[i] = x;
        }
    }
};

// Of the units of a block of sixteen rows, which are cells or halves of cells: what a sum of
// products of codes is multiplied by, and what a sum of x is.
struct Factors {
    v16 times[UNITS], plus[UNITS];
};

// A strip of weights: its codes and the factors of its units, in order.
struct Strip {
    const Weights* of;
    const v16u* planes[3];
    Column scale, zero, offset, d, m;
    int64_t unit;  // the next one
    v16 more[UNITS];

    void begin(const Weights& w, int64_t strip) {
        of = &w, unit = 0;
        for (int i = 0; i < 3 && w.codes[i]; i++)
            planes[i] = (const v16u*)w.codes[i] + strip * (w.k / CELL * w.widths[i]);
        scale.begin(w.scale, strip);
        if (w.zero.data) zero.begin(w.zero, strip);
        if (w.offset.data) offset.begin(w.offset, strip);
        if (w.d.data) d.begin(w.d, strip);
        if (w.m.data) m.begin(w.m, strip);
    }

    // Go on behind so many cells.
    void next(int64_t cells, int64_t units) {
        for (int i = 0; i < 3 && of->codes[i]; i++) planes[i] += cells * of->widths[i];
        unit += units;
    }

    // Of the next units, `of_group` of which make a group.
    void factors(int64_t units, int64_t of_group, bool any_plus, Factors& to) {
        read_scales(units, of_group, to.times);
        if (any_plus) {
            if (of->zero.data) {
                zero.read(unit, units, of_group, to.plus);
                for (int i = 0; i < units; i++) to.plus[i] = -to.times[i] * to.plus[i];
            } else {
                for (int i = 0; i < units; i++) to.plus[i] = to.times[i] * -of->rest;
            }
            if (of->offset.data) {
                v16 some[UNITS];
                read_offsets(units, of_group, some);
                for (int i = 0; i < units; i++) to.plus[i] += some[i];
            }
        }
        if (of->unit != 1)
            for (int i = 0; i < units; i++) to.times[i] *= of->unit;
    }

    void read_scales(int64_t units, int64_t of_group, v16* to) {
        read_product(scale, d, of->d, units, of_group, to);
    }

    void read_offsets(int64_t units, int64_t of_group, v16* to) {
        read_product(offset, m, of->m, units, of_group, to);
    }

    void read_product(const Column& fine, const Column& coarse, const Numbers& any, int64_t units,
                      int64_t of_group, v16* to) {
        fine.read(unit, units, of_group, to);
        if (!any.data) return;
        coarse.read(unit, units, of_group * of->together, more);
        for (int i = 0; i < units; i++) to[i] *= more[i];
    }
};

enum { AHEAD = 64 };  // vectors of a plane that are fetched before they are needed

// Codes below 16 become the bytes that they stand for.
static inline v16u look_up(v16u codes, const uint8_t* bytes) {
#ifdef __AVX512BW__
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)bytes));
    return (v16u)_mm512_shuffle_epi8(table, (__m512i)codes);
#else
    uint8_t each[64];
    memcpy(each, &codes, 64);
    for (int i = 0; i < 64; i++) each[i] = bytes[each[i]];
    memcpy(&codes, each, 64);
    return codes;
#endif
}

// Bits of the planes of a code.
constexpr int WIDTHS[9][3] = {{}, {1}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {8}};

// The codes of a strip, four neighbours of each row at a time, made of the words of planes.
template <int BITS, bool BYTES>
struct Codes {
    const v16u* planes[3];
    const uint8_t* bytes;

    // Ask for what lies ahead: by itself a CPU keeps up with 3/4 of what its memory gives. Inline,
    // for a function that does nothing else is taken for one that does nothing.
    __attribute__((always_inline)) void expect(int64_t cell) const {
        for (int p = 0; p < 3 && WIDTHS[BITS][p]; p++)
            for (int i = 0, width = WIDTHS[BITS][p]; i < width; i++)
                __builtin_prefetch(planes[p] + cell * width + i + AHEAD);
    }

    v16u four(int64_t cell, int i) const {
        v16u codes = {};
        int low = 0;
        for (int p = 0; p < 3 && WIDTHS[BITS][p]; p++) {
            int width = WIDTHS[BITS][p];
            v16u word = planes[p][cell * width + i % width];
            if (width == 8) return word;
            word = word >> (i / width * width);
            codes = codes | (word & 0x01010101u * ((1u << width) - 1)) << low;
            low += width;
        }
        return BYTES ? look_up(codes, bytes) : codes;
    }
};

// `run` of the codes that a strip has.
template <class Run>
static void with_codes(const Strip& strip, bool bytes, Run run) {
    const v16u* const* p = strip.planes;
    const uint8_t* b = strip.of->bytes;
    switch (strip.of->bits + (bytes ? 8 : 0)) {
        case 1: return run(Codes<1, false>{{p[0]}, b});
        case 2: return run(Codes<2, false>{{p[0]}, b});
        case 3: return run(Codes<3, false>{{p[0], p[1]}, b});
        case 4: return run(Codes<4, false>{{p[0]}, b});
        case 5: return run(Codes<5, false>{{p[0], p[1]}, b});
        case 6: return run(Codes<6, false>{{p[0], p[1]}, b});
        case 7: return run(Codes<7, false>{{p[0], p[1], p[2]}, b});
        case 8: return run(Codes<8, false>{{p[0]}, b});
        case 9: return run(Codes<1, true>{{p[0]}, b});
        case 10: return run(Codes<2, true>{{p[0]}, b});
        case 11: return run(Codes<3, true>{{p[0], p[1]}, b});
        default: return run(Codes<4, true>{{p[0]}, b});
    }
}

// The codes of the next so many cells, in the order of 8 bits.
APART static void lay_out(const Strip& strip, bool bytes, int64_t cells, v16u* to) {
    with_codes(strip, bytes, [&](auto codes) {
        for (int64_t i = 0; i < cells; i++)
            for (int j = 0; j < 8; j++) to[8 * i + j] = codes.four(i, j);
    });
}
