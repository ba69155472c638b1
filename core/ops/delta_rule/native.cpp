#include "ostro.h"

#include <algorithm>
#include <vector>

enum { ROWS = 64, LANES = 4, WIDTH = 16 * LANES };

// log(1 + e^x)
static inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// A row of n at length `length`, as floats.
template <class T>
static inline void scaled(const T* from, int64_t n, float length, float* to) {
    v16 squares = {};
    for (int64_t i = 0; i < n; i += 16) {
        v16 x = load(from + i, n - i);
        squares += x * x;
    }
    float scale = length / std::sqrt(sum(squares) + 1e-6f);
    for (int64_t i = 0; i < n; i += 16) store(to + i, scale * load(from + i, n - i), n - i);
}

// What one thread keeps of a chunk of rows, and of the columns of a state that it works on.
struct Chunk {
    std::vector<float> queries, keys, columns;
    float decay[ROWS], beta[ROWS];

    explicit Chunk(int64_t dk) : queries(ROWS * dk), keys(ROWS * dk), columns(dk * WIDTH) {}
};

// All rows of a chunk on some columns of a state, from one place to another (or the same), whose
// rows are `step` apart; `left` of the columns are real. v and y are `v_row` and `y_row` apart.
template <class T>
static void advance(const Chunk& chunk, int64_t rows, int64_t dk, const float* from, float* to,
                    int64_t step, const T* v, int64_t v_row, T* y, int64_t y_row, int64_t left) {
    for (int64_t t = 0; t < rows; t++) {
        const float* query = &chunk.queries[t * dk];
        const float* key = &chunk.keys[t * dk];
        float decay = chunk.decay[t];
        v16 known[LANES] = {}, delta[LANES] = {}, out[LANES] = {};
        for (int64_t i = 0; i < dk; i++)
            for (int l = 0; l < LANES; l++)
                known[l] += key[i] * load(from + i * step + 16 * l);
        for (int l = 0; l < LANES && 16 * l < left; l++)
            delta[l] = chunk.beta[t] * (load(v + t * v_row + 16 * l, left - 16 * l) - decay * known[l]);
        for (int64_t i = 0; i < dk; i++)
            for (int l = 0; l < LANES; l++) {
                v16 held = decay * load(from + i * step + 16 * l) + key[i] * delta[l];
                store(to + i * step + 16 * l, held);
                out[l] += query[i] * held;
            }
        for (int l = 0; l < LANES && 16 * l < left; l++)
            store(y + t * y_row + 16 * l, out[l], left - 16 * l);
        from = to;
    }
}

// q and k [rows, key_heads, dk], v [rows, heads, dv], b and a [rows, heads], each `_row` apart, to y
// (contiguous); states [blocks, heads, dk, dv]. Threads share the heads of the sequences. A chunk of
// rows goes through some columns before the next ones, so that these stay in the nearest cache. It
// ends at the first row whose state is saved, and works where that state will stay.
template <class T>
void delta_rule(const T* q, const T* k, const T* v, const T* b, const T* a, int64_t q_row,
                int64_t k_row, int64_t v_row, int64_t b_row, int64_t a_row, int64_t key_heads,
                int64_t heads, int64_t dk, int64_t dv, const float* rate, const float* dt_bias,
                float* state, int64_t sequences, const int64_t* starts, const int64_t* before,
                const int64_t* saved, T* y) {
#pragma omp parallel if (starts[sequences] * heads * dk * dv > 32768)
    {
        Chunk chunk(dk);
        float* columns = chunk.columns.data();
#pragma omp for collapse(2) schedule(static)
        for (int64_t s = 0; s < sequences; s++)
            for (int64_t head = 0; head < heads; head++) {
                int64_t from = head / (heads / key_heads) * dk, size = dk * dv, rows;
                const float* old = before[s] < 0 ? nullptr : state + (before[s] * heads + head) * size;
                bool idle = is_idle(starts, saved, s);
                for (int64_t t = starts[s]; t < starts[s + 1] && idle; t++)
                    memset(y + (t * heads + head) * dv, 0, dv * sizeof(T));
                for (int64_t first = starts[s]; first < starts[s + 1] && !idle; first += rows) {
                    int64_t last = next_saved(saved, first);
                    rows = std::min<int64_t>(ROWS, last + 1 - first);
                    float* now = state + (saved[last] * heads + head) * size;
                    T* to = y + (first * heads + head) * dv;
                    for (int64_t r = 0; r < rows; r++) {
                        int64_t t = first + r;
                        float step = softplus(load_one(a + t * a_row + head) + dt_bias[head]);
                        chunk.decay[r] = std::exp(rate[head] * step);
                        chunk.beta[r] = 1 / (1 + std::exp(-load_one(b + t * b_row + head)));
                        scaled(q + t * q_row + from, dk, 1 / std::sqrt((float)dk),
                               &chunk.queries[r * dk]);
                        scaled(k + t * k_row + from, dk, 1, &chunk.keys[r * dk]);
                    }
                    for (int64_t j = 0; j < dv; j += WIDTH) {
                        int64_t left = std::min<int64_t>(WIDTH, dv - j);
                        // One row goes from place to place; more go by way of columns that are close.
                        bool direct = rows == 1 && old && left == WIDTH;
                        const float* source = direct ? old + j : columns;
                        for (int64_t i = 0; i < dk && !direct; i++) {
                            if (old) memcpy(columns + i * WIDTH, old + i * dv + j, left * sizeof(float));
                            else std::fill_n(columns + i * WIDTH, left, 0.0f);
                        }
                        advance(chunk, rows, dk, source, direct ? now + j : columns,
                                direct ? dv : WIDTH, v + first * v_row + head * dv + j, v_row, to + j,
                                heads * dv, left);
                        for (int64_t i = 0; i < dk && !direct; i++)
                            memcpy(now + i * dv + j, columns + i * WIDTH, left * sizeof(float));
                    }
                    old = now;
                }
            }
    }
}
EXPORT(delta_rule)
