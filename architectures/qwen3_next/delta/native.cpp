#include "ostro.h"

#include <algorithm>

constexpr int64_t WIDEST = 512;

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

// q and k [rows, key_heads, dk], v [rows, heads, dv], b and a [rows, heads], each `_row` apart, to y
// (contiguous); states [blocks, heads, dk, dv]. Threads share the heads of the sequences; a head's
// state is updated where it will stay.
template <class T>
void delta_rule(const T* q, const T* k, const T* v, const T* b, const T* a, int64_t q_row,
                int64_t k_row, int64_t v_row, int64_t b_row, int64_t a_row, int64_t key_heads,
                int64_t heads, int64_t dk, int64_t dv, const float* rate, const float* dt_bias,
                float* state, int64_t sequences, const int64_t* starts, const int64_t* before,
                const int64_t* after, T* y) {
#pragma omp parallel for collapse(2) schedule(static) if (starts[sequences] * heads * dk * dv > 32768)
    for (int64_t s = 0; s < sequences; s++)
        for (int64_t head = 0; head < heads; head++) {
            int64_t from = head / (heads / key_heads) * dk, size = dk * dv;
            float* now = state + (after[s] * heads + head) * size;
            const float* old = state + (before[s] * heads + head) * size;
            if (after[s] >= 0 && before[s] < 0) std::fill(now, now + size, 0.0f);
            if (after[s] >= 0 && before[s] >= 0 && old != now) std::copy(old, old + size, now);
            for (int64_t t = starts[s]; t < starts[s + 1]; t++) {
                T* to = y + (t * heads + head) * dv;
                if (after[s] < 0) {
                    memset(to, 0, dv * sizeof(T));
                    continue;
                }
                float query[WIDEST], key[WIDEST];
                scaled(q + t * q_row + from, dk, 1 / std::sqrt((float)dk), query);
                scaled(k + t * k_row + from, dk, 1, key);
                float step = softplus(load_one(a + t * a_row + head) + dt_bias[head]);
                float decay = std::exp(rate[head] * step);
                float beta = 1 / (1 + std::exp(-load_one(b + t * b_row + head)));
                for (int64_t j = 0; j < dv; j += 16) {
                    int64_t left = dv - j;
                    v16 known = {}, out = {};
                    for (int64_t i = 0; i < dk; i++) {
                        v16 held = decay * load(now + i * dv + j, left);
                        store(now + i * dv + j, held, left);
                        known += key[i] * held;
                    }
                    v16 delta = beta * (load(v + t * v_row + head * dv + j, left) - known);
                    for (int64_t i = 0; i < dk; i++) {
                        v16 held = load(now + i * dv + j, left) + key[i] * delta;
                        store(now + i * dv + j, held, left);
                        out += query[i] * held;
                    }
                    store(to + j, out, left);
                }
            }
        }
}
EXPORT(delta_rule)
