// Products with weights in planes, and the weights as floats again.
//
// One strip or two at a time: few rows of x meet codes where they lie, for many a block is unpacked
// into the first cache and then serves them all. Sums run over the units of a row, one after the
// other, however many rows there are: their bits are the same in any company.
#include "rows.h"

#include <vector>

// Rows of x up to which codes are unpacked when they are multiplied, one strip at a time.
enum { FEW = 8 };

// Rows that a thread takes, whose sums stay in the second cache; and that are prepared at once.
enum { PIECE = 256, PASS = 1024 };

// Rows of x that one expert's weights serve.
struct Piece {
    int64_t first, rows, expert;
};

// The rows [first, last) in pieces, each of one expert.
static std::vector<Piece> cut(const int64_t* expert_of_row, int64_t first, int64_t last) {
    std::vector<Piece> pieces;
    for (int64_t row = first; row < last; row++) {
        int64_t expert = expert_of_row ? expert_of_row[row] : 0;
        Piece* now = pieces.empty() ? nullptr : &pieces.back();
        if (now && now->expert == expert && now->rows < PIECE)
            now->rows++;
        else
            pieces.push_back({row - first, 1, expert});
    }
    return pieces;
}

// A thread's room for a block of C strips.
template <int C>
struct Room {
    v16u codes[C][BLOCK / 4];
    Factors factors[C];
    Strip strips[C];
};

// acc [rows, 16 C] = rows of x times C strips of weights from `first` on, of which some may not be
// there. Blocks of a row of x are `all` apart.
template <int C, class X>
APART static void multiply_strips(const Weights& w, int64_t first, int64_t there, const X* x,
                                  int64_t all, int64_t rows, float* acc) {
    Room<C> room;
    std::fill(acc, acc + rows * 16 * C, 0.0f);
    for (int c = 0; c < C; c++) room.strips[c].begin(w, first + std::min<int64_t>(c, there - 1));
    bool plus = w.rest != 0 || w.zero.data || w.offset.data, bytes = X::BYTES && w.bytes;
    int64_t unit = w.group == 16 ? 16 : CELL;
    for (int64_t cell = 0; cell < w.k / CELL; cell += CELLS, x += all) {
        int64_t cells = std::min<int64_t>(CELLS, w.k / CELL - cell), units = cells * CELL / unit;
        Codes<8, false> laid[C];
        for (int c = 0; c < C; c++) {
            room.strips[c].factors(units, w.group / unit, plus, room.factors[c]);
            if constexpr (C == 1 && X::BYTES) {
                with_codes(room.strips[c], bytes, [&](auto codes) {
                    auto run = unit == 16 ? multiply_rows<4, 1, 16, decltype(codes), X>
                                          : multiply_rows<4, 1, 32, decltype(codes), X>;
                    run(&codes, room.factors, x, rows, units, plus, acc);
                });
            } else {
                lay_out(room.strips[c], bytes, cells, room.codes[c]);
                laid[c] = {{room.codes[c]}, nullptr};
            }
            room.strips[c].next(cells, units);
        }
        if constexpr (C > 1 || !X::BYTES) {
            constexpr int MOST = X::MOST;
            auto run = unit == 16 ? multiply_rows<MOST, C, 16, Codes<8, false>, X>
                                  : multiply_rows<MOST, C, 32, Codes<8, false>, X>;
            run(laid, room.factors, x, rows, units, plus, acc);
        }
    }
}

