// A block of rows of x, as integers or as floats, times the codes of one.
#pragma once

#include "weights.h"

#include <type_traits>

// Rows of x that share what is loaded of weights, and how many sixteens of these do: what registers
// hold.
#ifdef __AVX512F__
enum { TOGETHER = 6, SIXTEENS = 2 };
#else
enum { TOGETHER = 3, SIXTEENS = 1 };
#endif

// A block of a row of x as integers: x is about d q; of each unit the number that its sums of
// products start from, and the sum of what it holds.
struct alignas(64) Rounded {
    int8_t q[BLOCK];
    float d[CELLS];
    int32_t start[UNITS];
    float sum[UNITS];
    static constexpr bool BYTES = true;
    static constexpr int MOST = TOGETHER;
};

template <class T>
static void prepare(const T* x, int64_t k, const Weights& w, Rounded& to) {
    int halves = w.group == 16 ? 2 : 1;
    for (int64_t i = 0; i < k; i += CELL) {
        v16 part[2] = {load(x + i), load(x + i + 16)}, size[2];
        for (int h = 0; h < 2; h++) size[h] = as_floats(as_bits(part[h]) & 0x7fffffffu);
        // What is no finite number shows in all that it meets.
        float fault = sum(part[0] - part[0] + (part[1] - part[1]));
        float d = largest(larger(size[0], size[1])) / 127 + fault;
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
            to.start[u] = d > 0 ? -w.start * (int32_t)sums[h] : 0;
            to.sum[u] = sums[h] * d;
        }
    }
}

// What codes stand for in float32: themselves, few numbers, many, or floats of eight bits.
struct Themselves {
    static v16 of(v16u codes, const float*) { return as_floats(codes | 0x4b000000u) - 8388608.0f; }
};

struct Few {
    static v16 of(v16u codes, const float* values) {
#ifdef __AVX512F__
        return (v16)_mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(values));
#else
        v16 found;
        for (int i = 0; i < 16; i++) found[i] = values[codes[i]];
        return found;
#endif
    }
};

struct Many {
    static v16 of(v16u codes, const float* values) {
#ifdef __AVX512F__
        return (v16)_mm512_i32gather_ps((__m512i)codes, values, 4);
#else
        return Few::of(codes, values);
#endif
    }
};

struct Bytes {
    static v16 of(v16u codes, const float*) { return from_e4m3(codes); }
};

// A block of a row of x as it is, and the sum of each unit.
template <class Values>
struct alignas(64) Floats {
    float x[BLOCK], sum[UNITS];
    const float* values;
    static constexpr bool BYTES = false;
    static constexpr int MOST = TOGETHER * 2 / 3;
};

template <class T, class Values>
static void prepare(const T* x, int64_t k, const Weights& w, Floats<Values>& to) {
    to.values = w.values;
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

// acc [R, 16 C] += rows of x times C sixteens of a block; a unit is UNIT weights of a row.
template <int R, int C, int UNIT, class Codes>
static void multiply(const Codes* codes, const Factors* factors, const Rounded* x, int64_t units,
                     bool plus, float* acc) {
    v16 sums[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = load(acc + (r * C + c) * 16);
    for (int64_t u = 0; u < units; u++) {
        v16i dots[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) dots[r][c] = v16i{} + x[r].start[u];
        int64_t cell = u * UNIT / CELL;
        if (C == 1) codes[0].expect(cell);
        for (int i = 0; i < UNIT / 4; i++) {
            bool second = UNIT != CELL && u % 2;  // half of the cell
            v16u w[C];
            for (int c = 0; c < C; c++)
                w[c] = second ? codes[c].four(cell, i + 4) : codes[c].four(cell, i);
            for (int r = 0; r < R; r++) {
                uint32_t four;
                memcpy(&four, x[r].q + u * UNIT + 4 * i, 4);
                for (int c = 0; c < C; c++) dots[r][c] = add_fours(dots[r][c], w[c], four);
            }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                v16 times = factors[c].times[u] * x[r].d[cell];
                sums[r][c] += to_floats(dots[r][c]) * times;
                if (plus) sums[r][c] += factors[c].plus[u] * x[r].sum[u];
            }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(acc + (r * C + c) * 16, sums[r][c]);
}

// The same in float32.
template <int R, int C, int UNIT, class Codes, class Values>
static void multiply(const Codes* codes, const Factors* factors, const Floats<Values>* x,
                     int64_t units, bool plus, float* acc) {
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
                    v16 value = Values::of((four[c] >> (8 * j)) & 255u, x->values);
                    for (int r = 0; r < R; r++)
                        parts[r][c][j % 2] += value * x[r].x[u * UNIT + 4 * i + j];
                }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                sums[r][c] += (parts[r][c][0] + parts[r][c][1]) * factors[c].times[u];
                if (plus) sums[r][c] += factors[c].plus[u] * x[r].sum[u];
            }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(acc + (r * C + c) * 16, sums[r][c]);
}

// The same for any number of rows, which lie one after the other: MOST of them together, or fewer.
template <int MOST, int C, int UNIT, class Codes, class X>
static void multiply_rows(const Codes* codes, const Factors* factors, const X* x, int64_t rows,
                          int64_t units, bool plus, float* acc) {
    int64_t r = 0;
    auto some = [&](auto many) {
        constexpr int R = decltype(many)::value;
        for (; r + R <= rows; r += R)
            multiply<R, C, UNIT>(codes, factors, x + r, units, plus, acc + r * 16 * C);
    };
    some(std::integral_constant<int, MOST>());
    some(std::integral_constant<int, 2>());
    some(std::integral_constant<int, 1>());
}
