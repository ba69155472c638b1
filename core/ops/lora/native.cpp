// LoRA on CPU. Rows are grouped by their pages, so that a page is read once for many rows: first
// h = A x by chunks of k (shrink), then y += B h by blocks of columns (expand). The order of the
// sums of a row does not depend on other rows.
#include "ostro.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

enum { RANK = 16, CHUNK = 1024, COLUMNS = 512, TOGETHER = 64 };
// Elements by which weights are prefetched ahead of their use.
enum { AHEAD = 128 };

// Elements per product of x and a row of A: 16, or 32 (16 pairs) if the CPU has bfloat16 products.
template <class T>
struct Unit {
    enum { SIZE = 16 };
};

template <class T>
static inline v16 add_products(v16 acc, const T* a, const T* x) {
    return acc + load(a) * load(x);
}

#ifdef __AVX512BF16__
template <>
struct Unit<bf16> {
    enum { SIZE = 32 };
};

static inline v16 add_products(v16 acc, const bf16* a, const bf16* x) {
    v16u ours, theirs;
    memcpy(&ours, a, sizeof ours);
    memcpy(&theirs, x, sizeof theirs);
    return dot2_add(acc, ours, theirs);
}
#endif

// Sixteen partial sums of each product of M rows of x and the 16 rows of A, which are `row` apart.
template <int M, class T>
static void multiply(const T* const* x, const T* a, int64_t row, int64_t many,
                     float (*to)[RANK][16]) {
    enum { SIZE = Unit<T>::SIZE };
    int64_t whole = many / SIZE * SIZE, left = many - whole;
    for (int r = 0; r < RANK; r += 4, a += 4 * row) {
        v16 acc[M][4] = {};
        for (int64_t i = 0; i < whole; i += SIZE)
            for (int c = 0; c < 4; c++) {
                __builtin_prefetch(a + c * row + i + AHEAD);
                for (int m = 0; m < M; m++)
                    acc[m][c] = add_products(acc[m][c], a + c * row + i, x[m] + i);
            }
        for (int c = 0; c < 4 && left; c++)
            for (int m = 0; m < M; m++) {
                T ours[SIZE] = {}, theirs[SIZE] = {};
                memcpy(ours, a + c * row + whole, left * sizeof(T));
                memcpy(theirs, x[m] + whole, left * sizeof(T));
                acc[m][c] = add_products(acc[m][c], ours, theirs);
            }
        for (int m = 0; m < M; m++)
            for (int c = 0; c < 4; c++) store(to[m][r + c], acc[m][c]);
    }
}

// The sums of 16 vectors.
static v16 sums(const float (*from)[16]) {
    v16u words[16];
    load_transposed((const uint8_t*)from, sizeof *from, words);
    for (int n = 8; n; n /= 2)
        for (int i = 0; i < n; i++)
            words[i] = as_bits(as_floats(words[i]) + as_floats(words[i + n]));
    return as_floats(words[0]);
}

// Call each(M, r) for M rows from r on, MOST of them or as many as are left.
template <int MOST, class Each>
static void by_rows(int64_t many, Each each) {
    int64_t r = 0;
    for (; r + MOST <= many; r += MOST) each(std::integral_constant<int, MOST>(), r);
    if constexpr (MOST > 1)
        if (r < many) by_rows<MOST - 1>(many - r, [&](auto M, int64_t i) { each(M, r + i); });
}

// Rows of one mixture and expert, at most TOGETHER.
struct Block {
    const int64_t* rows;
    int64_t many, mixture, expert;
};

struct Columns {
    int64_t part, first, many;
};

template <class T>
struct Call {
    const T* x;
    int64_t x_row;
    T* y;
    int64_t y_row;
    const T *a, *b;
    int64_t parts, n, k, slots, experts, chunks;
    const int32_t* pages;
    const float* scales;
    float* h;

    // The index of the page in slot j of a block; negative if the slot is empty.
    int64_t page(const Block& block, int64_t j) const {
        int64_t page = pages[block.mixture * slots + j];
        return page < 0 ? -1 : page * experts + block.expert;
    }

    float* hidden(int64_t row, int64_t j, int64_t part, int64_t chunk) const {
        return h + (((row * slots + j) * parts + part) * chunks + chunk) * RANK;
    }

    // Compute h of a block's rows for one chunk of k.
    void shrink(const Block& block, int64_t j, int64_t part, int64_t chunk) const {
        alignas(64) float partial[4][RANK][16];
        int64_t first = chunk * CHUNK, many = std::min<int64_t>(CHUNK, k - first);
        const T* from = a + (page(block, j) * parts + part) * RANK * k + first;
        by_rows<4>(block.many, [&](auto M, int64_t r) {
            const T* rows[M];
            for (int i = 0; i < M; i++) rows[i] = x + block.rows[r + i] * x_row + first;
            multiply<M>(rows, from, k, many, partial);
            for (int i = 0; i < M; i++)
                store(hidden(block.rows[r + i], j, part, chunk), sums(partial[i]));
        });
    }

