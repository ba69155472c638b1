#include "ostro.h"

// Write rows of `heads` x d to pages [blocks, heads, block, d] at `slots`; skip negative slots.
template <class T>
void write_rows(const T* x, int64_t rows, int64_t heads, int64_t d, int64_t row_step,
                int64_t head_step, const int64_t* slots, int64_t block, T* cache) {
#pragma omp parallel for schedule(static) if (rows * heads * d > 65536)
    for (int64_t row = 0; row < rows; row++) {
        if (slots[row] < 0) continue;
        int64_t page = slots[row] / block, place = slots[row] % block;
        for (int64_t head = 0; head < heads; head++)
            memcpy(cache + ((page * heads + head) * block + place) * d,
                   x + row * row_step + head * head_step, d * sizeof(T));
    }
}
EXPORT(write_rows)

// The largest magnitude of d elements; NaN if one of them is infinite or NaN.
template <class T>
static float reach(const T* x, int64_t d) {
    v16 most = {}, broken = {};
    for (int64_t i = 0; i < d; i += 16) {
        v16 some = load(x + i, d - i);
        most = max(most, max(some, -some));
        broken += some * 0.0f;  // NaN for Inf and NaN, else 0
    }
    return reduce_max(most) + sum(broken);
}

// Round to the nearest integers, in the low bytes: adding 1.5 * 2^23 shifts them there.
static inline v16u to_int8(v16 x) { return as_bits(x + 12582912.0f); }

// Round to the nearest float8_e4m3fn, |x| <= 448. Below 2^-6 it is subnormal, in steps of 2^-9.
static inline v16u to_float8(v16 x) {
    v16 size = max(x, -x);
    v16u bits = as_bits(size);
    v16u normal = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - 960u;
    v16u small = as_bits(size + 16384.0f) - 0x46800000u;
    v16u sign = (as_bits(x) >> 24) & 0x80u;
    return select(size < splat(0.015625f), small, normal) | sign;
}

// Store the low bytes of 16 words, at most `left` of them.
static inline void keep(v16u words, uint8_t* to, int64_t left) {
    uint32_t all[16];
    uint8_t bytes[16];
    memcpy(all, &words, sizeof all);
    for (int j = 0; j < 16; j++) bytes[j] = (uint8_t)all[j];
    memcpy(to, bytes, left < 16 ? left : 16);
}

// As write_rows, with one-byte elements and a scale per row and head.
template <class T>
void write_scaled(const T* x, int64_t rows, int64_t heads, int64_t d, int64_t row_step,
                  int64_t head_step, const int64_t* slots, int64_t block, int64_t float8,
                  uint8_t* elements, float* scales) {
    float limit = float8 ? 448.0f : 127.0f;
#pragma omp parallel for schedule(static) if (rows * heads * d > 65536)
    for (int64_t row = 0; row < rows; row++) {
        if (slots[row] < 0) continue;
        int64_t page = slots[row] / block, place = slots[row] % block;
        for (int64_t head = 0; head < heads; head++) {
            const T* from = x + row * row_step + head * head_step;
            int64_t to = (page * heads + head) * block + place;
            float scale = scales[to] = reach(from, d) / limit;
            for (int64_t i = 0; i < d; i += 16) {
                v16 units = scale > 0 ? load(from + i, d - i) / scale : v16{};
                units = select(units > splat(limit), splat(limit), units);
                units = select(units < splat(-limit), splat(-limit), units);
                keep(float8 ? to_float8(units) : to_int8(units), elements + to * d + i, d - i);
            }
        }
    }
}
EXPORT(write_scaled)
