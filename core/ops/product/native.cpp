// Products with weights in planes (core/planes.py), and the weights as floats again.
//
// Sixteen rows of weights are the lanes of a vector. Words of a plane are transposed, so that a
// vector holds one word of each row; shifted, it is four neighbouring codes of each, which meet the
// same four numbers of a row of x in every lane. Two such sixteens make a strip. A block of it is
// unpacked into the first cache, then serves all rows of x; sums run over the cells of a row, one
// after the other, however many rows there are.
#include "ostro.h"

#include <algorithm>
#include <vector>

enum { CELL = 32, CELLS = 16, BLOCK = CELL * CELLS, UNITS = 2 * CELLS };

// Rows of x that share what is loaded of a strip, that a thread takes, and that are rounded at once.
#ifdef __AVX512F__
enum { MANY = 6, SIXTEENS = 2 };
#else
enum { MANY = 3, SIXTEENS = 1 };
#endif
enum { FEW = 8, PIECE = 256, PASS = 1024 };

enum Type { F32, F16, BF16, I8, U8, E8M0, E4M3 };

// What groups share: `many` numbers of each row; absent where there is no data.
struct Numbers {
    const uint8_t* data;
    int64_t many, type;
};

// As `Weights` of native.py, which says what the fields are.
struct Weights {
    const uint8_t* codes[3];
    int64_t widths[3];
    Numbers scale, zero, offset, d, m;
    const float* table;
    const float* values;
    const uint8_t* bytes;
    int64_t bits, n, k, group, rows, together;
    float constant, unit, rest;
    int32_t start, e4m3;
};

static constexpr int size_of(int64_t type) {
    return type == F32 ? 4 : type == F16 || type == BF16 ? 2 : 1;
}

// Sixteen rows of bytes, of which there may be fewer, read in order, sixteen words of each at once.
struct Words {
    const uint8_t *first, *last, *end, *later;
    int64_t row_bytes, done;
    int rows;

    void begin(const void* data, int64_t row, int64_t many, int64_t bytes, int64_t all) {
        first = (const uint8_t*)data + row * bytes;
        last = first + 15 * bytes;
        end = (const uint8_t*)data + all * bytes;
        later = first + 16 * bytes;
        row_bytes = bytes, done = 0;
        rows = (int)many;
    }

    // Move on by `bytes`, at most 64. What is past the end is 0.
    void next(int64_t bytes, v16u* to) {
        // A CPU does not see by itself that so many rows are being read: of the next strip, which
        // lies behind this one, as much is fetched, from one end to the other.
        for (int r = 0; r < 16; r++) __builtin_prefetch(later + 16 * done + 64 * r, 0, 2);
        const uint8_t* p = first + done;
        for (int r = 0; r < 16; r++) __builtin_prefetch(p + bytes + r * row_bytes);
        if (rows == 16 && end - (last + done) >= 64) {
            load_transposed(p, row_bytes, to);
        } else {
            alignas(64) uint8_t some[16 * 64] = {};
            for (int r = 0; r < rows; r++, p += row_bytes)
                memcpy(some + 64 * r, p, std::min<int64_t>(64, end - p));
            load_transposed(some, 64, to);
        }
        done += bytes;
    }
};

// A byte of eight bits of exponent, and one of a sign, four bits of exponent, three of fraction.
static inline v16 from_e8m0(v16u x) {
    v16u power = select(x == 0u, v16u{} + 0x00400000u, x << 23);
    return as_floats(select(x == 255u, v16u{} + 0x7fc00000u, power));
}

static inline v16 from_e4m3(v16u x) {
    v16u size = (x & 0x7fu) << 20;
    v16 number = as_floats((x & 0x80u) << 24 | size) * 0x1p120f;
    return select(size == 0x07f00000u, splat(NAN), number);
}

