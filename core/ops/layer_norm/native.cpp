#include "ostro.h"

// The tail of a row has `left` elements; the others, which a norm must not count, become 0.
static inline v16 first(v16 x, int64_t left) {
    for (int64_t i = left; i < 16; i++) x[i] = 0;
    return x;
}

// y = norm(x + add) * weight + bias and total = x + add, rounded to T, for `outer` x `inner` rows
// of d. Without `add`, total is not written; weight and bias may be null. Outputs are contiguous,
// rows of x may be strided.
template <class T>
void layer_norm(const T* x, int64_t outer, int64_t inner, int64_t d, int64_t outer_step,
                int64_t inner_step, const T* add, const float* weight, const float* bias, float eps,
                T* y, T* total) {
    int64_t rows = outer * inner;
#pragma omp parallel for schedule(static) if (rows * d > 32768)
    for (int64_t row = 0; row < rows; row++) {
        const T* from = x + row / inner * outer_step + row % inner * inner_step;
        v16 sums = {}, squares = {};
        if (add) {
            for (int64_t i = 0; i < d; i += 16) {
                v16 both = load(from + i, d - i) + load(add + row * d + i, d - i);
                // The norm is that of the rounded sum.
                store(total + row * d + i, both, d - i);
                sums += load(total + row * d + i, d - i);
            }
            from = total + row * d;
        } else {
            for (int64_t i = 0; i < d; i += 16) sums += load(from + i, d - i);
        }
        // The squares of the centred row: those of x would cancel where the mean is large.
        float mean = sum(sums) / d;
        for (int64_t i = 0; i < d; i += 16) {
            v16 centred = first(load(from + i, d - i) - mean, d - i);
            squares += centred * centred;
        }
        float scale = 1.0f / std::sqrt(sum(squares) / d + eps);
        for (int64_t i = 0; i < d; i += 16) {
            v16 normed = (load(from + i, d - i) - mean) * scale;
            if (weight) normed = normed * load(weight + i, d - i);
            if (bias) normed = normed + load(bias + i, d - i);
            store(y + row * d + i, normed, d - i);
        }
    }
}
EXPORT(layer_norm)
