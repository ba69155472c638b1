#include "ostro.h"

enum Act { SILU, GELU, GELU_TANH, RELU };

static inline v16 act(Act kind, v16 x) {
    switch (kind) {
        case SILU: return x / (1.0f + exp(-x));
        case GELU_TANH: return 0.5f * x * (1.0f + tanh(0.79788456f * (x + 0.044715f * x * x * x)));
        case RELU: return select(x < v16{}, v16{}, x);
        case GELU: break;
    }
    v16 y;
    for (int i = 0; i < 16; i++) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.70710678f));
    return y;
}

// y [rows, n] = act(gate) * up for x [rows, 2n] = [gate | up].
template <class T>
void act_mul(const T* x, int64_t rows, int64_t n, int64_t kind, T* y) {
#pragma omp parallel for collapse(2) schedule(static) if (rows * n > 8192)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < n; i += 16) {
            const T* gate = x + row * 2 * n + i;
            store(y + row * n + i, act(Act(kind), load(gate, n - i)) * load(gate + n, n - i), n - i);
        }
}
EXPORT(act_mul)
