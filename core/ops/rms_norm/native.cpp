#include "ostro.h"

// y = norm(x + add) * weight and total = x + add, rounded to T, for `outer` x `inner` rows of d.
// Without `add`, total is not written. Outputs are contiguous, rows of x may be strided.
template <class T>
void rms_norm(const T* x, int64_t outer, int64_t inner, int64_t d, int64_t outer_step,
              int64_t inner_step, const T* add, const float* weight, float eps, T* y, T* total) {
    int64_t rows = outer * inner;
#pragma omp parallel for schedule(static) if (rows * d > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const T* from = x + row / inner * outer_step + row % inner * inner_step;
        v16 squares = {};
        if (add) {
            for (int64_t i = 0; i < d; i += 16) {
                v16 both = load(from + i, d - i) + load(add + row * d + i, d - i);
                // The norm is that of the rounded sum.
                store(total + row * d + i, both, d - i);
                both = load(total + row * d + i, d - i);
                squares += both * both;
            }
            from = total + row * d;
        } else {
            for (int64_t i = 0; i < d; i += 16) {
                v16 one = load(from + i, d - i);
                squares += one * one;
            }
        }
        float scale = 1.0f / std::sqrt(sum(squares) / d + eps);
        for (int64_t i = 0; i < d; i += 16) {
            v16 normed = load(from + i, d - i) * scale * load(weight + i, d - i);
            store(y + row * d + i, normed, d - i);
        }
    }
}
EXPORT(rms_norm)
