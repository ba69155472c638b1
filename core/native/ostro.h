// Shared header of native kernels: element types, vectors of 16 floats, functions on them.
//
// A vector is one AVX-512 register, or two halves of eight: GCC spills a vector that is wider than
// the CPU's registers to memory. Intrinsics are used only if plain C++ does not compile to the
// instruction, and each has a plain C++ fallback.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__) || defined(__AVX2__) || defined(__F16C__)
#include <immintrin.h>
#endif

typedef float v8 __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));
typedef uint16_t v8h __attribute__((vector_size(16)));
typedef float v4 __attribute__((vector_size(16)));

#ifdef __AVX512F__

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef uint16_t v16h __attribute__((vector_size(32)));

static inline v16 select(v16i mask, v16 a, v16 b) { return mask ? a : b; }
static inline v16u select(v16i mask, v16u a, v16u b) { return mask ? a : b; }

#else

template <class V, class E>
struct Two {
    V low, high;
    E& operator[](int i) { return reinterpret_cast<E*>(this)[i]; }
    E operator[](int i) const { return reinterpret_cast<const E*>(this)[i]; }
};
typedef Two<v8, float> v16;
typedef Two<v8i, int32_t> v16i;
typedef Two<v8u, uint32_t> v16u;

#define OPERATOR(op)                                                        \
    template <class V, class E>                                             \
    static inline Two<V, E> operator op(Two<V, E> a, Two<V, E> b) {         \
        return {a.low op b.low, a.high op b.high};                          \
    }                                                                       \
    template <class V, class E>                                             \
    static inline Two<V, E> operator op(Two<V, E> a, E b) {                 \
        return {a.low op b, a.high op b};                                   \
    }                                                                       \
    template <class V, class E>                                             \
    static inline Two<V, E> operator op(E a, Two<V, E> b) {                 \
        return {a op b.low, a op b.high};                                   \
    }                                                                       \
    template <class V, class E, class B>                                    \
    static inline Two<V, E>& operator op##=(Two<V, E>& a, B b) {            \
        return a = a op b;                                                  \
    }
OPERATOR(+) OPERATOR(-) OPERATOR(*) OPERATOR(/) OPERATOR(&) OPERATOR(|)
#undef OPERATOR

static inline v16 operator-(v16 a) { return {-a.low, -a.high}; }
static inline v16u operator<<(v16u a, int n) { return {a.low << n, a.high << n}; }
static inline v16u operator>>(v16u a, int n) { return {a.low >> n, a.high >> n}; }
static inline v16i operator>(v16 a, v16 b) { return {a.low > b.low, a.high > b.high}; }
static inline v16i operator<(v16 a, v16 b) { return {a.low < b.low, a.high < b.high}; }
static inline v16i operator==(v16u a, uint32_t b) { return {a.low == b, a.high == b}; }
static inline v16i operator!=(v16 a, v16 b) { return {a.low != b.low, a.high != b.high}; }

static inline v16 select(v16i mask, v16 a, v16 b) {
    return {mask.low ? a.low : b.low, mask.high ? a.high : b.high};
}
static inline v16u select(v16i mask, v16u a, v16u b) {
    return {mask.low ? a.low : b.low, mask.high ? a.high : b.high};
}

#endif

struct bf16 {
    uint16_t bits;
};
typedef _Float16 f16;

// Call a function whose arguments are 64-bit words: a small argument is in the first bytes of its
// word.
template <class A>
static inline A from_word(const int64_t& word) {
    A argument;
    memcpy(&argument, &word, sizeof argument);
    return argument;
}

template <class... A, size_t... I>
static inline void call(void (*function)(A...), const int64_t* words, std::index_sequence<I...>) {
    function(from_word<A>(words[I])...);
}

template <class... A>
static inline void call(void (*function)(A...), const int64_t* words) {
    call(function, words, std::index_sequence_for<A...>());
}

// Whether sequence s of a `StateLayout` is idle: it has no rows, or its last one saves no state.
static inline bool is_idle(const int64_t* starts, const int64_t* saved, int64_t s) {
    return starts[s] == starts[s + 1] || saved[starts[s + 1] - 1] < 0;
}

// The first row from `row` on whose state is saved, in a sequence that is not idle.
static inline int64_t next_saved(const int64_t* saved, int64_t row) {
    while (saved[row] < 0) row++;
    return row;
}

// Export a function template `name<T>` for one element type under C names: its address, and a
// function of the same arguments as words.
#define EXPORT_ONE(name, T, suffix)                                                              \
    extern "C" decltype(&name<T>) name##_##suffix##_address() { return &name<T>; }               \
    extern "C" void name##_##suffix##_words(const int64_t* words) { call(&name<T>, words); }