// The lowest bits of words as a number.
template <int TYPE>
static inline v16 number(v16u x) {
    switch (TYPE) {
        case F32: return as_floats(x);
        case F16: return from_halves(x);
        case BF16: return as_floats(x << 16);
        case I8: return as_floats(((x + 128u) & 255u) | 0x4b000000u) - 8388736.0f;
        case U8: return as_floats((x & 255u) | 0x4b000000u) - 8388608.0f;
        case E8M0: return from_e8m0(x & 255u);
        default: return from_e4m3(x & 255u);
    }
}

// Numbers [rows, many] of sixteen rows, which are asked for in order: a vector holds one of each.
struct Column {
    Words words;
    v16u raw[16];
    v16 values[16];
    int64_t type, next;

    void begin(const Numbers& numbers, int64_t row, int64_t rows, int64_t all) {
        type = numbers.type, next = 0;
        words.begin(numbers.data, row, rows, numbers.many * size_of(type), all);
    }

    v16 at(int64_t i) {
        if (i == next) more();
        return values[i % 16];
    }

    void more() {
        switch (type) {
            case F32: return more_of<F32>();
            case F16: return more_of<F16>();
            case BF16: return more_of<BF16>();
            case I8: return more_of<I8>();
            case U8: return more_of<U8>();
            case E8M0: return more_of<E8M0>();
            default: return more_of<E4M3>();
        }
    }

    template <int TYPE>
    void more_of() {
        constexpr int size = size_of(TYPE), in_word = 4 / size;
        if (next % (64 / size) == 0) words.next(64, raw);
        const v16u* from = raw + next / in_word % 16;
        for (int i = 0; i < 16; i++)
            values[i] = number<TYPE>(from[i / in_word] >> (8 * size * (i % in_word)));
        next += 16;
    }
};

// Of the units of a block of sixteen rows, which are cells or halves of cells: what a sum of
// products of codes is multiplied by, and what a sum of x is.
struct Factors {
    v16 times[UNITS], plus[UNITS];
};

// Sixteen rows of weights: their codes and the factors of their groups, in order.
struct Sixteen {
    const Weights* of;
    Words planes[3];
    Column scale, zero, offset, d, m;
    v16 times[16], plus[16];  // of sixteen groups
    int64_t group, left;      // the next group, and how many units the one before it serves yet

    void begin(const Weights& w, int64_t row, int64_t rows) {
        of = &w;
        rows = std::max<int64_t>(0, std::min<int64_t>(16, rows));
        for (int i = 0; i < 3 && w.codes[i]; i++)
            planes[i].begin(w.codes[i], row, rows, w.k / CELL * 4 * w.widths[i], w.rows);
        scale.begin(w.scale, row, rows, w.rows);
        if (w.zero.data) zero.begin(w.zero, row, rows, w.rows);
        if (w.offset.data) offset.begin(w.offset, row, rows, w.rows);
        if (w.d.data) d.begin(w.d, row, rows, w.rows);
        if (w.m.data) m.begin(w.m, row, rows, w.rows);
        group = left = 0;
    }

    void factors(int64_t units, int64_t of_group, bool any_plus, Factors& of_units) {
        for (int64_t u = 0; u < units;) {
            if (left == 0) {
                if (group % 16 == 0) more(any_plus);
                group++, left = of_group;
            }
            int64_t at = (uint64_t)(group - 1) % 16, until = std::min(units, u + left);
            left -= until - u;
            for (int64_t i = u; i < until; i++) of_units.times[i] = times[at];
            if (any_plus)
                for (int64_t i = u; i < until; i++) of_units.plus[i] = plus[at];
            u = until;
        }
    }

    void more(bool any_plus) {
        int64_t count = std::min<int64_t>(16, of->scale.many - group);
        for (int i = 0; i < count; i++) times[i] = scale.at(group + i);
        if (of->d.data)
            for (int i = 0; i < count; i++) times[i] *= d.at((group + i) / of->together);
        if (any_plus) more_plus(count);
        if (of->unit != 1)
            for (int i = 0; i < count; i++) times[i] *= of->unit;
    }

