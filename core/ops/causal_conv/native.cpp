#include "ostro.h"

constexpr int64_t WIDEST = 16;  // the same as in native.py

static inline v16 gather(const float* p, int64_t step, int64_t left) {
    v16 x = {};
    for (int64_t i = 0; i < (left < 16 ? left : 16); i++) x[i] = p[i * step];
    return x;
}

static inline void scatter(float* p, int64_t step, v16 x, int64_t left) {
    for (int64_t i = 0; i < (left < 16 ? left : 16); i++) p[i * step] = x[i];
}

// x [rows, channels], `row_step` apart, to y (contiguous): 16 channels of one sequence at a time.
// Row i - (width - 1) of a sequence is column i of its state for i < width - 1. States are saved
// after all rows are computed, the last first, and each from left to right: the first may be saved
// to the block that holds the old one.
template <class T>
void causal_conv(const T* x, int64_t row_step, int64_t channels, const float* weight,
                 int64_t width, const float* bias, float* state, int64_t sequences,
                 const int64_t* starts, const int64_t* before, const int64_t* saved, int64_t silu,
                 T* y) {
    int64_t tiles = (channels + 15) / 16, past = width - 1;
#pragma omp parallel for collapse(2) schedule(static) if (starts[sequences] * channels > 32768)
    for (int64_t s = 0; s < sequences; s++)
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t c = tile * 16, left = channels - c, rows = starts[s + 1] - starts[s];
            const T* from = x + starts[s] * row_step + c;
            T* to = y + starts[s] * channels + c;
            if (is_idle(starts, saved, s)) {
                for (int64_t t = 0; t < rows; t++) store(to + t * channels, v16{}, left);
                continue;
            }
            const float* old = state + (before[s] * channels + c) * past;
            auto row = [&](int64_t t) {
                if (t >= 0) return load(from + t * row_step, left);
                return before[s] < 0 ? v16{} : gather(old + t + past, past, left);
            };
            v16 taps[WIDEST], shift = bias ? load(bias + c, left) : v16{};
            for (int64_t j = 0; j < width; j++) taps[j] = gather(weight + c * width + j, width, left);
            for (int64_t t = 0; t < rows; t++) {
                v16 sum = shift;
                for (int64_t j = 0; j < width; j++) sum += taps[j] * row(t - past + j);
                if (silu) sum /= 1.0f + exp(-sum);
                store(to + t * channels, sum, left);
            }
            for (int64_t t = rows - 1; t >= 0; t--) {
                int64_t block = saved[starts[s] + t];
                float* target = state + (block * channels + c) * past;
                for (int64_t j = 0; j < past && block >= 0; j++)
                    scatter(target + j, past, row(t + 1 - past + j), left);
            }
        }
}
EXPORT(causal_conv)