// The same for all element types, as name_f32_address and so on.
#define EXPORT(name)             \
    EXPORT_ONE(name, float, f32) \
    EXPORT_ONE(name, bf16, bf16) \
    EXPORT_ONE(name, f16, f16)

static inline v16 splat(float x) { return v16{} + x; }

// GCC copies a vector of two halves through memory: the functions below name its halves.
#ifdef __AVX512F__
static inline v16 as_floats(v16u bits) { return (v16)bits; }
static inline v16u as_bits(v16 x) { return (v16u)x; }
#else
static inline v16 as_floats(v16u bits) { return {(v8)bits.low, (v8)bits.high}; }
static inline v16u as_bits(v16 x) { return {(v8u)x.low, (v8u)x.high}; }
#endif

// Load 16 elements, unaligned, as float32.
static inline v16 load(const float* p) {
    v16 x;
#ifdef __AVX512F__
    memcpy(&x, p, sizeof x);
#else
    memcpy(&x.low, p, sizeof x.low);
    memcpy(&x.high, p + 8, sizeof x.high);
#endif
    return x;
}

#ifdef __AVX512F__

static inline v16 load(const bf16* p) {
    v16h half;
    memcpy(&half, p, sizeof half);
    return as_floats(__builtin_convertvector(half, v16u) << 16);
}

static inline v16 load(const f16* p) {
    return (v16)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}

#else

static inline v16 load(const bf16* p) {
    v8h half[2];
    memcpy(half, p, sizeof half);
    v16u wide = {__builtin_convertvector(half[0], v8u), __builtin_convertvector(half[1], v8u)};
    return as_floats(wide << 16);
}

static inline v16 load(const f16* p) {
    v16 x;
#ifdef __F16C__
    x.low = (v8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
    x.high = (v8)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)));
#else
    for (int i = 0; i < 16; i++) x[i] = (float)p[i];
#endif
    return x;
}

#endif

// Interpret the low 16 bits of words as float16.
static inline v16 from_halves(v16u x) {
#ifdef __AVX512F__
    return (v16)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)x));
#else
    v16 y;
    for (int i = 0; i < 16; i++) {
        uint16_t bits = (uint16_t)x[i];
        f16 half;
        memcpy(&half, &bits, sizeof half);
        y[i] = (float)half;
    }
    return y;
#endif
}

// Extend 16 bytes to words: one instruction, which compilers do not generate by themselves.
static inline v16u widen(const uint8_t* p) {
#if defined(__AVX512F__)
    return (v16u)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return {(v8u)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)),
            (v8u)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
#else
    v16u x;
    for (int i = 0; i < 16; i++) x[i] = p[i];
    return x;
#endif
}

static inline v16i widen(const int8_t* p) {
#if defined(__AVX512F__)
    return (v16i)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return {(v8i)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)),
            (v8i)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8)))};
#else
    v16i x;
    for (int i = 0; i < 16; i++) x[i] = p[i];
    return x;
#endif
}

// Round to nearest, ties to even; NaN stays NaN.
static inline void store(float* p, v16 x) {
#ifdef __AVX512F__
    memcpy(p, &x, sizeof x);
#else
    memcpy(p, &x.low, sizeof x.low);
    memcpy(p + 8, &x.high, sizeof x.high);
#endif
}

static inline void store(bf16* p, v16 x) {
    v16u bits = as_bits(x);
    v16u rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    v16u kept = select(x != x, v16u{} + 0x7fc0u, rounded);
#ifdef __AVX512F__
    v16h half = __builtin_convertvector(kept, v16h);
#else
    v8h half[2] = {__builtin_convertvector(kept.low, v8h), __builtin_convertvector(kept.high, v8h)};
#endif
    memcpy(p, &half, sizeof half);
}

static inline void store(f16* p, v16 x) {
#ifdef __AVX512F__
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph((__m256)x.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph((__m256)x.high, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < 16; i++) p[i] = (f16)x[i];
#endif
}

// The same for the tail of a row with `left` elements; if fewer than 16, missing ones read as 0.
template <class T>
static inline v16 load(const T* p, int64_t left) {
    if (left >= 16) return load(p);
    T some[16] = {};
    memcpy(some, p, left * sizeof(T));
    return load(some);
}

template <class T>
static inline void store(T* p, v16 x, int64_t left) {
    if (left >= 16) return store(p, x);
    T some[16];
    store(some, x);
    memcpy(p, some, left * sizeof(T));
}

template <class T>
static inline float load_one(const T* p) {
    return load(p, 1)[0];
}

static inline v16 to_floats(v16i x) {
#ifdef __AVX512F__
    return __builtin_convertvector(x, v16);
#else
    return {__builtin_convertvector(x.low, v8), __builtin_convertvector(x.high, v8)};
#endif
}

// The same for words below 2^31.
static inline v16 to_floats(v16u x) {
#ifdef __AVX512F__
    return __builtin_convertvector((v16i)x, v16);
#else
    return {__builtin_convertvector((v8i)x.low, v8), __builtin_convertvector((v8i)x.high, v8)};
#endif
}

// Store the low byte of each word.
static inline void store_bytes(int8_t* p, v16u x) {
#ifdef __AVX512F__
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)x));
#elif defined(__AVX2__)
    __m256i byte = _mm256_set1_epi32(255);
    __m256i mixed = _mm256_packus_epi32(_mm256_and_si256((__m256i)x.low, byte),
                                        _mm256_and_si256((__m256i)x.high, byte));
    __m256i words = _mm256_permute4x64_epi64(mixed, 0xd8);
    __m128i first = _mm256_castsi256_si128(words), second = _mm256_extracti128_si256(words, 1);
    _mm_storeu_si128((__m128i*)p, _mm_packus_epi16(first, second));
