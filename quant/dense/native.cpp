// Matrix products of bfloat16 rows with bfloat16 weights in panels.
//
// A panel is 64 rows of weights: [k / 2, 64, 2], so that a vector holds a pair of elements of 16
// rows. Weights are read once per call, in the order of memory. AVX512-BF16 multiplies pairs, other
// CPUs extend both elements to float32, as all do for x in float32 or float16.
//
// With AVX512-BF16 the parts of each sum are those of oneDNN 3.12, which multiplies if there is no
// C++ compiler: the bits, and so the answers of a model, do not depend on one.
#include "ostro.h"

#include <algorithm>
#include <vector>

enum { PANEL = 64 };

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

// VECTORS: those of a panel. MAX_ROWS: rows of x whose sums are in registers. PASS_ROWS: rows of x
// that are multiplied before the next ones.
enum { VECTORS = PANEL / 16, MAX_ROWS = 6, PASS_ROWS = 512 };

// A cache line of floats: vectors of it are aligned.
struct alignas(64) Line {
    float values[16];
};

// Memory of at least `count` floats; `lines` keep it for later calls.
static float* reserve(std::vector<Line>& lines, int64_t count) {
    if ((int64_t)lines.size() * 16 < count) lines.resize((count + 15) / 16);
    return lines[0].values;
}

// The elements of x are multiplied as they are, or as a copy in float32. Its rows have an odd
// number of cache lines: powers of two would map all rows to few sets of the caches.
template <class T>
static const float* operands(const T* x, int64_t& x_row, int64_t t, int64_t k) {
    static thread_local std::vector<Line> lines;
    int64_t wide = ((k + 15) / 16 | 1) * 16, from_row = x_row;
    float* to = reserve(lines, t * wide);
#pragma omp parallel for schedule(static) if (t * k > 1 << 16)
    for (int64_t r = 0; r < t; r++)
        for (int64_t i = 0; i < k; i += 16)
            store(to + r * wide + i, load(x + r * from_row + i, k - i));
    x_row = wide;
    return to;
}

// Pairs of k per part of a sum, for t rows of x.
static int64_t part(const float*, int64_t, int64_t) { return 256; }

// Vectors of a panel that are multiplied with R rows of x at a time, so that the sums fit the
// registers.
template <int R>
static constexpr int width(const float*) {
    return R == 1 ? 4 : R == 2 ? 2 : 1;
}

// acc [R, V] += the products of a pair of elements of each row of x with those of 16 V rows of
// weights.
template <int R, int V>
static inline void add_pairs(v16 (&acc)[R][V], const v16u* weights, const float* x, int64_t x_row) {
    // The first elements of all rows come before the second ones: fewer registers are in use.
    for (int v = 0; v < V; v++) {
        v16 first = as_floats(weights[v] << 16);
        for (int r = 0; r < R; r++) acc[r][v] += first * x[r * x_row];
        v16 second = as_floats(weights[v] & 0xffff0000u);
        for (int r = 0; r < R; r++) acc[r][v] += second * x[r * x_row + 1];
    }
}

#ifdef __AVX512BF16__

static const bf16* operands(const bf16* x, int64_t&, int64_t, int64_t) { return x; }

// The tile of x then fits the L1 cache, and the panel the L2 cache.
static int64_t part(const bf16*, int64_t t, int64_t k) { return t == 1 || k <= 1024 ? 256 : 512; }

template <int>
static constexpr int width(const bf16*) {
    return VECTORS;
}

template <int R, int V>
static inline void add_pairs(v16 (&acc)[R][V], const v16u* weights, const bf16* x, int64_t x_row) {
    for (int v = 0; v < V; v++)
        for (int r = 0; r < R; r++) {
            int32_t pair;
            memcpy(&pair, x + r * x_row, sizeof pair);
            acc[r][v] = (v16)_mm512_dpbf16_ps((__m512)acc[r][v], (__m512bh)weights[v],
                                              (__m512bh)_mm512_set1_epi32(pair));
        }
}

#endif

// Whether panels are prefetched: not measured on CPUs that multiply pairs.
template <class Operand>
static constexpr bool PREFETCHES = std::is_same<Operand, float>::value;

// sums [R, PANEL] += x [R, 2 pairs], rows x_row apart, times part of a panel.
template <int R, class Operand>
static void multiply(const Operand* x, int64_t x_row, const bf16* panel, int64_t pairs,
                     float* sums) {
    constexpr int V = width<R>((const Operand*)nullptr);
    for (int first = 0; first < VECTORS; first += V) {
        v16 acc[R][V] = {};
        for (int64_t i = 0; i < pairs; i++) {
            const v16u* weights = (const v16u*)panel + i * VECTORS;
            // The first of several passes skips vectors of each pair: CPUs do not prefetch them.
            if (first == 0 && PREFETCHES<Operand>)
                for (int v = 0; v < VECTORS; v++)
                    __builtin_prefetch(weights + (R == 1 ? 32 : 8) * VECTORS + v);
            add_pairs(acc, weights + first, x + 2 * i, x_row);
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < V; v++) {
                float* to = sums + r * PANEL + (first + v) * 16;
                store(to, load(to) + acc[r][v]);
            }
    }
}

// The same for any number of rows.
template <class Operand>
static void multiply_rows(const Operand* x, int64_t x_row, int64_t rows, const bf16* panel,
                          int64_t pairs, float* sums) {
    static constexpr decltype(&multiply<1, Operand>) BY_ROWS[] = {
        multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>};
    for (int64_t r = 0; r < rows; r += MAX_ROWS)
        BY_ROWS[std::min<int64_t>(MAX_ROWS, rows - r) - 1](x + r * x_row, x_row, panel, pairs,
                                                           sums + r * PANEL);
}

// y [t, n] = x [t, k], rows x_row apart, times panels of weights [n, k], in parts of `step` pairs.
template <class Operand, class T>
static void multiply_panels(const Operand* x, int64_t x_row, int64_t t, const bf16* panels,
                            int64_t n, int64_t k, int64_t step, T* y) {
    int64_t pairs = k / 2, count = (n + PANEL - 1) / PANEL;
#pragma omp parallel if (t * n * k > 1 << 16)
    {
        static thread_local std::vector<Line> lines;
        float* sums = reserve(lines, t * PANEL);
        // Other processes may interrupt a thread: the others take its panels.
#pragma omp for schedule(dynamic)
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

// The same for any number of rows; k is even.
template <class T>
static void matmul(const T* x, int64_t x_row, int64_t t, const bf16* panels, int64_t n, int64_t k,
                   T* y) {
    for (int64_t r = 0; r < t; r += PASS_ROWS) {
        int64_t rows = std::min<int64_t>(PASS_ROWS, t - r), row = x_row;
        auto operand = operands(x + r * x_row, row, rows, k);
        multiply_panels(operand, row, rows, panels, n, k, part(operand, t, k), y + r * n);
    }
}
EXPORT(matmul)
