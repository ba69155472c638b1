// Quantized weights in the row-interleaved x16 layout (interleaved.py): structs and readers.
//
// A panel is sixteen rows, one per vector lane. A vector of a plane holds one four-byte word of
// each row; a vector of scales holds one scale of each row. A word holds four consecutive codes per
// turn (quant/planes/planes.py).
#pragma once

#include "ostro.h"

#include <algorithm>

enum { CELL = 32, CELLS = 16, BLOCK = CELL * CELLS, UNITS = 2 * CELLS };

// Inlining into every instantiation would make compilation slow.
#define NOINLINE __attribute__((noinline))

enum Type { F32, F16, BF16, I8, U8, E8M0, E4M3 };

// Values shared by groups, `per_row` for each row; null data means absent.
struct GroupValues {
    const uint8_t* data;
    int64_t per_row, type;
};

// Must match `WeightStruct` in native.py, which documents the fields.
struct Weights {
    const uint8_t* codes[3];
    int64_t widths[3];
    GroupValues scale, zero, offset, d, m;
    const float* table;
    const float* code_values;
    const uint8_t* code_bytes;
    int64_t bits, n, k, group, experts, groups_per_superblock;
    float shared_zero, table_unit, zero_residual;
    int32_t zero_point, is_e4m3;
};

static constexpr int size_of(int64_t type) {
    return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1;
}

// Decode float8_e8m0fnu and float8_e4m3fn bytes.
static inline v16 from_e8m0(v16u x) {
    v16u power = select(x == 0u, v16u{} + 0x00400000u, x << 23);
    return as_floats(select(x == 255u, v16u{} + 0x7fc00000u, power));
}

static inline v16 from_e4m3(v16u x) {
    v16u size = (x & 0x7fu) << 20;
    v16 number = as_floats((x & 0x80u) << 24 | size) * 0x1p120f;
    return select(size == 0x07f00000u, splat(NAN), number);
}

// Load sixteen adjacent elements of a type as float32.
template <int TYPE>
static inline v16 load_as(const uint8_t* p) {
    switch (TYPE) {
        case F32: return load((const float*)p);
        case F16: return load((const f16*)p);
        case BF16: return load((const bf16*)p);
        case I8: return to_floats(widen((const int8_t*)p));
        case U8: return to_floats(widen(p));
        case E8M0: return from_e8m0(widen(p));
        default: return from_e4m3(widen(p));
    }
}

// Group values of a panel: each vector holds one value of each row.
struct Column {
    const uint8_t* data;
    int64_t type;

    void begin(const GroupValues& values, int64_t panel) {
        type = values.type;
        data = values.data + panel * values.per_row * 16 * size_of(type);
    }

    // Read the values of the units [first, first + count); `units_per_value` units share one.
    NOINLINE void read(int64_t first, int64_t count, int64_t units_per_value, v16* to) const {
        switch (type) {
            case F32: return read_as<F32>(first, count, units_per_value, to);
            case F16: return read_as<F16>(first, count, units_per_value, to);
            case BF16: return read_as<BF16>(first, count, units_per_value, to);
            case I8: return read_as<I8>(first, count, units_per_value, to);
            case U8: return read_as<U8>(first, count, units_per_value, to);
            case E8M0: return read_as<E8M0>(first, count, units_per_value, to);
            default: return read_as<E4M3>(first, count, units_per_value, to);
        }
    }

    template <int TYPE>
    void read_as(int64_t first, int64_t count, int64_t units_per_value, v16* to) const {
        constexpr int64_t size = 16 * size_of(TYPE);
        const uint8_t* p = data + first / units_per_value * size;
        if (units_per_value == 1) {
#pragma GCC unroll 4
            for (int64_t i = 0; i < count; i++) {
                if (i * size % 64 == 0) __builtin_prefetch(p + (i + 2 * UNITS) * size);
                to[i] = load_as<TYPE>(p + i * size);
            }
            return;
        }
        int64_t until = units_per_value - first % units_per_value;
        for (int64_t i = 0; i < count; until += units_per_value, p += size) {
            __builtin_prefetch(p + size * 2 * UNITS);
            v16 x = load_as<TYPE>(p);
            for (; i < std::min(count, until); i++) to[i] = x;
        }
    }

    // Read the values of the units [first, first + count), one per unit, times those of `coarse`,
    // which `units_per_value` units share.
    template <int TYPE, int COARSE>
    NOINLINE void read_scaled(int64_t first, int64_t count, int64_t units_per_value,
                              const Column& coarse, v16* to) const {
        constexpr int64_t size = 16 * size_of(TYPE), coarse_size = 16 * size_of(COARSE);
        const uint8_t* p = data + first * size;
        const uint8_t* q = coarse.data + first / units_per_value * coarse_size;
        int64_t until = units_per_value - first % units_per_value;
        for (int64_t i = 0; i < count; until += units_per_value, q += coarse_size) {
            __builtin_prefetch(q + coarse_size * 2 * UNITS);
            v16 factor = load_as<COARSE>(q);
            int64_t end = std::min(count, until);
            for (int64_t j = i * size; j < end * size; j += 64)
                __builtin_prefetch(p + 2 * UNITS * size + j);
#pragma GCC unroll 4
            for (; i < end; i++) to[i] = load_as<TYPE>(p + i * size) * factor;
        }
    }
};

