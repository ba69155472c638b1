#include "ostro.h"

#include <algorithm>

constexpr int64_t WIDEST = 512;

// log(1 + e^x)
static inline float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

template <class T>
static inline void widen(const T* from, int64_t n, float* to) {
    for (int64_t i = 0; i < n; i += 16) store(to + i, load(from + i, n - i), n - i);
}

// x [rows, heads, p], dt [rows, heads], b and c [rows, groups, n], each `_row` apart, to y
// (contiguous); states [blocks, heads, p, n]. Threads share the heads of the sequences; a head's
// state is updated where it will stay.
template <class T>
void scan(const T* x, const T* dt, const T* b, const T* c, int64_t x_row, int64_t dt_row,
          int64_t b_row, int64_t c_row, int64_t heads, int64_t groups, int64_t p, int64_t n,
          const float* a, const float* d, const float* dt_bias, float least, float most,
          float* state, int64_t sequences, const int64_t* starts, const int64_t* before,
          const int64_t* after, T* y) {
#pragma omp parallel for collapse(2) schedule(static) if (starts[sequences] * heads * p * n > 32768)
    for (int64_t s = 0; s < sequences; s++)
        for (int64_t head = 0; head < heads; head++) {
            int64_t group = head / (heads / groups), size = p * n;
            float* now = state + (after[s] * heads + head) * size;
            const float* old = state + (before[s] * heads + head) * size;
            if (after[s] >= 0 && before[s] < 0) std::fill(now, now + size, 0.0f);
            if (after[s] >= 0 && before[s] >= 0 && old != now) std::copy(old, old + size, now);
            for (int64_t t = starts[s]; t < starts[s + 1]; t++) {
                T* to = y + (t * heads + head) * p;
                if (after[s] < 0) {
                    memset(to, 0, p * sizeof(T));
                    continue;
                }
                float in[WIDEST], out[WIDEST];
                widen(b + t * b_row + group * n, n, in);
                widen(c + t * c_row + group * n, n, out);
                float step = softplus(load_one(dt + t * dt_row + head) + dt_bias[head]);
                step = std::min(std::max(step, least), most);
                float decay = std::exp(step * a[head]);
                for (int64_t i = 0; i < p; i++) {
                    float value = load_one(x + t * x_row + head * p + i);
                    float* row = now + i * n;
                    v16 sums = {};
                    for (int64_t j = 0; j < n; j += 16) {
                        v16 next = decay * load(row + j, n - j) + step * value * load(in + j, n - j);
                        store(row + j, next, n - j);
                        sums += next * load(out + j, n - j);
                    }
                    store(to + i, splat(sum(sums) + d[head] * value), 1);
                }
            }
        }
}
EXPORT(scan)