    void more_plus(int64_t count) {
        for (int i = 0; i < count; i++) plus[i] = times[i] * -of->rest;
        if (of->zero.data)
            for (int i = 0; i < count; i++) plus[i] = -times[i] * zero.at(group + i);
        if (of->m.data) {
            for (int i = 0; i < count; i++)
                plus[i] += offset.at(group + i) * m.at((group + i) / of->together);
        } else if (of->offset.data) {
            for (int i = 0; i < count; i++) plus[i] += offset.at(group + i);
        }
    }

    // The words of all planes of so many cells, one plane after the other.
    void next(int64_t cells, v16u* words) {
        for (int i = 0; i < 3 && of->codes[i]; i++) {
            int64_t bytes = cells * 4 * of->widths[i];
            for (int64_t done = 0; done < bytes; done += 64)
                planes[i].next(std::min<int64_t>(64, bytes - done), words + done / 4);
            words += CELLS * of->widths[i];
        }
    }
};

// Codes below 16 become the bytes that they stand for.
static inline v16u look_up(v16u codes, const uint8_t* bytes) {
#ifdef __AVX512BW__
    __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)bytes));
    return (v16u)_mm512_shuffle_epi8(table, (__m512i)codes);
#else
    uint8_t each[64];
    memcpy(each, &codes, 64);
    for (int i = 0; i < 64; i++) each[i] = bytes[each[i]];
    memcpy(&codes, each, 64);
    return codes;
#endif
}

// Bits of the planes of a code.
constexpr int WIDTHS[9][3] = {{}, {1}, {2}, {2, 1}, {4}, {4, 1}, {4, 2}, {4, 2, 1}, {8}};

// The codes of a block of sixteen rows, four neighbours of each row at a time: made of the words of
// planes when they are asked for, or lying in the order that 8 bits have.
template <int BITS, bool BYTES>
struct Codes {
    const v16u* words;
    const uint8_t* bytes;

    v16u four(int64_t cell, int i) const {
        if (BITS == 8) return words[cell * 8 + i];
        v16u codes = {};
        int low = 0, first = 0;
        for (int width : WIDTHS[BITS]) {
            if (width == 0) break;
            v16u word = words[first * CELLS + cell * width + i % width] >> (i / width * width);
            codes = codes | (word & 0x01010101u * ((1u << width) - 1)) << low;
            low += width, first += width;
        }
        return BYTES ? look_up(codes, bytes) : codes;
    }
};

// `run` of the codes that weights have.
template <class Run>
static void with_codes(const Weights& w, const v16u* words, bool bytes, Run run) {
#define CASE(bits) \
    case bits: return bytes ? run(Codes<bits, bits <= 4>{words, w.bytes}) \
                            : run(Codes<bits, false>{words, nullptr});
    switch (w.bits) { CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) }
#undef CASE
}

// A block of a row of x as integers: x is about d q; of each unit the number that its sums of
// products start from, and the sum of what it holds.
struct alignas(64) Rounded {
    int8_t q[BLOCK];
    float d[CELLS];
    int32_t start[UNITS];
    float sum[UNITS];
    static constexpr bool BYTES = true;
    static constexpr int TOGETHER = MANY;
};