#else
    for (int i = 0; i < 16; i++) p[i] = (int8_t)x[i];
#endif
}

// An optimization barrier: keeps the compiler from fusing the product x with the next sum.
static inline v16 prevent_fma(v16 x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x));
#elif defined(__AVX__)
    asm("" : "+x"(x.low), "+x"(x.high));
#else
    asm("" : "+m"(x));
#endif
    return x;
}

// The two halves of a vector.
struct Halves {
    v8 low, high;
};

static inline Halves halves(v16 x) {
#ifdef __AVX512F__
    Halves parts;
    memcpy(&parts, &x, sizeof x);
    return parts;
#else
    return {x.low, x.high};
#endif
}

static inline float sum(v16 x) {
    Halves parts = halves(x);
    v8 a = parts.low + parts.high;
    v4 b[2];
    memcpy(b, &a, sizeof b);
    b[0] += b[1];
    return (b[0][0] + b[0][2]) + (b[0][1] + b[0][3]);
}

static inline v16 max(v16 a, v16 b) { return select(a > b, a, b); }

static inline float reduce_max(v16 x) {
    Halves parts = halves(x);
    v8 a = parts.low > parts.high ? parts.low : parts.high;
    v4 b[2];
    memcpy(b, &a, sizeof b);
    b[0] = b[0] > b[1] ? b[0] : b[1];
    float low = b[0][0] > b[0][2] ? b[0][0] : b[0][2];
    float high = b[0][1] > b[0][3] ? b[0][1] : b[0][3];
    return low > high ? low : high;
}

// e^x within 2 ulp: 2^n times a polynomial on [-ln2/2, ln2/2]; 0 below -87.3.
static inline v16 exp(v16 x) {
    v16 shifted = x * 1.44269504f + 12582912.0f;
    v16 n = shifted - 12582912.0f;
    v16 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    v16 y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * r * r + r + 1.0f;
    v16u power = (as_bits(shifted) - 0x4b400000u + 127u) << 23;
    y = y * as_floats(power);
    y = select(x < splat(-87.3f), v16{}, y);
    return select(x > splat(88.0f), splat(INFINITY), y);
}

static inline v16 tanh(v16 x) { return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f); }

// acc + the 16 dot products of pairs of bfloat16; a and b hold 32 elements each.
static inline v16 dot2_add(v16 acc, v16u a, v16u b) {
#ifdef __AVX512BF16__
    return (v16)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
    v16 even = as_floats(a << 16) * as_floats(b << 16);
    return acc + even + as_floats(a & 0xffff0000u) * as_floats(b & 0xffff0000u);
#endif
}

// acc + 16 dot products of four bytes: four unsigned bytes of a, the four signed bytes of b.
static inline v16i dot4_add(v16i acc, v16u a, uint32_t b) {
#if defined(__AVX512VNNI__)
    return (v16i)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, _mm512_set1_epi32((int)b));
#elif defined(__AVX512BW__)
    __m512i all = _mm512_set1_epi32((int)b), low = _mm512_set1_epi16(255);
    __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(all, 8), 8), odd = _mm512_srai_epi16(all, 8);
    __m512i first = _mm512_madd_epi16(_mm512_and_si512((__m512i)a, low), even);
    __m512i second = _mm512_madd_epi16(_mm512_srli_epi16((__m512i)a, 8), odd);
    return (v16i)_mm512_add_epi32((__m512i)acc, _mm512_add_epi32(first, second));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    __m256i all = _mm256_set1_epi32((int)b), low = _mm256_set1_epi16(255);
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8), odd = _mm256_srai_epi16(all, 8);
    __m256i from[2] = {(__m256i)a.low, (__m256i)a.high};
    __m256i to[2] = {(__m256i)acc.low, (__m256i)acc.high};
    for (int i = 0; i < 2; i++) {
        to[i] = _mm256_add_epi32(to[i], _mm256_madd_epi16(_mm256_and_si256(from[i], low), even));
        to[i] = _mm256_add_epi32(to[i], _mm256_madd_epi16(_mm256_srli_epi16(from[i], 8), odd));
    }
    return {(v8i)to[0], (v8i)to[1]};
