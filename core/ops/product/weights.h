// Weights in planes as native.cpp reads them, sixteen rows at a time.
//
// Sixteen rows are the lanes of a vector. Words of a plane are transposed, so that a vector holds
// one word of each row; shifted, it is four neighbouring codes of each (core/planes.py). What
// groups share comes the same way.
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
    int64_t bits, n, k, group, rows, together;
    float constant, unit, rest;
    int32_t start, e4m3;
};

static constexpr int size_of(int64_t type) {
    return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1;
}

// Sixteen rows of bytes, of which there may be fewer, read in order, sixteen words of each at once.
struct Words {
    const uint8_t *first, *last, *end, *later;
    int64_t row_bytes, done;
    int rows;

    void begin(const void* data, int64_t row, int64_t many, int64_t bytes, int64_t all) {
        first = (const uint8_t*)data + row * bytes;
        last = first + 15 * bytes;
        end = (const uint8_t*)data + all * bytes;
        later = first + 16 * bytes;
        row_bytes = bytes, done = 0;
        rows = (int)many;
    }

    // Move on by `bytes`, at most 64. What is past the end is 0.
    APART void next(int64_t bytes, v16u* to) {
        // A CPU does not see by itself that so many rows are being read: of the next strip, which
        // lies behind this one, as much is fetched, from one end to the other.
        for (int r = 0; r < 16; r++) __builtin_prefetch(later + 16 * done + 64 * r, 0, 2);
        const uint8_t* p = first + done;
        for (int r = 0; r < 16; r++) __builtin_prefetch(p + bytes + r * row_bytes);
        if (rows == 16 && end - (last + done) >= 64) {
            load_transposed(p, row_bytes, to);
        } else {
            alignas(64) uint8_t some[16 * 64] = {};
            for (int r = 0; r < rows; r++, p += row_bytes)
                memcpy(some + 64 * r, p, std::min<int64_t>(64, end - p));
            load_transposed(some, 64, to);
        }
        done += bytes;
    }
};

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

// The lowest bits of words as a number.
template <int TYPE>
static inline v16 number(v16u x) {
    switch (TYPE) {
        case F32: return as_floats(x);
        case F16: return from_halves(x);
        case BF16: return as_floats(x << 16);
        case I8: return as_floats(((x + 128u) & 255u) | 0x4b000000u) - 8388736.0f;
        case U8: return as_floats((x & 255u) | 0x4b000000u) - 8388608.0f;
        case E8M0: return from_e8m0(x & 255u);
        default: return from_e4m3(x & 255u);
    }
}

// Numbers [rows, many] of sixteen rows, which are asked for in order: a vector holds one of each.
struct Column {
    Words words;
    v16u raw[16];
    v16 values[16];
    int64_t type, next;

    void begin(const Numbers& numbers, int64_t row, int64_t rows, int64_t all) {
        type = numbers.type, next = 0;
        words.begin(numbers.data, row, rows, numbers.many * size_of(type), all);
    }

    v16 at(int64_t i) {
        if (i == next) more();
        return values[i % 16];
    }

    APART void more() {
        switch (type) {
            case F32: return more_of<F32>();
            case F16: return more_of<F16>();
            case BF16: return more_of<BF16>();
            case I8: return more_of<I8>();
            case U8: return more_of<U8>();
            case E8M0: return more_of<E8M0>();
            default: return more_of<E4M3>();
        }
    }

    template <int TYPE>
    void more_of() {
        constexpr int size = size_of(TYPE), in_word = 4 / size;
        if (next % (64 / size) == 0) words.next(64, raw);
        const v16u* from = raw + next / in_word % 16;
        for (int i = 0; i < 16; i++)
            values[i] = number<TYPE>(from[i / in_word] >> (8 * size * (i % in_word)));
        next += 16;
    }
};

// Of the units of a block of sixteen rows, which are cells or halves of cells: what a sum of
// products of codes is multiplied by, and what a sum of x is.
struct Factors {
    v16 times[UNITS], plus[UNITS];
};

// Sixteen rows of weights: their codes and the factors of their groups, in order.
struct Sixteen {
    const Weights* of;
    Words planes[3];
    Column scale, zero, offset, d, m;
    v16 times[16], plus[16];  // of sixteen groups
    int64_t group, left;      // the next group, and how many units the one before it serves yet

