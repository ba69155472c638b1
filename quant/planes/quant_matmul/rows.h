// Rows of x, quantized to int8 or in float32, times a block of codes.
#pragma once

#include "weights.h"

#include <type_traits>

// Register tile: ROW_TILE rows of x by PANELS panels of weights, as many as the registers hold.
#ifdef __AVX512F__
enum { ROW_TILE = 6, PANELS = 2 };
#else
enum { ROW_TILE = 3, PANELS = 1 };
#endif

// A block of a row of x quantized to int8, x = d * q approximately. `bias` is the initial value of
// each unit's integer sum (it removes the zero point), `sum` the sum of the unit's values.
struct alignas(64) QuantizedRow {
    int8_t q[BLOCK];
    float d[CELLS];
    int32_t bias[UNITS];
    float sum[UNITS];
    static constexpr bool BYTES = true;
    static constexpr int MAX_ROWS = ROW_TILE;
};

template <class T>
static void prepare(const T* x, int64_t k, const Weights& w, QuantizedRow& to) {
    int halves = w.group == 16 ? 2 : 1;
    for (int64_t i = 0; i < k; i += CELL) {
        v16 part[2] = {load(x + i), load(x + i + 16)}, size[2];
        for (int h = 0; h < 2; h++) size[h] = as_floats(as_bits(part[h]) & 0x7fffffffu);
        // NaN if any element is NaN or Inf, so that the result is NaN instead of a wrong number.
        float nonfinite = sum(part[0] - part[0] + (part[1] - part[1]));
        float d = reduce_max(max(size[0], size[1])) / 127 + nonfinite;
        float sums[2];
        for (int h = 0; h < 2; h++) {
            v16 q = d > 0 ? part[h] / d + 12582912.0f : splat(12582912.0f);
            store_bytes(to.q + i + 16 * h, as_bits(q));
            sums[h] = sum(q - 12582912.0f);
        }
        if (halves == 1) sums[0] += sums[1];
        to.d[i / CELL] = d;
        for (int h = 0; h < halves; h++) {
            int64_t u = i / CELL * halves + h;
            to.bias[u] = d > 0 ? -w.zero_point * (int32_t)sums[h] : 0;
            to.sum[u] = sums[h] * d;
        }
    }
}

// Decoders of codes to float32: the code itself, a table of 16, a table of up to 256, or e4m3.
struct Identity {
    // OR-ed below the bits of 2^23, a code adds itself; cheaper than an integer conversion.
    static v16 decode(v16u codes, const float*) {
        return as_floats(codes | 0x4b000000u) - 8388608.0f;
    }
};

struct SmallTable {
    static v16 decode(v16u codes, const float* values) {
#ifdef __AVX512F__
        return (v16)_mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(values));
#else
        v16 found;
        for (int i = 0; i < 16; i++) found[i] = values[codes[i]];
        return found;
#endif
    }
};

struct LargeTable {
    static v16 decode(v16u codes, const float* values) {
#ifdef __AVX512F__
        return (v16)_mm512_i32gather_ps((__m512i)codes, values, 4);
#else
        return SmallTable::decode(codes, values);
#endif
    }
};

struct E4m3 {
    static v16 decode(v16u codes, const float*) { return from_e4m3(codes); }
};

// A block of a row of x in float32, and the sum of each unit.
template <class Values>
struct alignas(64) FloatRow {
    float x[BLOCK], sum[UNITS];
    const float* values;
    static constexpr bool BYTES = false;
    static constexpr int MAX_ROWS = ROW_TILE * 2 / 3;
};

template <class T, class Values>
static void prepare(const T* x, int64_t k, const Weights& w, FloatRow<Values>& to) {
    to.values = w.code_values;
    for (int64_t i = 0; i < k; i += 16) store(to.x + i, load(x + i));
    for (int64_t i = 0; i < k; i += CELL) {
        v16 low = load(to.x + i), high = load(to.x + i + 16);
        if (w.group == 16) {
            to.sum[i / 16] = sum(low);
            to.sum[i / 16 + 1] = sum(high);
        } else {
            to.sum[i / CELL] = sum(low + high);
        }
    }
}

// Load four bytes of x.
static inline uint32_t load_four(const int8_t* x) {
    uint32_t four;
    memcpy(&four, x, sizeof four);
    return four;
}