template <class T>
static void prepare(const T* x, int64_t k, const Weights& w, Rounded& to) {
    int halves = w.group == 16 ? 2 : 1;
    for (int64_t i = 0; i < k; i += CELL) {
        v16 part[2] = {load(x + i), load(x + i + 16)}, size[2];
        for (int h = 0; h < 2; h++) size[h] = as_floats(as_bits(part[h]) & 0x7fffffffu);
        // What is no finite number shows in all that it meets.
        float d = largest(larger(size[0], size[1])) / 127 + sum(part[0] - part[0] + (part[1] - part[1]));
        float sums[2];
        for (int h = 0; h < 2; h++) {
            v16 q = d > 0 ? part[h] / d + 12582912.0f : splat(12582912.0f);
            store_bytes(to.q + i + 16 * h, as_bits(q));
            sums[h] = sum(q - 12582912.0f);
        }
        if (halves == 1) sums[0] += sums[1];
        to.d[i / CELL] = d;
        for (int h = 0; h < halves; h++) {
            int64_t u = i / CELL * halves + h;
            to.start[u] = d > 0 ? -w.start * (int32_t)sums[h] : 0;
            to.sum[u] = sums[h] * d;
        }
    }
}

// What codes stand for in float32: themselves, few numbers, many, or floats of eight bits.
struct Themselves {
    static v16 of(v16u codes, const float*) { return as_floats(codes | 0x4b000000u) - 8388608.0f; }
};

struct Few {
    static v16 of(v16u codes, const float* values) {
#ifdef __AVX512F__
        return (v16)_mm512_permutexvar_ps((__m512i)codes, _mm512_loadu_ps(values));
#else
        v16 found;
        for (int i = 0; i < 16; i++) found[i] = values[codes[i]];
        return found;
#endif
    }
};

struct Many {
    static v16 of(v16u codes, const float* values) {
#ifdef __AVX512F__
        return (v16)_mm512_i32gather_ps((__m512i)codes, values, 4);
#else
        return Few::of(codes, values);
#endif
    }
};

struct Bytes {
    static v16 of(v16u codes, const float*) { return from_e4m3(codes); }
};

// A block of a row of x as it is, and the sum of each unit.
template <class Values>
struct alignas(64) Floats {
    float x[BLOCK], sum[UNITS];
    const float* values;
    static constexpr bool BYTES = false;
    static constexpr int TOGETHER = MANY * 2 / 3;
};

template <class T, class Values>
static void prepare(const T* x, int64_t k, const Weights& w, Floats<Values>& to) {
    to.values = w.values;
    for (int64_t i = 0; i < k; i += 16) store(to.x + i, load(x + i));
    for (int64_t i = 0; i < k; i += CELL) {
        v16 low = load(to.x + i), high = load(to.x + i + 16);
        if (w.group == 16) {
            to.sum[i / 16] = sum(low);
            to.sum[i / 16 + 1] = sum(high);
        } else {
            to.sum[i / CELL] = sum(low + high);
        }
    }
}