#else
    v16u sums;
    memcpy(&sums, &acc, sizeof acc);
    for (int i = 0; i < 4; i++) {
        uint32_t signed_byte = (uint32_t)(int32_t)(int8_t)(b >> 8 * i);
        sums += (a >> 8 * i & 255u) * signed_byte;
    }
    memcpy(&acc, &sums, sizeof acc);
    return acc;
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// An optimization barrier: GCC postpones long sums, and spills the products.
template <class V>
static inline void finish_sums(V& low, V& high) {
    asm("" : "+x"(low), "+x"(high));
}
#endif

// Sums of the products of `dot4_add`, of which a has no byte above MAX and b none below -127. Up to
// WORDS products may be added before `total`.
template <int MAX, class = void>
struct DotSums {
    static constexpr int WORDS = 8;
    v16i sums;

    void begin(v16i start) { sums = start; }
    void add(v16u a, uint32_t b) {
        sums = dot4_add(sums, a, b);
#if defined(__AVX2__) && !defined(__AVX512F__)
        finish_sums(sums.low, sums.high);
#endif
    }
    v16i total() const { return sums; }
};

// Without VNNI, one instruction adds two products in 16 bits, which 7-bit codes do not exceed.
#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
template <int MAX>
struct DotSums<MAX, std::enable_if_t<(MAX < 128)>> {
    static constexpr int WORDS = std::min(8, 32767 / (2 * 127 * MAX));
    v16i start;
    __m512i sums;

    void begin(v16i from) { start = from, sums = __m512i{}; }
    void add(v16u a, uint32_t b) {
        __m512i products = _mm512_maddubs_epi16((__m512i)a, _mm512_set1_epi32((int)b));
        sums = _mm512_add_epi16(sums, products);
    }
    v16i total() const { return start + (v16i)_mm512_madd_epi16(sums, _mm512_set1_epi16(1)); }
};
#elif defined(__AVX2__) && !defined(__AVX512F__)
template <int MAX>
struct DotSums<MAX, std::enable_if_t<(MAX < 128)>> {
    static constexpr int WORDS = std::min(8, 32767 / (2 * 127 * MAX));
    v16i start;
    __m256i low, high;

    void begin(v16i from) { start = from, low = high = __m256i{}; }
    void add(v16u a, uint32_t b) {
        __m256i all = _mm256_set1_epi32((int)b);
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16((__m256i)a.low, all));
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16((__m256i)a.high, all));
        if (WORDS > 2) finish_sums(low, high);
    }
    v16i total() const {
        __m256i one = _mm256_set1_epi16(1);
        v16i sums = {(v8i)_mm256_madd_epi16(low, one), (v8i)_mm256_madd_epi16(high, one)};
        return start + sums;
    }
};
#endif

// Transpose 16 words of 16 rows, `row` bytes apart, into 16 vectors of one word of every row.
static inline void load_transposed(const uint8_t* p, int64_t row, v16u* to) {
#ifdef __AVX512F__
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        __m512i one = _mm512_loadu_si512(p + i * row), two = _mm512_loadu_si512(p + (i + 1) * row);
        a[i] = _mm512_unpacklo_epi32(one, two);
        a[i + 1] = _mm512_unpackhi_epi32(one, two);
    }
    for (int i = 0; i < 16; i++) {
        int from = i / 4 * 4 + i % 4 / 2;
        b[i] = i % 2 ? _mm512_unpackhi_epi64(a[from], a[from + 2])
                     : _mm512_unpacklo_epi64(a[from], a[from + 2]);
    }
    // b[4 i + j] contains the words j, j + 4, j + 8, j + 12 of rows 4 i .. + 3
    for (int j = 0; j < 4; j++) {
        __m512i even = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
        __m512i odd = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
        __m512i more_even = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
        __m512i more_odd = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
        to[j] = (v16u)_mm512_shuffle_i32x4(even, more_even, 0x88);
        to[j + 4] = (v16u)_mm512_shuffle_i32x4(odd, more_odd, 0x88);
        to[j + 8] = (v16u)_mm512_shuffle_i32x4(even, more_even, 0xdd);
        to[j + 12] = (v16u)_mm512_shuffle_i32x4(odd, more_odd, 0xdd);
    }
#else
    uint32_t words[16][16];
    for (int r = 0; r < 16; r++)
        for (int w = 0; w < 16; w++) memcpy(&words[w][r], p + r * row + 4 * w, 4);
    memcpy(to, words, sizeof words);
#endif
}