// dots [R, C] += the integer products of a unit: words [first, first + UNIT / 4) of a cell of codes
// with R rows of x, `row` bytes apart.
template <int R, int C, int UNIT, class Codes>
static inline void add_dots(const Codes* codes, int64_t cell, int first, const int8_t* x,
                            int64_t row, v16i (&dots)[R][C]) {
    using Sums = DotSums<Codes::MAX>;
    constexpr int STEP = std::min(UNIT / 4, Sums::WORDS);
    // Without unrolling, the sums are in memory instead of registers.
#pragma GCC unroll 8
    for (int i = 0; i < UNIT / 4; i += STEP) {
        Sums sums[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) sums[r][c].begin(dots[r][c]);
#pragma GCC unroll 8
        for (int j = i; j < i + STEP; j++) {
            v16u w[C];
            for (int c = 0; c < C; c++) w[c] = codes[c].four(cell, first + j);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++)
                for (int c = 0; c < C; c++) sums[r][c].add(w[c], load_four(x + r * row + 4 * j));
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) dots[r][c] = sums[r][c].total();
    }
}

// acc [R, 16 C] += R quantized rows of x times C panels of a block; a unit is UNIT weights.
template <int R, int C, int UNIT, class Codes>
static void multiply(const Codes* codes, const Factors* factors, const QuantizedRow* x,
                     int64_t units, bool has_bias, float* acc) {
    v16 sums[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = load(acc + (r * C + c) * 16);
    for (int64_t u = 0; u < units; u++) {
        v16i dots[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) dots[r][c] = v16i{} + x[r].bias[u];
        int64_t cell = u * UNIT / CELL;
        if (C == 1) codes[0].prefetch(cell);
        const int8_t* q = x[0].q + u * UNIT;
        if (UNIT != CELL && u % 2)  // half of the cell
            add_dots<R, C, UNIT>(codes, cell, UNIT / 4, q, sizeof x[0], dots);
        else
            add_dots<R, C, UNIT>(codes, cell, 0, q, sizeof x[0], dots);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                v16 scale = factors[c].scale[u] * x[r].d[cell];
                sums[r][c] += to_floats(dots[r][c]) * scale;
                if (has_bias) sums[r][c] += factors[c].bias[u] * x[r].sum[u];
            }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(acc + (r * C + c) * 16, sums[r][c]);
}

// The same for rows of x in float32.
template <int R, int C, int UNIT, class Codes, class Values>
static void multiply(const Codes* codes, const Factors* factors, const FloatRow<Values>* x,
                     int64_t units, bool has_bias, float* acc) {
    v16 sums[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = load(acc + (r * C + c) * 16);
    for (int64_t u = 0; u < units; u++) {
        v16 parts[R][C][2] = {};
        for (int i = 0; i < UNIT / 4; i++) {
            v16u four[C];
            for (int c = 0; c < C; c++) four[c] = codes[c].planes[0][u * UNIT / 4 + i];
            for (int j = 0; j < 4; j++)
                for (int c = 0; c < C; c++) {
                    v16 value = Values::decode((four[c] >> (8 * j)) & 255u, x->values);
                    for (int r = 0; r < R; r++)
                        parts[r][c][j % 2] += value * x[r].x[u * UNIT + 4 * i + j];
                }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                sums[r][c] += (parts[r][c][0] + parts[r][c][1]) * factors[c].scale[u];
                if (has_bias) sums[r][c] += factors[c].bias[u] * x[r].sum[u];
            }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(acc + (r * C + c) * 16, sums[r][c]);
}

// The same for any number of adjacent rows, in tiles of MAX_ROWS, 2 and 1.
template <int MAX_ROWS, int C, int UNIT, class Codes, class X>
static void multiply_rows(const Codes* codes, const Factors* factors, const X* x, int64_t rows,
                          int64_t units, bool has_bias, float* acc) {
    int64_t r = 0;
    auto run = [&](auto count) {
        constexpr int R = decltype(count)::value;
        for (; r + R <= rows; r += R)
            multiply<R, C, UNIT>(codes, factors, x + r, units, has_bias, acc + r * 16 * C);
    };
    run(std::integral_constant<int, MAX_ROWS>());
    run(std::integral_constant<int, 2>());
    run(std::integral_constant<int, 1>());
}