    // Sum h of one row over chunks and scale it, in place of its first chunk.
    void gather(const Block& block, int64_t row, int64_t j) const {
        float scale = scales[block.mixture * slots + j];
        for (int64_t part = 0; part < parts; part++) {
            v16 total = load(hidden(row, j, part, 0));
            for (int64_t c = 1; c < chunks; c++) total += load(hidden(row, j, part, c));
            store(hidden(row, j, part, 0), total * scale);
        }
    }

    // Add to y of M rows of a block, `left` columns of it, at most 32.
    template <int M>
    inline __attribute__((always_inline)) void add(const Block& block, int64_t r, int64_t part,
                                                   int64_t column, int64_t left) const {
        v16 acc[M][2] = {};
        for (int64_t j = 0; j < slots; j++) {
            int64_t at = page(block, j);
            if (at < 0) continue;
            const T* from = b + at * RANK * n + column;
            alignas(64) float factors[M][RANK];
            for (int i = 0; i < M; i++)
                store(factors[i], load(hidden(block.rows[r + i], j, part, 0)));
            for (int c = 0; c < RANK; c++, from += n) {
                __builtin_prefetch(from + AHEAD);
                v16 low = load(from, left), high = left > 16 ? load(from + 16, left - 16) : v16{};
                for (int i = 0; i < M; i++) {
                    acc[i][0] += low * factors[i][c];
                    acc[i][1] += high * factors[i][c];
                }
            }
        }
        for (int i = 0; i < M; i++) {
            T* to = y + block.rows[r + i] * y_row + column;
            store(to, load(to, left) + acc[i][0], left);
            if (left > 16) store(to + 16, load(to + 16, left - 16) + acc[i][1], left - 16);
        }
    }

    void expand(const Block& block, const Columns& columns) const {
        int64_t end = columns.first + columns.many;
        by_rows<8>(block.many, [&](auto M, int64_t r) {
            int64_t column = columns.first;
            for (; column + 32 <= end; column += 32) add<M>(block, r, columns.part, column, 32);
            if (column < end) add<M>(block, r, columns.part, column, end - column);
        });
    }
};

// y [t, n] += B (A x) for the pages of each row; see native.py. `mixture` has t numbers if `each`,
// else one.
template <class T>
void lora(const T* x, int64_t x_row, T* y, int64_t y_row, const T* a, const T* b,
          const int64_t* widths, int64_t parts, const int32_t* pages, const float* scales,
          int64_t slots, const int32_t* mixture, int64_t each, const int64_t* expert,
          int64_t experts, int64_t t, int64_t k, float* h) {
    int64_t n = std::accumulate(widths, widths + parts, (int64_t)0);
    int64_t chunks = (k + CHUNK - 1) / CHUNK;
    Call<T> call = {x, x_row, y,      y_row,   a,      b,     parts,  n,
                    k, slots, experts, chunks, pages, scales, h};
    auto of_row = [&](int64_t row) {
        int64_t mine = mixture[each ? row : 0];
        return std::pair<int64_t, int64_t>(mine, expert ? expert[row] : 0);
    };
    std::vector<int64_t> order(t);
    std::iota(order.begin(), order.end(), 0);
    if (each || expert)
        std::stable_sort(order.begin(), order.end(),
                         [&](int64_t i, int64_t j) { return of_row(i) < of_row(j); });
    std::vector<Block> blocks;
    std::vector<std::pair<Block, int64_t>> used;
    for (int64_t i = 0, many; i < t; i += many) {
        auto [mine, which] = of_row(order[i]);
        for (many = 1; many < TOGETHER && i + many < t; many++)
            if (of_row(order[i + many]) != of_row(order[i])) break;
        Block block = {&order[i], many, mine, which};
        size_t before = used.size();
        for (int64_t j = 0; j < slots; j++)
            if (call.page(block, j) >= 0) used.push_back({block, j});
        if (used.size() > before) blocks.push_back(block);
    }
    std::vector<Columns> columns;
    for (int64_t part = 0, first = 0; part < parts; first += widths[part++])
        for (int64_t c = 0; c < widths[part]; c += COLUMNS)
            columns.push_back({part, first + c, std::min<int64_t>(COLUMNS, widths[part] - c)});

    int64_t uses = used.size(), some = blocks.size(), pieces = parts * chunks;
#pragma omp parallel if (uses * RANK * (pieces * CHUNK + n) > 65536)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < uses * pieces; i++) {
            auto [block, j] = used[i / pieces];
            call.shrink(block, j, i % pieces / chunks, i % chunks);
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < uses; i++) {
            auto [block, j] = used[i];
            for (int64_t r = 0; r < block.many; r++) call.gather(block, block.rows[r], j);
        }
#pragma omp for collapse(2) schedule(static)
        for (int64_t i = 0; i < some; i++)
            for (size_t c = 0; c < columns.size(); c++) call.expand(blocks[i], columns[c]);
    }
}
EXPORT(lora)
