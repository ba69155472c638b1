// What adapters add to rows. Rows of the same pages stand together, so that a page is read once for
// many of them: first h = A x by chunks of k, then y += B h by blocks of columns. The sums of a row
// have one order, whatever other rows there are.
#include "ostro.h"

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <vector>

enum { RANK = 16, CHUNK = 512, COLUMNS = 512, TOGETHER = 64 };

// What of x and A is multiplied at a time: a float, or two of bfloat16 where the CPU adds pairs.
template <class T>
struct Unit {
    typedef float Word;
};
#ifdef __AVX512BF16__
template <>
struct Unit<bf16> {
    typedef uint32_t Word;
};
#endif

static inline v16 add_product(v16 acc, v16u a, float x) { return acc + as_floats(a) * x; }

static inline v16 add_product(v16 acc, v16u a, uint32_t x) {
    return add_pairs(acc, a, v16u{} + x);
}

// Some of a row of x as words, zeros to a multiple of 16. Gives how many.
template <class T>
static int64_t take_row(const T* x, int64_t many, float* to) {
    int64_t i = 0;
    for (; i < many; i += 16) store(to + i, load(x + i, many - i));
    return i;
}

static inline int64_t take_row(const bf16* x, int64_t many, uint32_t* to) {
    int64_t words = (many + 31) / 32 * 16;
    memset(to + many / 2, 0, (words - many / 2) * sizeof *to);
    memcpy(to, x, many * sizeof *x);
    return words;
}

// The same columns of the 16 rows of A, `row` apart: a vector of each word.
template <class T>
static void take_page(const T* a, int64_t row, int64_t many, v16u* to, float*) {
    for (int64_t i = 0; i < many; i += 16) {
        float some[RANK][16];
        for (int r = 0; r < RANK; r++) store(some[r], load(a + r * row + i, many - i));
        load_transposed((const uint8_t*)some, sizeof some[0], to + i);
    }
}

static inline void take_page(const bf16* a, int64_t row, int64_t many, v16u* to, uint32_t*) {
    int64_t i = 0;
    for (; i + 32 <= many; i += 32) {
        for (int r = 0; r < RANK; r++) __builtin_prefetch(a + r * row + i + 128);
        load_transposed((const uint8_t*)(a + i), row * sizeof *a, to + i / 2);
    }
    if (i == many) return;
    uint32_t some[RANK][16];
    for (int r = 0; r < RANK; r++) take_row(a + r * row + i, many - i, some[r]);
    load_transposed((const uint8_t*)some, sizeof some[0], to + i / 2);
}

// h [16] of each of M rows, whose words lie CHUNK apart.
template <int M, class Word>
static void multiply(const Word* x, const v16u* a, int64_t words, float* const* h) {
    v16 acc[M][2] = {};
    for (int64_t i = 0; i < words; i += 2)
        for (int c = 0; c < 2; c++)
            for (int r = 0; r < M; r++)
                acc[r][c] = add_product(acc[r][c], a[i + c], x[r * CHUNK + i + c]);
    for (int r = 0; r < M; r++) store(h[r], acc[r][0] + acc[r][1]);
}

// Call each(M, r) for M rows from r on, eight of them or as many as are left.
template <class Each>
static void by_rows(int64_t many, Each each) {
    int64_t r = 0;
    for (; r + 8 <= many; r += 8) each(std::integral_constant<int, 8>(), r);
    switch (many - r) {
        case 7: return each(std::integral_constant<int, 7>(), r);
        case 6: return each(std::integral_constant<int, 6>(), r);
        case 5: return each(std::integral_constant<int, 5>(), r);
        case 4: return each(std::integral_constant<int, 4>(), r);
        case 3: return each(std::integral_constant<int, 3>(), r);
        case 2: return each(std::integral_constant<int, 2>(), r);
        case 1: return each(std::integral_constant<int, 1>(), r);
    }
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

    // Where slot j of a block lies, negative where it holds no page.
    int64_t page(const Block& block, int64_t j) const {
        int64_t page = pages[block.mixture * slots + j];
        return page < 0 ? -1 : page * experts + block.expert;
    }

    float* hidden(int64_t row, int64_t j, int64_t part, int64_t chunk) const {
        return h + (((row * slots + j) * parts + part) * chunks + chunk) * RANK;
    }

    // h of a block's rows for one chunk of k.
    void shrink(const Block& block, int64_t j, int64_t part, int64_t chunk) const {
        typedef typename Unit<T>::Word Word;
        alignas(64) v16u some[CHUNK];
        alignas(64) Word rows[8 * CHUNK];
        int64_t first = chunk * CHUNK, many = std::min<int64_t>(CHUNK, k - first), words = 0;
        take_page(a + (page(block, j) * parts + part) * RANK * k + first, k, many, some, (Word*)0);
        by_rows(block.many, [&](auto M, int64_t r) {
            float* to[M];
            for (int i = 0; i < M; i++) {
                int64_t row = block.rows[r + i];
                words = take_row(x + row * x_row + first, many, rows + i * CHUNK);
                to[i] = hidden(row, j, part, chunk);
            }
            multiply<M>(rows, some, words, to);
        });
    }

    // h of one row, summed over chunks and scaled, where its first chunk was.
    void gather(const Block& block, int64_t row, int64_t j) const {
        float scale = scales[block.mixture * slots + j];
        for (int64_t part = 0; part < parts; part++) {
            v16 total = load(hidden(row, j, part, 0));
            for (int64_t c = 1; c < chunks; c++) total += load(hidden(row, j, part, c));
            store(hidden(row, j, part, 0), total * scale);
        }
    }

    // y of M rows of a block, `left` columns of it, at most 32.
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
                __builtin_prefetch(from + 128);
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
        by_rows(block.many, [&](auto M, int64_t r) {
            int64_t column = columns.first;
            for (; column + 32 <= end; column += 32) add<M>(block, r, columns.part, column, 32);
            if (column < end) add<M>(block, r, columns.part, column, end - column);
        });
    }
};

// y [t, n] += B (A x) for the pages of each row; see native.py. `each` says that `mixture` has t
// numbers and not one.
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
