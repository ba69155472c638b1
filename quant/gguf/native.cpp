// Weights in planes: times rows of x, or as floats again. A format is a struct with an `unpack`.
#include "ostro.h"

#include <algorithm>

#ifdef __AVX2__
#include <immintrin.h>
#endif

// A group is what `unpack` gives; ROWS of x by COLUMNS rows of weights share what they load.
enum { GROUP = 32, ROWS = 4, COLUMNS = 4, TILE = 16 };

// 16 integers as floats: one instruction that compilers do not find.
static inline v16 load(const int8_t* p) {
#if defined(__AVX512F__)
    return (v16)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    __m256 halves[2];
    for (int i = 0; i < 2; i++) {
        __m128i bytes = _mm_loadl_epi64((const __m128i*)(p + 8 * i));
        halves[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
    v16 x;
    memcpy(&x, halves, sizeof x);
    return x;
#else
    float some[16];
    for (int i = 0; i < 16; i++) some[i] = p[i];
    return load(some);
#endif
}

// Q8_0: q [n, groups, 32] and d [n, groups]; w = d q.
struct Int8 {
    const int8_t* q;
    const f16* d;

    void unpack(int64_t group, v16& low, v16& high) const {
        float scale = d[group];
        low = load(q + group * GROUP) * scale;
        high = load(q + group * GROUP + 16) * scale;
    }
};

// y [R, TILE] = x [R, k] times the rows of weights whose first groups are `at` [COLUMNS]. A sum
// is taken in the same order whatever R.
template <int R, class Planes>
static void multiply(const float* x, const Planes& planes, const int64_t* at, int64_t groups,
                     float* y) {
    v16 acc[R][COLUMNS] = {};
    for (int64_t g = 0; g < groups; g++) {
        v16 low[COLUMNS], high[COLUMNS];
        for (int c = 0; c < COLUMNS; c++) planes.unpack(at[c] + g, low[c], high[c]);
        for (int r = 0; r < R; r++) {
            const float* from = x + (r * groups + g) * GROUP;
            v16 a = load(from), b = load(from + 16);
            for (int c = 0; c < COLUMNS; c++) {
                acc[r][c] += a * low[c];
                acc[r][c] += b * high[c];
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < COLUMNS; c++) y[r * TILE + c] = sum(acc[r][c]);
}

// x [t, k] float32 times weights [n, k] -> y [t, n]. Rows of x beyond ROWS find the weights in
// the cache.
template <class T, class Planes>
static void multiply_all(const float* x, int64_t t, const Planes& planes, int64_t n, int64_t groups,
                         T* y) {
    auto one = multiply<1, Planes>, two = multiply<2, Planes>;
    auto three = multiply<3, Planes>, four = multiply<4, Planes>;
    decltype(one) by_rows[] = {one, two, three, four};
#pragma omp parallel for schedule(static) if (t * n * groups > 2048)
    for (int64_t i = 0; i < n; i += TILE)
        for (int64_t row = 0; row < t; row += ROWS) {
            int64_t rows = std::min<int64_t>(ROWS, t - row);
            float some[ROWS * TILE];
            for (int64_t j = 0; j < TILE && i + j < n; j += COLUMNS) {
                int64_t at[COLUMNS];  // past the end, the last one again
                for (int c = 0; c < COLUMNS; c++) at[c] = std::min(i + j + c, n - 1) * groups;
                by_rows[rows - 1](x + row * groups * GROUP, planes, at, groups, some + j);
            }
            for (int64_t r = 0; r < rows; r++)
                store(y + (row + r) * n + i, load(some + r * TILE), n - i);
        }
}

// The weights of `groups` groups, end to end.
template <class T, class Planes>
static void unpack_all(const Planes& planes, int64_t groups, T* w) {
#pragma omp parallel for schedule(static) if (groups > 2048)
    for (int64_t g = 0; g < groups; g++) {
        v16 low, high;
        planes.unpack(g, low, high);
        store(w + g * GROUP, low);
        store(w + g * GROUP + 16, high);
    }
}

template <class T>
void q8_0_product(const float* x, int64_t t, const int8_t* q, const f16* d, int64_t n,
                  int64_t groups, T* y) {
    multiply_all(x, t, Int8{q, d}, n, groups, y);
}
EXPORT(q8_0_product)

template <class T>
void q8_0_dequantize(const int8_t* q, const f16* d, int64_t groups, T* w) {
    unpack_all(Int8{q, d}, groups, w);
}
EXPORT(q8_0_dequantize)