    void begin(const Weights& w, int64_t row, int64_t rows) {
        of = &w;
        rows = std::max<int64_t>(0, std::min<int64_t>(16, rows));
        for (int i = 0; i < 3 && w.codes[i]; i++)
            planes[i].begin(w.codes[i], row, rows, w.k / CELL * 4 * w.widths[i], w.rows);
        scale.begin(w.scale, row, rows, w.rows);
        if (w.zero.data) zero.begin(w.zero, row, rows, w.rows);
        if (w.offset.data) offset.begin(w.offset, row, rows, w.rows);
        if (w.d.data) d.begin(w.d, row, rows, w.rows);
        if (w.m.data) m.begin(w.m, row, rows, w.rows);
        group = left = 0;
    }

    APART void factors(int64_t units, int64_t of_group, bool any_plus, Factors& of_units) {
        for (int64_t u = 0; u < units;) {
            if (left == 0) {
                if (group % 16 == 0) more(any_plus);
                group++, left = of_group;
            }
            int64_t at = (uint64_t)(group - 1) % 16, until = std::min(units, u + left);
            left -= until - u;
            for (int64_t i = u; i < until; i++) of_units.times[i] = times[at];
            if (any_plus)
                for (int64_t i = u; i < until; i++) of_units.plus[i] = plus[at];
            u = until;
        }
    }

    void more(bool any_plus) {
        int64_t count = std::min<int64_t>(16, of->scale.many - group);
        for (int i = 0; i < count; i++) times[i] = scale.at(group + i);
        if (of->d.data)
            for (int i = 0; i < count; i++) times[i] *= d.at((group + i) / of->together);
        if (any_plus) more_plus(count);
        if (of->unit != 1)
            for (int i = 0; i < count; i++) times[i] *= of->unit;
    }

    void more_plus(int64_t count) {
        for (int i = 0; i < count; i++) plus[i] = times[i] * -of->rest;
        if (of->zero.data)
            for (int i = 0; i < count; i++) plus[i] = -times[i] * zero.at(group + i);
        if (of->m.data) {
            for (int i = 0; i < count; i++)
                plus[i] += offset.at(group + i) * m.at((group + i) / of->together);
        } else if (of->offset.data) {
            for (int i = 0; i < count; i++) plus[i] += offset.at(group + i);
        }
    }

    // The words of all planes of so many cells, one plane after the other.
    void next(int64_t cells, v16u* words) {
        for (int i = 0; i < 3 && of->codes[i]; i++) {
            int64_t bytes = cells * 4 * of->widths[i];
            for (int64_t done = 0; done < bytes; done += 64)
                planes[i].next(std::min<int64_t>(64, bytes - done), words + done / 4);
            words += CELLS * of->widths[i];
        }
    }
};

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

// The codes of a block of sixteen rows, four neighbours of each row at a time: made of the words of
// planes when they are asked for, or lying in the order that 8 bits have.
template <int BITS, bool BYTES>
struct Codes {
    const v16u* words;
    const uint8_t* bytes;

    v16u four(int64_t cell, int i) const {
        if (BITS == 8) return words[cell * 8 + i];
        v16u codes = {};
        int low = 0, first = 0;
        for (int width : WIDTHS[BITS]) {
            if (width == 0) break;
            v16u word = words[first * CELLS + cell * width + i % width] >> (i / width * width);
            codes = codes | (word & 0x01010101u * ((1u << width) - 1)) << low;
            low += width, first += width;
        }
        return BYTES ? look_up(codes, bytes) : codes;
    }
};

// `run` of the codes that weights have.
template <class Run>
static void with_codes(const Weights& w, const v16u* words, bool bytes, Run run) {
    switch (w.bits + (bytes ? 8 : 0)) {
        case 1: return run(Codes<1, false>{words, nullptr});
        case 2: return run(Codes<2, false>{words, nullptr});
        case 3: return run(Codes<3, false>{words, nullptr});
        case 4: return run(Codes<4, false>{words, nullptr});
        case 5: return run(Codes<5, false>{words, nullptr});
        case 6: return run(Codes<6, false>{words, nullptr});
        case 7: return run(Codes<7, false>{words, nullptr});
        case 8: return run(Codes<8, false>{words, nullptr});
        case 9: return run(Codes<1, true>{words, w.bytes});
        case 10: return run(Codes<2, true>{words, w.bytes});
        case 11: return run(Codes<3, true>{words, w.bytes});
        default: return run(Codes<4, true>{words, w.bytes});
    }
}

// All codes of so many cells, in the order of 8 bits.
APART static void lay_out(const Weights& w, const v16u* words, bool bytes, int64_t cells, v16u* to) {
    with_codes(w, words, bytes, [&](auto codes) {
        for (int64_t i = 0; i < cells; i++)
            for (int j = 0; j < 8; j++) to[8 * i + j] = codes.four(i, j);
    });
}
