// Grouped matmul for few rows per expert: each weight is read once for all rows of its expert.
#include "ostro.h"

#include <algorithm>
#include <vector>

enum { WEIGHTS = 4, ROWS = 4, TILE = 32 };

// Elements of a row per register: 16 floats, or 32 bfloat16 as pairs.
template <class T>
constexpr int64_t STEP = 16;
template <>
constexpr int64_t STEP<bf16> = 32;

// Load STEP elements of a row, zeros past its end.
template <class T>
static inline v16 take(const T* p, int64_t left) { return load(p, left); }

static inline v16u take(const bf16* p, int64_t left) {
    v16u pairs = {};
    memcpy(&pairs, p, std::min<int64_t>(left, 32) * sizeof(bf16));
    return pairs;
}

static inline v16 add_products(v16 acc, v16 a, v16 b) { return acc + a * b; }

static inline v16 add_products(v16 acc, v16u a, v16u b) { return dot2_add(acc, a, b); }

// y [M, N] (rows n apart) = x [M, k] times w [N, k]. The order of sums does not depend on M and N,
// so that a row's bits depend on no other row.
template <class T, int M, int N>
static void multiply(const T* x, const T* w, int64_t n, int64_t k, T* y) {
    v16 acc[M][N] = {};
    auto add = [&](int64_t i, int64_t left) {
        decltype(take(w, left)) b[N];
        for (int c = 0; c < N; c++) b[c] = take(w + c * k + i, left);
        for (int r = 0; r < M; r++) {
            auto a = take(x + r * k + i, left);
            for (int c = 0; c < N; c++) acc[r][c] = add_products(acc[r][c], a, b[c]);
        }
    };
    constexpr int64_t step = STEP<T>;
    int64_t i = 0;
    for (; i + step <= k; i += step) add(i, step);
    if (i < k) add(i, k - i);
    for (int r = 0; r < M; r++)
        for (int c = 0; c < N; c++) store(y + r * n + c, splat(sum(acc[r][c])), 1);
}

template <class T, int N>
static void multiply_rows(const T* x, int64_t rows, const T* w, int64_t n, int64_t k, T* y) {
    int64_t r = 0;
    for (; r + ROWS <= rows; r += ROWS) multiply<T, ROWS, N>(x + r * k, w, n, k, y + r * n);
    for (; r < rows; r++) multiply<T, 1, N>(x + r * k, w, n, k, y + r * n);
}

// y [rows, n] = x [rows, k] times weight [experts, n, k], rows sorted by expert.
template <class T>
void grouped(const T* x, const T* weight, const int64_t* expert_of_row, int64_t rows, int64_t n,
             int64_t k, T* y) {
    std::vector<int64_t> starts;
    for (int64_t row = 0; row < rows; row++)
        if (row == 0 || expert_of_row[row] != expert_of_row[row - 1]) starts.push_back(row);
    int64_t runs = starts.size(), tiles = (n + TILE - 1) / TILE;
    starts.push_back(rows);
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int64_t run = 0; run < runs; run++)
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t first = starts[run], many = starts[run + 1] - first;
            const T* w = weight + expert_of_row[first] * n * k;
            const T* from = x + first * k;
            T* to = y + first * n;
            int64_t c = tile * TILE, end = std::min<int64_t>(n, c + TILE);
            for (; c + WEIGHTS <= end; c += WEIGHTS)
                multiply_rows<T, WEIGHTS>(from, many, w + c * k, n, k, to + c);
            for (; c < end; c++) multiply_rows<T, 1>(from, many, w + c * k, n, k, to + c);
        }
}
EXPORT(grouped)
