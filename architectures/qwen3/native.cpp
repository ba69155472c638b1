#include "ostro.h"

// Norm and rotate one head of d (all of it) from `from` to `to`.
template <class T>
static inline void norm_rope(const T* from, const float* weight, float eps, const float* angles,
                             int64_t d, T* to) {
    int64_t half = d / 2;
    v16 squares = {};
    for (int64_t i = 0; i < d; i += 16) {
        v16 x = load(from + i, d - i);
        squares += x * x;
    }
    float scale = 1.0f / std::sqrt(sum(squares) / d + eps);
    for (int64_t i = 0; i < half; i += 16) {
        int64_t left = half - i;
        v16 a = load(from + i, left) * scale * load(weight + i, left);
        v16 b = load(from + half + i, left) * scale * load(weight + half + i, left);
        v16 cos = load(angles + i, left), sin = load(angles + half + i, left);
        store(to + i, a * cos - b * sin, left);
        store(to + half + i, b * cos + a * sin, left);
    }
}

// q [rows, heads, d] to out (contiguous), k and v [rows, kv, d] to their pages at `slots`.
// The heads of a row are contiguous, rows are q_row, k_row, v_row apart.
template <class T>
void norm_rope_write(const T* q, const T* k, const T* v, int64_t rows, int64_t heads, int64_t kv,
                     int64_t d, int64_t q_row, int64_t k_row, int64_t v_row, const float* q_weight,
                     const float* k_weight, float eps, const int64_t* positions,
                     const float* table, const int64_t* slots, int64_t block, T* k_cache,
                     T* v_cache, T* out) {
#pragma omp parallel for schedule(static) if (rows * heads * d > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const float* angles = table + positions[row] * d;
        for (int64_t head = 0; head < heads; head++)
            norm_rope(q + row * q_row + head * d, q_weight, eps, angles, d,
                      out + (row * heads + head) * d);
        if (slots[row] < 0) continue;
        int64_t page = slots[row] / block, place = slots[row] % block;
        for (int64_t head = 0; head < kv; head++) {
            int64_t to = ((page * kv + head) * block + place) * d;
            norm_rope(k + row * k_row + head * d, k_weight, eps, angles, d, k_cache + to);
            memcpy(v_cache + to, v + row * v_row + head * d, d * sizeof(T));
        }
    }
}
EXPORT(norm_rope_write)
