#include "ostro.h"

#include <algorithm>
#include <vector>

enum { ROWS = 64, TILE = 8 };

// log(1 + e^x)
static inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

template <class T>
static inline void widen(const T* from, int64_t n, float* to) {
    for (int64_t i = 0; i < n; i += 16) store(to + i, load(from + i, n - i), n - i);
}

// What one thread keeps of a chunk of rows: b and c as floats, steps and decays.
struct Chunk {
    std::vector<float> taken, given;
    float step[ROWS], decay[ROWS];

    explicit Chunk(int64_t n) : taken(ROWS * n), given(ROWS * n) {}
};

// All rows of a chunk on COUNT rows of a state [COUNT, n]: x and y `x_row` and `y_row` apart.
template <class T, int COUNT>
static void advance(const Chunk& chunk, int64_t rows, int64_t n, float* state, float skip, const T* x,
                    int64_t x_row, T* y, int64_t y_row) {
    for (int64_t t = 0; t < rows; t++) {
        const float* taken = &chunk.taken[t * n];
        const float* given = &chunk.given[t * n];
        float decay = chunk.decay[t], value[COUNT];
        v16 sums[COUNT] = {};
        for (int i = 0; i < COUNT; i++) value[i] = load_one(x + t * x_row + i);
        for (int64_t j = 0; j < n; j += 16) {
            int64_t left = n - j;
            v16 in = chunk.step[t] * load(taken + j, left), out = load(given + j, left);
            for (int i = 0; i < COUNT; i++) {
                v16 next = decay * load(state + i * n + j, left) + value[i] * in;
                store(state + i * n + j, next, left);
                sums[i] += next * out;
            }
        }
        for (int i = 0; i < COUNT; i++)
            store(y + t * y_row + i, splat(sum(sums[i]) + skip * value[i]), 1);
    }
}

// x [rows, heads, p], dt [rows, heads], b and c [rows, groups, n], each `_row` apart, to y
// (contiguous); states [blocks, heads, p, n]. Threads share the heads of the sequences; a head's
// state is updated where it will stay, some of its rows by a whole chunk before the next ones, so
// that these stay in the nearest cache. A chunk ends at the first row whose state is saved.
template <class T>
void scan(const T* x, const T* dt, const T* b, const T* c, int64_t x_row, int64_t dt_row,
          int64_t b_row, int64_t c_row, int64_t heads, int64_t groups, int64_t p, int64_t n,
          const float* a, const float* d, const float* dt_bias, float least, float most,
          float* state, int64_t sequences, const int64_t* starts, const int64_t* before,
          const int64_t* saved, T* y) {
#pragma omp parallel if (starts[sequences] * heads * p * n > 32768)
    {
        Chunk chunk(n);
#pragma omp for collapse(2) schedule(static)
        for (int64_t s = 0; s < sequences; s++)
            for (int64_t head = 0; head < heads; head++) {
                int64_t group = head / (heads / groups), size = p * n, rows;
                const float* old = before[s] < 0 ? nullptr : state + (before[s] * heads + head) * size;
                bool idle = is_idle(starts, saved, s);
                for (int64_t t = starts[s]; t < starts[s + 1] && idle; t++)
                    memset(y + (t * heads + head) * p, 0, p * sizeof(T));
                for (int64_t first = starts[s]; first < starts[s + 1] && !idle; first += rows) {
                    int64_t last = next_saved(saved, first);
                    rows = std::min<int64_t>(ROWS, last + 1 - first);
                    float* now = state + (saved[last] * heads + head) * size;
                    if (!old) std::fill(now, now + size, 0.0f);
                    else if (old != now) std::copy(old, old + size, now);
                    old = now;
                    const T* from = x + first * x_row + head * p;
                    T* to = y + (first * heads + head) * p;
                    for (int64_t r = 0; r < rows; r++) {
                        int64_t t = first + r;
                        widen(b + t * b_row + group * n, n, &chunk.taken[r * n]);
                        widen(c + t * c_row + group * n, n, &chunk.given[r * n]);
                        float step = softplus(load_one(dt + t * dt_row + head) + dt_bias[head]);
                        chunk.step[r] = std::min(std::max(step, least), most);
                        chunk.decay[r] = std::exp(chunk.step[r] * a[head]);
                    }
                    int64_t i = 0;
                    for (; i + TILE <= p; i += TILE)
                        advance<T, TILE>(chunk, rows, n, now + i * n, d[head], from + i, x_row,
                                         to + i, heads * p);
                    for (; i < p; i++)
                        advance<T, 1>(chunk, rows, n, now + i * n, d[head], from + i, x_row, to + i,
                                      heads * p);
                }
            }
    }
}
EXPORT(scan)
