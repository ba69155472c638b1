#include "ostro.h"

// Rows of `heads` x d from x into pages [blocks, heads, block, d] at `slots` (none where negative).
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
