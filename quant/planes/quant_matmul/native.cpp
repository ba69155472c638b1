// Matrix products with quantized weights in panels (interleaved.py), and dequantization.
//
// A small batch unpacks codes in registers, one panel at a time. A larger batch unpacks a block of
// codes into the L1 cache once and reuses it for all rows of x. Each sum adds the units of a row in
// order, so a row of y has the same bits in every batch.
#include "rows.h"

#include <vector>

// Rows of x up to which one panel at a time is multiplied, with codes unpacked in registers.
enum { SMALL_BATCH = 8 };

// CHUNK_ROWS: rows of one task, whose accumulators fit the L2 cache. PASS_ROWS: rows of x that are
// prepared (quantized or widened) before a pass.
enum { CHUNK_ROWS = 256, PASS_ROWS = 1024 };

// Consecutive rows of x that have the same expert.
struct RowChunk {
    int64_t first, rows, expert;
};

// Split the rows [first, last) into chunks of one expert each.
static std::vector<RowChunk> split_rows(const int64_t* expert_of_row, int64_t first, int64_t last) {
    std::vector<RowChunk> chunks;
    for (int64_t row = first; row < last; row++) {
        int64_t expert = expert_of_row ? expert_of_row[row] : 0;
        RowChunk* current = chunks.empty() ? nullptr : &chunks.back();
        if (current && current->expert == expert && current->rows < CHUNK_ROWS)
            current->rows++;
        else
            chunks.push_back({row - first, 1, expert});
    }
    return chunks;
}

// Scratch memory of a thread for a block of C panels.
template <int C>
struct Workspace {
    v16u codes[C][BLOCK / 4];
    Factors factors[C];
    Panel panels[C];
};

// acc [rows, 16 C] = rows of x times the C panels of weights from `first`. Only `available` panels
// exist: the last one replaces missing panels, and the caller drops their columns. Blocks of a row
// of x are `stride` apart.
template <int C, class X>
NOINLINE static void multiply_panels(const Weights& w, int64_t first, int64_t available, const X* x,
                                     int64_t stride, int64_t rows, float* acc) {
    Workspace<C> work;
    std::fill(acc, acc + rows * 16 * C, 0.0f);
    for (int c = 0; c < C; c++)
        work.panels[c].begin(w, first + std::min<int64_t>(c, available - 1));
    bool has_bias = w.zero_residual != 0 || w.zero.data || w.offset.data;
    bool bytes = X::BYTES && w.code_bytes;
    int64_t unit = w.group == 16 ? 16 : CELL;
    for (int64_t cell = 0; cell < w.k / CELL; cell += CELLS, x += stride) {
        int64_t cells = std::min<int64_t>(CELLS, w.k / CELL - cell), units = cells * CELL / unit;
        Codes<8, false> unpacked[C];
        for (int c = 0; c < C; c++) {
            work.panels[c].factors(units, w.group / unit, has_bias, work.factors[c]);
            if constexpr (C == 1 && X::BYTES) {
                with_codes(work.panels[c], bytes, [&](auto codes) {
                    auto run = unit == 16 ? multiply_rows<4, 1, 16, decltype(codes), X>
                                          : multiply_rows<4, 1, 32, decltype(codes), X>;
                    run(&codes, work.factors, x, rows, units, has_bias, acc);
                });
            } else {
                unpack_codes(work.panels[c], bytes, cells, work.codes[c]);
                unpacked[c] = {{work.codes[c]}, nullptr};
            }
            work.panels[c].next(cells, units);
        }
        if constexpr (C > 1 || !X::BYTES) {
            constexpr int MAX_ROWS = X::MAX_ROWS;
            auto run = unit == 16 ? multiply_rows<MAX_ROWS, C, 16, Codes<8, false>, X>
                                  : multiply_rows<MAX_ROWS, C, 32, Codes<8, false>, X>;
            run(unpacked, work.factors, x, rows, units, has_bias, acc);
        }
    }
}