// acc [R, 16 C] += rows of x times C sixteens of a block; a unit is UNIT weights of a row.
template <int R, int C, int UNIT, class Codes>
static void multiply(const Codes* codes, const Factors* factors, const Rounded* x, int64_t units,
                     bool plus, float* acc) {
    v16 sums[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = load(acc + (r * C + c) * 16);
    for (int64_t u = 0; u < units; u++) {
        v16i dots[R][C];
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) dots[r][c] = v16i{} + x[r].start[u];
        int64_t cell = u * UNIT / CELL;
        for (int i = 0; i < UNIT / 4; i++) {
            // half a cell may be the second
            v16u w[C];
            for (int c = 0; c < C; c++)
                w[c] = UNIT == CELL || u % 2 == 0 ? codes[c].four(cell, i) : codes[c].four(cell, i + 4);
            for (int r = 0; r < R; r++) {
                uint32_t four;
                memcpy(&four, x[r].q + u * UNIT + 4 * i, 4);
                for (int c = 0; c < C; c++) dots[r][c] = add_fours(dots[r][c], w[c], four);
            }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                v16 times = factors[c].times[u] * x[r].d[cell];
                sums[r][c] += to_floats(dots[r][c]) * times;
                if (plus) sums[r][c] += factors[c].plus[u] * x[r].sum[u];
            }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(acc + (r * C + c) * 16, sums[r][c]);
}

// The same in float32.
template <int R, int C, int UNIT, class Codes, class Values>
static void multiply(const Codes* codes, const Factors* factors, const Floats<Values>* x,
                     int64_t units, bool plus, float* acc) {
    v16 sums[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) sums[r][c] = load(acc + (r * C + c) * 16);
    for (int64_t u = 0; u < units; u++) {
        v16 parts[R][C][2] = {};
        for (int i = 0; i < UNIT / 4; i++) {
            v16u four[C];
            for (int c = 0; c < C; c++) four[c] = codes[c].words[u * UNIT / 4 + i];
            for (int j = 0; j < 4; j++)
                for (int c = 0; c < C; c++) {
                    v16 value = Values::of((four[c] >> (8 * j)) & 255u, x->values);
                    for (int r = 0; r < R; r++)
                        parts[r][c][j % 2] += value * x[r].x[u * UNIT + 4 * i + j];
                }
        }
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) {
                sums[r][c] += (parts[r][c][0] + parts[r][c][1]) * factors[c].times[u];
                if (plus) sums[r][c] += factors[c].plus[u] * x[r].sum[u];
            }
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(acc + (r * C + c) * 16, sums[r][c]);
}

// The same for few rows of x, which lie one after the other.
template <int UNIT, class X, class Codes>
static void multiply_few(const Codes& codes, const Factors& factors, const X* x, int64_t rows,
                         int64_t units, bool plus, float* acc) {
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) multiply<4, 1, UNIT>(&codes, &factors, x + r, units, plus, acc + r * 16);
    for (; r + 2 <= rows; r += 2) multiply<2, 1, UNIT>(&codes, &factors, x + r, units, plus, acc + r * 16);
    if (r < rows) multiply<1, 1, UNIT>(&codes, &factors, x + r, units, plus, acc + r * 16);
}

// The same for any number of rows, which lie one after the other.
template <int UNIT, int C, class X>
static void multiply_many(const Codes<8, false>* codes, const Factors* factors, const X* x,
                          int64_t rows, int64_t units, bool plus, float* acc) {
    constexpr int R = X::TOGETHER;
    int64_t r = 0;
    for (; r + R <= rows; r += R)
        multiply<R, C, UNIT>(codes, factors, x + r, units, plus, acc + r * 16 * C);
    for (; r + 2 <= rows; r += 2)
        multiply<2, C, UNIT>(codes, factors, x + r, units, plus, acc + r * 16 * C);
    if (r < rows)
        multiply<1, C, UNIT>(codes, factors, x + r, units, plus, acc + r * 16 * C);
}

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
static void multiply_strip(const Weights& w, int64_t expert, int64_t first, const X* x, int64_t all,
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
            with_codes(w, room.words, bytes, [&](auto codes) {
                if constexpr (C == 1 && X::BYTES) {
                    auto run = unit == 16 ? multiply_few<16, X, decltype(codes)>
                                          : multiply_few<32, X, decltype(codes)>;
                    run(codes, room.factors[0], x, rows, units, plus, acc);
                } else {
                    for (int64_t i = 0; i < cells * 8; i++)
                        room.codes[c][i] = codes.four(i / 8, i % 8);
                }
            });
            laid[c] = {room.codes[c], nullptr};
        }
        if constexpr (C > 1 || !X::BYTES) {
            auto run = unit == 16 ? multiply_many<16, C, X> : multiply_many<32, C, X>;
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
    int64_t coarse = row * (w.scale.many / w.together), fine = w.together;  // d and m, and for how long
    for (int64_t cell = 0; cell < cells; cell++) {
        uint8_t codes[CELL];
        unpack_cell<BITS>(w, row * cells + cell, codes);
        for (int h = 0; h < 2; h++) {
            if (left == 0) {
                if (fine-- == 0) coarse++, fine = w.together - 1;
                times = splat(w.d.data ? one(w.scale, group) * one(w.d, coarse) : one(w.scale, group));
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
