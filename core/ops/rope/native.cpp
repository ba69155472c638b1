#include "ostro.h"

// Rotate rows x heads of d from x to y (contiguous), row t by row positions[t] of `table`: r/2
// cosines, then r/2 sines. Dimensions from r on are copied.
template <class T>
void rope(const T* x, int64_t rows, int64_t heads, int64_t d, int64_t row_step, int64_t head_step,
          const int64_t* positions, const float* table, int64_t r, int64_t interleaved, T* y) {
    int64_t half = r / 2;
#pragma omp parallel for schedule(static) if (rows * heads * d > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const float* cos = table + positions[row] * r;
        const float* sin = cos + half;
        for (int64_t head = 0; head < heads; head++) {
            const T* from = x + row * row_step + head * head_step;
            T* to = y + (row * heads + head) * d;
            if (interleaved) {
                for (int64_t i = 0; i < half; i++) {
                    float a = load_one(from + 2 * i), b = load_one(from + 2 * i + 1);
                    store(to + 2 * i, splat(a * cos[i] - b * sin[i]), 1);
                    store(to + 2 * i + 1, splat(b * cos[i] + a * sin[i]), 1);
                }
            } else {
                for (int64_t i = 0; i < half; i += 16) {
                    int64_t left = half - i;
                    v16 a = load(from + i, left), b = load(from + half + i, left);
                    v16 c = load(cos + i, left), s = load(sin + i, left);
                    store(to + i, a * c - b * s, left);
                    store(to + half + i, b * c + a * s, left);
                }
            }
            memcpy(to + r, from + r, (d - r) * sizeof(T));
        }
    }
}
EXPORT(rope)