// y [t, n] = x [t, k], rows x_row apart, times weights [experts, n, k]; rows of one expert are
// adjacent. Null `expert_of_row` means one expert.
template <class X, class T>
static void matmul_all(const Weights& w, const T* x, int64_t x_row, const int64_t* expert_of_row,
                       int64_t t, T* y) {
    // Reused by later calls. The parallel region needs x_blocks: `prepared` is one per thread.
    static thread_local std::vector<X> prepared;
    int64_t blocks = (w.k + BLOCK - 1) / BLOCK;
    for (int64_t from = 0; from < t; from += PASS_ROWS) {
        int64_t rows = std::min<int64_t>(PASS_ROWS, t - from), longest = 0;
        std::vector<RowChunk> chunks = split_rows(expert_of_row, from, from + rows);
        int64_t chunk_count = chunks.size();
        for (const RowChunk& chunk : chunks) longest = std::max(longest, chunk.rows);
        int64_t width = longest > SMALL_BATCH ? 16 * PANELS : 16, panels = (w.n + 15) / 16;
        int64_t steps = (panels * 16 + width - 1) / width;
        if ((int64_t)prepared.size() < rows * blocks) prepared.resize(rows * blocks);
        X* x_blocks = prepared.data();
        bool small = rows * w.n * w.k < 1 << 16;
#pragma omp parallel if (!small)
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < rows * blocks; i++) {
                int64_t row = i % rows, at = i / rows * BLOCK;
                prepare(x + (from + row) * x_row + at, std::min<int64_t>(BLOCK, w.k - at), w,
                        x_blocks[i]);
            }
            // Other processes may interrupt a thread: the others take its panels.
#pragma omp for collapse(2) schedule(dynamic, 4)
            for (int64_t p = 0; p < chunk_count; p++)
                for (int64_t s = 0; s < steps; s++) {
                    const RowChunk& chunk = chunks[p];
                    alignas(64) float acc[CHUNK_ROWS * 16 * PANELS];
                    auto run = width == 16 ? multiply_panels<1, X> : multiply_panels<PANELS, X>;
                    int64_t first = s * width;
                    run(w, chunk.expert * panels + first / 16, panels - first / 16,
                        x_blocks + chunk.first, rows, chunk.rows, acc);
                    for (int64_t r = 0; r < chunk.rows; r++)
                        for (int64_t i = 0; i < width && first + i < w.n; i += 16)
                            store(y + (from + chunk.first + r) * w.n + first + i,
                                  load(acc + r * width + i), w.n - first - i);
                }
        }
    }
}

template <class T>
void matmul(const Weights* w, const T* x, int64_t x_row, const int64_t* expert_of_row, int64_t t,
            T* y) {
    matmul_all<QuantizedRow>(*w, x, x_row, expert_of_row, t, y);
}
EXPORT(matmul)

template <class T>
void matmul_exact(const Weights* w, const T* x, int64_t x_row, const int64_t* expert_of_row,
                  int64_t t, T* y) {
    auto run = w->bits <= 4 ? matmul_all<FloatRow<SmallTable>, T>
               : w->is_e4m3 ? matmul_all<FloatRow<E4m3>, T>
               : w->code_values ? matmul_all<FloatRow<LargeTable>, T>
                                : matmul_all<FloatRow<Identity>, T>;
    run(*w, x, x_row, expert_of_row, t, y);
}
EXPORT(matmul_exact)

// Dequantize half a cell of a panel by the formula of quant/planes/planes.py, rounded once to T:
// sixteen weights of each of `rows` rows of y, k apart.
template <class T>
static void dequantize_half(const Weights& w, const v16u* codes, v16 scale, v16 zero, v16 offset,
                            int64_t rows, T* y) {
    v16u weights[16], transposed[16];
    for (int i = 0; i < 16; i++) {
        v16u code = (codes[i / 4] >> (8 * (i % 4))) & 255u;
        v16 value =
            w.table ? LargeTable::decode(code, w.table) : Identity::decode(code, nullptr);
        v16 weight = (value - zero) * scale;
        if (w.offset.data) weight = prevent_fma(weight) + offset;
        weights[i] = as_bits(weight);
    }
    load_transposed((const uint8_t*)weights, sizeof weights[0], transposed);
    for (int64_t r = 0; r < rows; r++) store(y + r * w.k, as_floats(transposed[r]));
}

// Dequantize up to sixteen rows y [rows, k] of a panel.
template <class T>
static void dequantize_panel(const Weights& w, int64_t index, int64_t rows, T* y) {
    Panel panel;
    panel.begin(w, index);
    v16 scale = {}, zero = splat(w.shared_zero), offset = {};
    for (int64_t at = 0; at < w.k; at += CELL) {
        v16u codes[8];
        unpack_codes(panel, false, 1, codes);
        panel.next(1, 0);
        for (int64_t i = at; i < at + CELL; i += 16) {
            if (i % w.group == 0) {
                panel.read_scales(1, 1, &scale);
                if (w.zero.data) panel.zero.read(panel.unit, 1, 1, &zero);
                if (w.offset.data) panel.read_offsets(1, 1, &offset);
                panel.unit++;
            }
            dequantize_half(w, codes + (i - at) / 4, scale, zero, offset, rows, y + i);
        }
    }
}

// y [experts n, k] = all weights.
template <class T>
void dequantize(const Weights* w, T* y) {
    int64_t panels = (w->n + 15) / 16;
#pragma omp parallel for schedule(static) if (w->experts * w->n * w->k > 1 << 16)
    for (int64_t s = 0; s < w->experts * panels; s++) {
        int64_t row = s % panels * 16;
        dequantize_panel(*w, s, std::min<int64_t>(16, w->n - row),
                         y + (s / panels * w->n + row) * w->k);
    }
}
EXPORT(dequantize)
