// Matrix products of bfloat16 rows with bfloat16 weights in panels, for CPUs with AVX512-BF16.
//
// A panel is 64 rows of weights: [k / 2, 64, 2], so that one instruction multiplies a pair of
// elements of x with 16 rows of weights. Weights are read once per call, in the order of memory.
//
// The parts of each sum are those of oneDNN 3.12, which multiplies if there is no C++ compiler: the
// bits, and so the answers of a model, do not depend on one.
#include "ostro.h"

#include <algorithm>
#include <vector>

enum { PANEL = 64 };

#ifdef __AVX512BF16__

// Copy up to 16 rows of up to 16 words, `from_row` words apart, to 16 columns of up to 16 rows,
// `to_row` words apart. Columns of missing rows become zero.
static void transpose(const uint32_t* from, int64_t from_row, int64_t rows, int64_t words,
                      uint32_t* to, int64_t to_row) {
    if (rows == 16 && words == 16) {
        v16u columns[16];
        load_transposed((const uint8_t*)from, 4 * from_row, columns);
        for (int i = 0; i < 16; i++) memcpy(to + i * to_row, &columns[i], sizeof columns[i]);
        return;
    }
    for (int64_t i = 0; i < words; i++)
        for (int64_t r = 0; r < 16; r++) to[i * to_row + r] = r < rows ? from[r * from_row + i] : 0;
}

// panels [(n + 63) / 64, pairs, 64] = weights [n, pairs]; a word is a pair of elements.
extern "C" void pack(const uint32_t* weights, int64_t n, int64_t pairs, uint32_t* panels) {
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < (n + PANEL - 1) / PANEL * PANEL; first += 16)
        for (int64_t i = 0; i < pairs; i += 16)
            transpose(weights + first * pairs + i, pairs, std::clamp<int64_t>(n - first, 0, 16),
                      std::min<int64_t>(16, pairs - i),
                      panels + (first / PANEL * pairs + i) * PANEL + first % PANEL, PANEL);
}

// The inverse: weights [n, pairs] = panels.
extern "C" void unpack(const uint32_t* panels, int64_t n, int64_t pairs, uint32_t* weights) {
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < n; first += 16) {
        int64_t columns = std::min<int64_t>(16, n - first);
        for (int64_t i = 0; i < pairs; i += 16) {
            const uint32_t* from = panels + (first / PANEL * pairs + i) * PANEL + first % PANEL;
            uint32_t block[16][16];
            transpose(from, PANEL, std::min<int64_t>(16, pairs - i), 16, block[0], 16);
            for (int64_t c = 0; c < columns; c++)
                memcpy(weights + (first + c) * pairs + i, block[c],
                       4 * std::min<int64_t>(16, pairs - i));
        }
    }
}

// TILE_ROWS: rows of x whose sums with a panel are in registers. VECTORS: those of a panel's sums.
enum { TILE_ROWS = 6, VECTORS = PANEL / 16 };

// Pairs of k per part of a sum. The tile of x then fits the L1 cache, and the panel the L2 cache.
static int64_t part(int64_t t, int64_t k) { return t == 1 || k <= 1024 ? 256 : 512; }

// sums [R, PANEL] += x [R, 2 pairs], rows x_row apart, times part of a panel.
template <int R>
static void multiply(const bf16* x, int64_t x_row, const bf16* panel, int64_t pairs, float* sums) {
    __m512 acc[R][VECTORS];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) acc[r][v] = _mm512_setzero_ps();
    for (int64_t i = 0; i < pairs; i++, panel += 2 * PANEL) {
        __m512bh weights[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            weights[v] = (__m512bh)_mm512_load_si512(panel + v * 32);
        for (int r = 0; r < R; r++) {
            int32_t pair;
            memcpy(&pair, x + r * x_row + 2 * i, sizeof pair);
            __m512bh both = (__m512bh)_mm512_set1_epi32(pair);
            for (int v = 0; v < VECTORS; v++)
                acc[r][v] = _mm512_dpbf16_ps(acc[r][v], both, weights[v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < VECTORS; v++) {
            float* to = sums + r * PANEL + v * 16;
            _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), acc[r][v]));
        }
}

// The same for any number of rows.
static void multiply_rows(const bf16* x, int64_t x_row, int64_t rows, const bf16* panel,
                          int64_t pairs, float* sums) {
    static constexpr decltype(&multiply<1>) BY_ROWS[] = {multiply<1>, multiply<2>, multiply<3>,
                                                         multiply<4>, multiply<5>, multiply<6>};
    for (int64_t r = 0; r < rows; r += TILE_ROWS)
        BY_ROWS[std::min<int64_t>(TILE_ROWS, rows - r) - 1](x + r * x_row, x_row, panel, pairs,
                                                            sums + r * PANEL);
}

// y [t, n] = x [t, k], rows x_row apart, times panels of weights [n, k]; k is even.
extern "C" void matmul(const bf16* x, int64_t x_row, int64_t t, const bf16* panels, int64_t n,
                       int64_t k, bf16* y) {
    if (t == 0) return;
    int64_t pairs = k / 2, count = (n + PANEL - 1) / PANEL, step = part(t, k);
#pragma omp parallel if (t * n * k > 1 << 16)
    {
        struct alignas(64) Line {
            float values[16];
        };
        static thread_local std::vector<Line> lines;
        if ((int64_t)lines.size() < t * VECTORS) lines.resize(t * VECTORS);
        float* sums = lines[0].values;
#pragma omp for schedule(static)
        for (int64_t p = 0; p < count; p++) {
            std::fill(sums, sums + t * PANEL, 0.0f);
            for (int64_t i = 0; i < pairs; i += step)
                multiply_rows(x + 2 * i, x_row, t, panels + (p * pairs + i) * 2 * PANEL,
                              std::min(step, pairs - i), sums);
            for (int64_t r = 0; r < t; r++)
                for (int64_t c = p * PANEL; c < std::min(n, (p + 1) * PANEL); c += 16)
                    store(y + r * n + c, load(sums + r * PANEL + c % PANEL), n - c);
        }
    }
}

#endif