// Factors per unit (a cell, or half a cell) of a panel: y += scale * sum(code * x) + bias * sum(x).
struct Factors {
    v16 scale[UNITS], bias[UNITS];
};

// Sequential reader of one panel: its codes and the factors of its units.
struct Panel {
    const Weights* weights;
    const v16u* planes[3];
    Column scale, zero, offset, d, m;
    int64_t unit;  // the next one
    v16 superblock[UNITS];

    void begin(const Weights& w, int64_t panel) {
        weights = &w, unit = 0;
        for (int i = 0; i < 3 && w.codes[i]; i++)
            planes[i] = (const v16u*)w.codes[i] + panel * (w.k / CELL * w.widths[i]);
        scale.begin(w.scale, panel);
        if (w.zero.data) zero.begin(w.zero, panel);
        if (w.offset.data) offset.begin(w.offset, panel);
        if (w.d.data) d.begin(w.d, panel);
        if (w.m.data) m.begin(w.m, panel);
    }

    // Advance by `cells` cells of `units` units.
    void next(int64_t cells, int64_t units) {
        for (int i = 0; i < 3 && weights->codes[i]; i++) planes[i] += cells * weights->widths[i];
        unit += units;
    }

    // Compute the factors of the next units; `per_group` units share a group.
    void factors(int64_t units, int64_t per_group, bool has_bias, Factors& to) {
        read_scales(units, per_group, to.scale);
        if (has_bias) {
            bool has_zero = weights->zero.data || weights->zero_residual != 0;
            if (weights->zero.data) {
                zero.read(unit, units, per_group, to.bias);
                for (int i = 0; i < units; i++) to.bias[i] = -to.scale[i] * to.bias[i];
            } else if (has_zero) {
                for (int i = 0; i < units; i++) to.bias[i] = to.scale[i] * -weights->zero_residual;
            }
            if (weights->offset.data) {
                v16 offsets[UNITS];
                read_offsets(units, per_group, has_zero ? offsets : to.bias);
                if (has_zero)
                    for (int i = 0; i < units; i++) to.bias[i] += offsets[i];
            }
        }
        if (weights->table_unit != 1)
            for (int i = 0; i < units; i++) to.scale[i] *= weights->table_unit;
    }

    void read_scales(int64_t units, int64_t per_group, v16* to) {
        read_product(scale, d, weights->d, units, per_group, to);
    }

    void read_offsets(int64_t units, int64_t per_group, v16* to) {
        read_product(offset, m, weights->m, units, per_group, to);
    }

    void read_product(const Column& fine, const Column& coarse, const GroupValues& shared,
                      int64_t units, int64_t per_group, v16* to) {
        if (!shared.data) return fine.read(unit, units, per_group, to);
        int64_t per_superblock = per_group * weights->groups_per_superblock;
        // K-quants: each factor is made in one pass instead of three.
        if (per_group == 1 && coarse.type == F16 && fine.type == U8)
            return fine.read_scaled<U8, F16>(unit, units, per_superblock, coarse, to);
        if (per_group == 1 && coarse.type == F16 && fine.type == I8)
            return fine.read_scaled<I8, F16>(unit, units, per_superblock, coarse, to);
        fine.read(unit, units, per_group, to);
        coarse.read(unit, units, per_superblock, superblock);
        for (int i = 0; i < units; i++) to[i] *= superblock[i];
    }
};

enum { PREFETCH_DISTANCE = 64 };  // vectors of a plane

// Map codes below 16 to bytes of the table.
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

// Bits per plane, by bits of a code; the same as WIDTHS in planes.py.
constexpr int WIDTHS[9][3] = {{}, {1}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {8}};

// Unpack four consecutive codes of each row of a panel from the words of its planes.
template <int BITS, bool BYTES>
struct Codes {
    static constexpr int MAX = BYTES ? 255 : (1 << BITS) - 1;  // the largest code
    const v16u* planes[3];
    const uint8_t* bytes;

    // The hardware prefetcher alone reaches 3/4 of the memory bandwidth. always_inline because the
    // compiler treats a function that only prefetches as empty and removes the call; constexpr and
    // unroll because GCC 12 keeps loops over the table of widths at run time.
    template <int PLANE = 0>
    __attribute__((always_inline)) void prefetch(int64_t cell) const {
        if constexpr (PLANE < 3 && WIDTHS[BITS][PLANE] > 0) {
            constexpr int width = WIDTHS[BITS][PLANE];
#pragma GCC unroll 8
            for (int i = 0; i < width; i++)
                __builtin_prefetch(planes[PLANE] + cell * width + i + PREFETCH_DISTANCE);
            prefetch<PLANE + 1>(cell);
        }
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

// Call `run` with the `Codes` instantiation that matches the panel.
template <class Run>
static void with_codes(const Panel& panel, bool bytes, Run run) {
    const v16u* const* p = panel.planes;
    const uint8_t* b = panel.weights->code_bytes;
    switch (panel.weights->bits + (bytes ? 8 : 0)) {
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

// Unpack the codes of the next `cells` cells into the layout of 8-bit planes.
NOINLINE static void unpack_codes(const Panel& panel, bool bytes, int64_t cells, v16u* to) {
    with_codes(panel, bytes, [&](auto codes) {
        for (int64_t i = 0; i < cells; i++)
            for (int j = 0; j < 8; j++) to[8 * i + j] = codes.four(i, j);
    });
}