// y [t, n] = x [t, k], rows x_row apart, times weights [experts, n, k]; rows of one expert are
// neighbours. There is one expert where `expert_of_row` is null.
template <class X, class T>
static void multiply_all(const Weights& w, const T* x, int64_t x_row, const int64_t* expert_of_row,
                         int64_t t, T* y) {
    static thread_local std::vector<X> kept;
    int64_t blocks = (w.k + BLOCK - 1) / BLOCK;
    for (int64_t from = 0; from < t; from += PASS) {
        int64_t rows = std::min<int64_t>(PASS, t - from), most = 0;
        std::vector<Piece> pieces = cut(expert_of_row, from, from + rows);
        int64_t many = pieces.size();
        for (const Piece& piece : pieces) most = std::max(most, piece.rows);
        int64_t wide = most > FEW ? 16 * SIXTEENS : 16, strips = (w.n + 15) / 16;
        int64_t turns = (strips * 16 + wide - 1) / wide;
        if ((int64_t)kept.size() < rows * blocks) kept.resize(rows * blocks);
        X* ready = kept.data();
        bool small = rows * w.n * w.k < 1 << 16;
#pragma omp parallel if (!small)
        {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < rows * blocks; i++) {
                int64_t row = i % rows, at = i / rows * BLOCK;
                prepare(x + (from + row) * x_row + at, std::min<int64_t>(BLOCK, w.k - at), w,
                        ready[i]);
            }
#pragma omp for collapse(2) schedule(static)
            for (int64_t p = 0; p < many; p++)
                for (int64_t s = 0; s < turns; s++) {
                    const Piece& piece = pieces[p];
                    alignas(64) float acc[PIECE * 16 * SIXTEENS];
                    auto run = wide == 16 ? multiply_strips<1, X> : multiply_strips<SIXTEENS, X>;
                    int64_t first = s * wide;
                    run(w, piece.expert * strips + first / 16, strips - first / 16,
                        ready + piece.first, rows, piece.rows, acc);
                    for (int64_t r = 0; r < piece.rows; r++)
                        for (int64_t i = 0; i < wide && first + i < w.n; i += 16)
                            store(y + (from + piece.first + r) * w.n + first + i,
                                  load(acc + r * wide + i), w.n - first - i);
                }
        }
    }
}

template <class T>
void product(const Weights* w, const T* x, int64_t x_row, const int64_t* expert_of_row, int64_t t,
             T* y) {
    multiply_all<Rounded>(*w, x, x_row, expert_of_row, t, y);
}
EXPORT(product)

template <class T>
void product_exact(const Weights* w, const T* x, int64_t x_row, const int64_t* expert_of_row,
                   int64_t t, T* y) {
    auto run = w->bits <= 4 ? multiply_all<Floats<Few>, T>
               : w->e4m3    ? multiply_all<Floats<Bytes>, T>
               : w->values  ? multiply_all<Floats<Many>, T>
                            : multiply_all<Floats<Themselves>, T>;
    run(*w, x, x_row, expert_of_row, t, y);
}
EXPORT(product_exact)

// Half a cell of a strip as the formula says (quant/planes/planes.py), rounded once: sixteen weights of
// each of `rows` rows, which are k apart.
template <class T>
static void dequantize_half(const Weights& w, const v16u* codes, v16 times, v16 zero, v16 plus,
                            int64_t rows, T* y) {
    v16u weights[16], turned[16];
    for (int i = 0; i < 16; i++) {
        v16u code = (codes[i / 4] >> (8 * (i % 4))) & 255u;
        v16 weight = ((w.table ? Many::of(code, w.table) : Themselves::of(code, nullptr)) - zero) * times;
        if (w.offset.data) weight = settled(weight) + plus;
        weights[i] = as_bits(weight);
    }
    load_transposed((const uint8_t*)weights, sizeof weights[0], turned);
    for (int64_t r = 0; r < rows; r++) store(y + r * w.k, as_floats(turned[r]));
}

// Up to sixteen rows y [rows, k] of a strip.
template <class T>
static void dequantize_strip(const Weights& w, int64_t index, int64_t rows, T* y) {
    Strip strip;
    strip.begin(w, index);
    v16 times = {}, zero = splat(w.constant), plus = {};
    for (int64_t at = 0; at < w.k; at += CELL) {
        v16u codes[8];
        lay_out(strip, false, 1, codes);
        strip.next(1, 0);
        for (int64_t i = at; i < at + CELL; i += 16) {
            if (i % w.group == 0) {
                strip.read_scales(1, 1, &times);
                if (w.zero.data) strip.zero.read(strip.unit, 1, 1, &zero);
                if (w.offset.data) strip.read_offsets(1, 1, &plus);
                strip.unit++;
            }
            dequantize_half(w, codes + (i - at) / 4, times, zero, plus, rows, y + i);
        }
    }
}

// y [experts n, k] = all weights.
template <class T>
void dequantize(const Weights* w, T* y) {
    int64_t strips = (w->n + 15) / 16;
#pragma omp parallel for schedule(static) if (w->experts * w->n * w->k > 1 << 16)
    for (int64_t s = 0; s < w->experts * strips; s++) {
        int64_t row = s % strips * 16;
        dequantize_strip(*w, s, std::min<int64_t>(16, w->n - row),
                         y + (s / strips * w->n + row) * w->k);
    }
}
EXPORT(dequantize)
