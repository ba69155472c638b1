// Products with weights in planes, and the weights as floats again.
//
// Two sixteens of rows of weights make a strip, of which a block is unpacked into the first cache
// and then serves all rows of x. Sums run over the units of a row, one after the other, however
// many rows there are: their bits are the same in any company.
#include "rows.h"

#include <vector>

// Rows of x up to which codes are unpacked when they are multiplied, in strips of one sixteen: with
// AVX-512 on one core 8 rows by 4 bits [512, 4096] take 108 us, and 132 us laid out first.
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

// A thread's room for C sixteens of a block.
template <int C>
struct Room {
    v16u words[BLOCK / 4], codes[C][BLOCK / 4];
    Factors factors[C];
    Sixteen weights[C];
};

// acc [rows, 16 C] = rows of x times the rows of weights from `first` on. Blocks of a row of x are
// `all` apart. Few rows take codes as they come, for many they are laid out.
template <int C, class X>
APART static void multiply_strip(const Weights& w, int64_t expert, int64_t first, const X* x, int64_t all,
                           int64_t rows, float* acc) {
    Room<C> room;
    std::fill(acc, acc + rows * 16 * C, 0.0f);
    for (int c = 0; c < C; c++)
        room.weights[c].begin(w, expert * w.n + first + 16 * c, w.n - first - 16 * c);
    bool plus = w.rest != 0 || w.zero.data || w.offset.data, bytes = X::BYTES && w.bytes;
    int64_t unit = w.group == 16 ? 16 : CELL;
    for (int64_t cell = 0; cell < w.k / CELL; cell += CELLS, x += all) {
        int64_t cells = std::min<int64_t>(CELLS, w.k / CELL - cell), units = cells * CELL / unit;
        Codes<8, false> laid[C];
        for (int c = 0; c < C; c++) {
            room.weights[c].factors(units, w.group / unit, plus, room.factors[c]);
            room.weights[c].next(cells, room.words);
            if constexpr (C == 1 && X::BYTES) {
                with_codes(w, room.words, bytes, [&](auto codes) {
                    auto run = unit == 16 ? multiply_rows<4, 1, 16, decltype(codes), X>
                                          : multiply_rows<4, 1, 32, decltype(codes), X>;
                    run(&codes, room.factors, x, rows, units, plus, acc);
                });
            } else {
                lay_out(w, room.words, bytes, cells, room.codes[c]);
            }
            laid[c] = {room.codes[c], nullptr};
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
        int64_t wide = most > FEW ? 16 * SIXTEENS : 16, strips = (w.n + wide - 1) / wide;
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
                for (int64_t s = 0; s < strips; s++) {
                    const Piece& piece = pieces[p];
                    alignas(64) float acc[PIECE * 16 * SIXTEENS];
                    auto run = wide == 16 ? multiply_strip<1, X> : multiply_strip<SIXTEENS, X>;
                    int64_t first = s * wide;
                    run(w, piece.expert, first, ready + piece.first, rows, piece.rows, acc);
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

// One number of a group.
static inline float one(const Numbers& from, int64_t i) {
    const uint8_t* p = from.data + i * size_of(from.type);
    switch (from.type) {
        case F32: return ((const float*)p)[0];
        case F16: return (float)((const f16*)p)[0];
        case BF16: return as_floats(v16u{} + ((uint32_t)((const uint16_t*)p)[0] << 16))[0];
        case I8: return (int8_t)*p;
        case U8: return *p;
        case E8M0: return from_e8m0(v16u{} + (uint32_t)*p)[0];
        default: return from_e4m3(v16u{} + (uint32_t)*p)[0];
    }
}

// The words of a cell in a plane of W bits, as often as it takes to fill a vector: turn s of them
// holds codes 4 W s and on in its bits W s and on.
template <int W>
static inline v8u turns(const uint8_t* p) {
    typedef uint64_t v4q __attribute__((vector_size(32)));
    uint64_t words[4];
    memcpy(words, p, 4 * W);
    if (W == 8) return (v8u)v4q{words[0], words[1], words[2], words[3]};
    v8u all = W == 4   ? (v8u)v4q{words[0], words[1], words[0], words[1]}
              : W == 2 ? (v8u)(v4q{} + words[0])
                       : v8u{} + (uint32_t)words[0];
    v8u shift;
    for (int i = 0; i < 8; i++) shift[i] = i / W * W;
    return (all >> shift) & 0x01010101u * ((1u << W) - 1);
}

// The codes of a cell, in order.
template <int BITS>
static inline void unpack_cell(const Weights& w, int64_t cell, uint8_t* codes) {
    v8u fours = {};
    int low = 0;
    for (int p = 0; p < 3 && WIDTHS[BITS][p]; p++) {
        int width = WIDTHS[BITS][p];
        const uint8_t* from = w.codes[p] + cell * 4 * width;
        v8u some = width == 8 ? turns<8>(from) : width == 4 ? turns<4>(from)
                   : width == 2 ? turns<2>(from) : turns<1>(from);
        fours |= some << low;
        low += width;
    }
    memcpy(codes, &fours, sizeof fours);
}

// A row [k] of weights as the formula says, rounded once.
template <int BITS, class T>
static void dequantize_row(const Weights& w, int64_t row, T* y) {
    v16 zero = splat(w.constant), times = {}, plus = {};
    int64_t cells = w.k / CELL, left = 0, group = row * w.scale.many;
    // Which d and m, and for how many groups yet.
    int64_t coarse = row * (w.scale.many / w.together), fine = w.together;
    for (int64_t cell = 0; cell < cells; cell++) {
        uint8_t codes[CELL];
        unpack_cell<BITS>(w, row * cells + cell, codes);
        for (int h = 0; h < 2; h++) {
            if (left == 0) {
                if (fine-- == 0) coarse++, fine = w.together - 1;
                float scale = one(w.scale, group);
                times = splat(w.d.data ? scale * one(w.d, coarse) : scale);
                if (w.zero.data) zero = splat(one(w.zero, group));
                if (w.m.data)
                    plus = splat(one(w.offset, group) * one(w.m, coarse));
                else if (w.offset.data)
                    plus = splat(one(w.offset, group));
                group++, left = w.group;
            }
            v16 value;
            if (w.table)
                for (int i = 0; i < 16; i++) value[i] = w.table[codes[16 * h + i]];
            else
                value = Themselves::of(widen(codes + 16 * h), nullptr);
            v16 weight = (value - zero) * times;
            if (w.offset.data) weight = settled(weight) + plus;
            store(y + cell * CELL + 16 * h, weight);
            left -= 16;
        }
    }
}

// y [rows, k] = all weights.
template <class T>
void dequantize(const Weights* w, T* y) {
    decltype(&dequantize_row<1, T>) by_bits[] = {
        nullptr,              dequantize_row<1, T>, dequantize_row<2, T>,
        dequantize_row<3, T>, dequantize_row<4, T>, dequantize_row<5, T>,
        dequantize_row<6, T>, dequantize_row<7, T>, dequantize_row<8, T>,
    };
#pragma omp parallel for schedule(static) if (w->rows * w->k > 1 << 16)
    for (int64_t row = 0; row < w->rows; row++) by_bits[w->bits](*w, row, y + row * w->k);
}
EXPORT(dequantize)
