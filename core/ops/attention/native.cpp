// Attention over cache pages. `decode`, one row per sequence: keys are read in memory order, each
// once for all query heads of its group. `prefill_bf16`, many rows: tiles of rows times keys and
// values packed in pairs, with the online softmax of flash attention (Dao et al. 2022).
#include "ostro.h"

#include <algorithm>
#include <vector>

enum { KEYS = 64, HEADS = 4, ROWS = 32, GROUP = 8, STRETCH = 256 };
enum { FLOATS, INT8, FLOAT8 };  // element types of a cache

struct i8 { int8_t bits; };
struct f8 { int8_t bits; };

// Load 16 bytes x, sign-extended, as the float16 with the bits (x << up & mask) + more.
static inline v16 load_halves(const void* p, int16_t up, int16_t mask, int16_t more) {
    int16_t bits __attribute__((vector_size(32)));
#if defined(__AVX2__) && defined(__F16C__)
    bits = (decltype(bits))_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p));
#else
    for (int i = 0; i < 16; i++) bits[i] = ((const int8_t*)p)[i];
#endif
    bits = (bits << up & mask) + more;
    f16 x[16];
    memcpy(x, &bits, sizeof x);
    return load(x);
}

// Adjacent float16 numbers from 1024 to 2048 differ by 1: adding x to the bits of 1536, 0x6600,
// gives 1536 + x.
static inline v16 load(const i8* p) { return load_halves(p, 0, -1, 0x6600) - 1536.0f; }

// float16 has one more exponent bit: with the bits of a float8 below it, its value is 2^8 times
// smaller.
static inline v16 load(const f8* p) { return load_halves(p, 7, ~0x4000, 0) * 256.0f; }

// A layer's cache: k [blocks, kv, block, d]; values are v_row apart, since they may be the first dv
// dimensions of the keys. Scales [blocks, kv, block], null if unscaled.
struct Pages {
    const void *k, *v;
    const float *k_scales, *v_scales;
    int64_t kv, block, d, dv, v_row;

    int64_t place(const int32_t* table, int64_t kv_head, int64_t at) const {
        return (table[at / block] * kv + kv_head) * block + at % block;
    }
};

// Parameters of the scores and the softmax, the same for every row.
struct Rule {
    float scale, softcap;
    const float *sinks, *alibi;
    int64_t window;
};

static inline void finish_scores(float* s, int64_t n, const Rule& rule, int64_t head,
                                 int64_t distance, const float* units = nullptr) {
    for (int64_t i = 0; i < n; i += 16) {
        v16 x = load(s + i) * rule.scale;
        if (units) x *= load(units + i, n - i);
        if (rule.softcap > 0) x = rule.softcap * tanh(x / rule.softcap);
        if (rule.alibi)
            for (int j = 0; j < 16; j++) x[j] += rule.alibi[head] * (distance + i + j);
        store(s + i, x);
    }
}

// The online softmax of one row: replaces the scores s [n], n <= KEYS, by weights, times the scales
// of the values, `units`. Returns the factor for the sums of earlier keys.
static inline float weigh(float* s, int64_t n, float& most, float& total,
                          const float* units = nullptr) {
    for (int64_t i = n; i % 16; i++) s[i] = -INFINITY;
    v16 high = splat(-INFINITY);
    for (int64_t i = 0; i < n; i += 16) high = max(high, load(s + i));
    float now = std::max(most, reduce_max(high));
    if (now == -INFINITY) {
        for (int64_t i = 0; i < n; i += 16) store(s + i, v16{});
        return 1.0f;
    }
    v16 sums = {};
    for (int64_t i = 0; i < n; i += 16) {
        v16 w = exp(load(s + i) - now);
        sums += w;
        store(s + i, units ? w * load(units + i, n - i) : w);
    }
    float shrink = most == -INFINITY ? 0.0f : std::exp(most - now);
    total = total * shrink + sum(sums);
    most = now;
    return shrink;
}

// Prefetch a row: pages are too short for the hardware prefetcher.
template <class T>
static inline void expect(const T* row, int64_t d) {
    for (int64_t i = 0; i < d; i += 64 / sizeof(T)) __builtin_prefetch(row + i);
}

// Attend with N heads of one row to keys first..last of one kv head: acc [N, dv], most, total [N].
template <class T, int N>
static void attend_row(const float* q, int64_t wide, const Pages& pages, const int32_t* table,
                       int64_t kv_head, int64_t first, int64_t last, int64_t position, int64_t head,
                       const Rule& rule, float* acc, int64_t acc_wide, float* most, float* total) {
    int64_t block = pages.block, d = pages.d, dv = pages.dv, v_row = pages.v_row;
    for (int64_t at = first; at < last;) {
        int64_t n = std::min<int64_t>(std::min<int64_t>(KEYS, block - at % block), last - at);
        int64_t place = pages.place(table, kv_head, at);
        const T* keys = (const T*)pages.k + place * d;
        const T* values = (const T*)pages.v + place * v_row;
        const float* k_units = pages.k_scales ? pages.k_scales + place : nullptr;
        const float* v_units = pages.v_scales ? pages.v_scales + place : nullptr;
        int64_t then = at + n < last ? at + n : at;
        const T* next = (const T*)pages.k + pages.place(table, kv_head, then) * d;
        alignas(64) float s[N][KEYS];
        for (int64_t key = 0; key < n; key++) {
            expect(values + key * v_row, dv);
            v16 dot[N] = {};
            for (int64_t i = 0; i < d; i += 16) {
                v16 x = load(keys + key * d + i, d - i);
                for (int j = 0; j < N; j++) dot[j] += x * load(q + j * wide + i);
            }
            for (int j = 0; j < N; j++) s[j][key] = sum(dot[j]);
        }
        float shrink[N];
        for (int j = 0; j < N; j++) {
            finish_scores(s[j], n, rule, head + j, at - position, k_units);
            shrink[j] = weigh(s[j], n, most[j], total[j], v_units);
        }
        for (int64_t i = 0; i < dv; i += 32) {
            v16 low[N], high[N];
            for (int j = 0; j < N; j++) {
                low[j] = load(acc + j * acc_wide + i) * shrink[j];
                high[j] = load(acc + j * acc_wide + i + 16) * shrink[j];
            }
            int64_t left = dv - i;
            for (int64_t key = 0; key < n; key++) {
                if (i == 0) expect(next + key * d, d);
                v16 x = load(values + key * v_row + i, left);
                v16 y = left > 16 ? load(values + key * v_row + i + 16, left - 16) : v16{};
                for (int j = 0; j < N; j++) {
                    low[j] += x * s[j][key];
                    high[j] += y * s[j][key];
                }
            }
            for (int j = 0; j < N; j++) {
                store(acc + j * acc_wide + i, low[j]);
                store(acc + j * acc_wide + i + 16, high[j]);
            }
        }
        at += n;
    }
}

template <class T>
static decltype(&attend_row<T, 1>) choose(int64_t heads) {
    return heads == HEADS ? attend_row<T, HEADS> : heads == 2 ? attend_row<T, 2> : attend_row<T, 1>;
}

// Attention of all sequences with one row: q [rows, heads, d] -> out [rows, heads, dv]. The caches
// have elements of T, or one-byte elements of type `stored` with scales. The keys are split into
// `cuts` parts, which threads compute independently; the second loop merges them.
template <class T>
void decode(const T* q, int64_t q_row, int64_t q_head, int64_t stored, const void* k_cache,
            const void* v_cache, const float* k_scales, const float* v_scales, const int32_t* table,
            int64_t table_row, const int32_t* starts, const int32_t* lengths, int64_t sequences,
            int64_t heads, int64_t kv, int64_t block, int64_t d, int64_t dv, int64_t v_row,
            float scale, int64_t window, float softcap, const float* sinks, const float* alibi,
            int64_t cuts, T* out) {
    if (!dv) return;  // `out` has no elements
    Rule rule = {scale, softcap, sinks, alibi, window};
    Pages pages = {k_cache, v_cache, k_scales, v_scales, kv, block, d, dv, v_row};
    int64_t group = heads / kv, wide = (d + 15) / 16 * 16, acc_wide = (dv + 31) / 32 * 32;
    int64_t part = acc_wide + 2;  // acc, most, total
    // Reused by later calls. The parallel region needs the pointer: `kept` is one per thread.
    static thread_local std::vector<float> kept;
    kept.resize(sequences * heads * cuts * part);
    float* parts = kept.data();
#pragma omp parallel
    {
        std::vector<float> rows(group * wide), acc(group * acc_wide), most(group), total(group);
#pragma omp for collapse(3) schedule(dynamic)
        for (int64_t s = 0; s < sequences; s++)
            for (int64_t kv_head = 0; kv_head < kv; kv_head++)
                for (int64_t cut = 0; cut < cuts; cut++) {
                    if (starts[s + 1] - starts[s] != 1 || lengths[s] == 0) continue;
                    int64_t low = window > 0 ? std::max<int64_t>(0, lengths[s] - window) : 0;
                    int64_t each = (lengths[s] - low + cuts - 1) / cuts;
                    int64_t first = low + cut * each;
                    int64_t last = std::min<int64_t>(first + each, lengths[s]);
                    for (int64_t j = 0; j < group; j++) {
                        const T* from = q + starts[s] * q_row + (kv_head * group + j) * q_head;
                        for (int64_t i = 0; i < wide; i += 16)
                            store(rows.data() + j * wide + i, load(from + i, std::max<int64_t>(0, d - i)));
                    }
                    std::fill(acc.begin(), acc.end(), 0.0f);
                    std::fill(most.begin(), most.end(), -INFINITY);
                    std::fill(total.begin(), total.end(), 0.0f);
                    // If the heads need several passes, each covers few keys at a time, so that
                    // later passes find them in the CPU cache.
                    int64_t stretch = group > HEADS ? STRETCH : last - first;
                    for (int64_t at = first; at < last; at += stretch)
                        for (int64_t j = 0; j < group;) {
                            int64_t n = group - j >= HEADS ? HEADS : group - j >= 2 ? 2 : 1;
                            auto run = stored == INT8     ? choose<i8>(n)
                                       : stored == FLOAT8 ? choose<f8>(n)
                                                          : choose<T>(n);
                            run(rows.data() + j * wide, wide, pages, table + s * table_row, kv_head, at,
                                std::min(at + stretch, last), lengths[s] - 1, kv_head * group + j,
                                rule, &acc[j * acc_wide], acc_wide, &most[j], &total[j]);
                            j += n;
                        }
                    for (int64_t j = 0; j < group; j++) {
                        float* to = parts + ((s * heads + kv_head * group + j) * cuts + cut) * part;
                        memcpy(to, &acc[j * acc_wide], acc_wide * sizeof(float));
                        to[acc_wide] = most[j];
                        to[acc_wide + 1] = total[j];
                    }
                }
#pragma omp for collapse(2) schedule(static)
        for (int64_t s = 0; s < sequences; s++)
            for (int64_t head = 0; head < heads; head++) {
                if (starts[s + 1] - starts[s] != 1) continue;
                T* to = out + (starts[s] * heads + head) * dv;
                if (lengths[s] == 0) {
                    for (int64_t i = 0; i < dv; i += 16) store(to + i, v16{}, dv - i);
                    continue;
                }
                const float* from = parts + (s * heads + head) * cuts * part;
                float most = sinks ? sinks[head] : -INFINITY;
                for (int64_t c = 0; c < cuts; c++)
                    most = std::max(most, from[c * part + acc_wide]);
                float total = sinks ? std::exp(sinks[head] - most) : 0.0f;
                for (int64_t c = 0; c < cuts; c++)
                    total += from[c * part + acc_wide + 1] *
                             std::exp(from[c * part + acc_wide] - most);
                for (int64_t i = 0; i < dv; i += 16) {
                    v16 y = {};
                    for (int64_t c = 0; c < cuts; c++)
                        y += load(from + c * part + i) * std::exp(from[c * part + acc_wide] - most);
                    store(to + i, y / total, dv - i);
                }
            }
    }
}
EXPORT(decode)

// Dequantize one-byte elements: positions first..last of the pages `ids` of a cache
// [blocks, kv, block, d] -> out [kv, last - first, d].
template <class T>
void unpack(int64_t stored, const void* cache, const float* scales, const int32_t* ids,
            int64_t first, int64_t last, int64_t kv, int64_t block, int64_t d, T* out) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t head = 0; head < kv; head++)
        for (int64_t page = first / block; page < (last + block - 1) / block; page++) {
            int64_t at = std::max(first, page * block), n = std::min(last, (page + 1) * block) - at;
            int64_t place = (ids[page] * kv + head) * block + at % block;
            T* to = out + (head * (last - first) + at - first) * d;
            for (int64_t j = 0; j < n; j++)
                for (int64_t i = 0; i < d; i += 16) {
                    int64_t from = (place + j) * d + i;
                    v16 x = stored == INT8 ? load((const i8*)cache + from, d - i)
                                           : load((const f8*)cache + from, d - i);
                    store(to + j * d + i, x * scales[place + j], d - i);
                }
        }
}
EXPORT(unpack)

// acc [8, 32] += a [8, 2 * pairs] (rows a_row apart) x b [pairs, 16, 2] at b and at b + b_step.
static inline void multiply(const bf16* a, int64_t a_row, const uint32_t* b, int64_t b_step,
                            int64_t b_row, int64_t pairs, v16 (&low)[GROUP], v16 (&high)[GROUP]) {
    for (int64_t p = 0; p < pairs; p++) {
        v16u x, y;
        memcpy(&x, b + p * b_row, sizeof x);
        memcpy(&y, b + p * b_row + b_step, sizeof y);
        for (int r = 0; r < GROUP; r++) {
            uint32_t pair;
            memcpy(&pair, a + r * a_row + 2 * p, sizeof pair);
            v16u both = v16u{} + pair;
            low[r] = dot2_add(low[r], both, x);
            high[r] = dot2_add(high[r], both, y);
        }
    }
}

// Attention of the last `rows` positions of one sequence of `length` tokens: q [rows, heads, d] ->
// out [rows, heads, dv]; keys and values [kv, length, d or dv] are contiguous.
extern "C" void prefill_bf16(const bf16* q, int64_t q_row, int64_t q_head, const bf16* keys,
                             const bf16* values, int64_t rows, int64_t length, int64_t heads,
                             int64_t kv, int64_t d, int64_t dv, float scale, int64_t window,
                             float softcap, const float* sinks, const float* alibi, bf16* out) {
    Rule rule = {scale, softcap, sinks, alibi, window};
    int64_t group = heads / kv, pairs = (d + 1) / 2, wide = (dv + 31) / 32 * 32;
    int64_t chunks = (length + KEYS - 1) / KEYS, padded = chunks * KEYS;
    int64_t each = std::max<int64_t>(1, ROWS / group);  // positions of a tile
    int64_t taken = std::min<int64_t>(group, ROWS);     // query heads of a tile
    int64_t tiles = (rows + each - 1) / each, turns = (group + taken - 1) / taken;
    // Keys as [chunk, pair of dimensions, key], values as [pair of keys, dimension]: each element
    // is the two bfloat16 operands of one lane of dot2_add.
    std::vector<uint32_t> k_pairs(chunks * pairs * KEYS), v_pairs(padded / 2 * wide);
    for (int64_t kv_head = 0; kv_head < kv; kv_head++) {
        const bf16* k = keys + kv_head * length * d;
        const bf16* v = values + kv_head * length * dv;
#pragma omp parallel
        {
#pragma omp for schedule(static)
            for (int64_t chunk = 0; chunk < chunks; chunk++)
                for (int64_t j = 0; j < KEYS; j++) {
                    int64_t key = chunk * KEYS + j;
                    for (int64_t p = 0; p < pairs; p++) {
                        uint32_t pair = 0;
                        if (key < length)
                            memcpy(&pair, k + key * d + 2 * p, 2 * p + 1 < d ? 4 : 2);
                        k_pairs[(chunk * pairs + p) * KEYS + j] = pair;
                    }
                }
#pragma omp for schedule(static)
            for (int64_t key = 0; key < padded; key += 2)
                for (int64_t i = 0; i < wide; i++) {
                    uint32_t a = key < length && i < dv ? v[key * dv + i].bits : 0;
                    uint32_t b = key + 1 < length && i < dv ? v[(key + 1) * dv + i].bits : 0;
                    v_pairs[key / 2 * wide + i] = a | b << 16;
                }
            std::vector<bf16> x(ROWS * 2 * pairs), w(ROWS * KEYS);
            std::vector<float> acc(ROWS * wide), s(ROWS * KEYS);
            float most[ROWS], total[ROWS], shrink[ROWS];
#pragma omp for collapse(2) schedule(dynamic)
            for (int64_t tile = 0; tile < tiles; tile++)
                for (int64_t turn = 0; turn < turns; turn++) {
                    // Later tiles have more keys: start them first.
                    int64_t start = (tiles - 1 - tile) * each;
                    int64_t n = std::min(each, rows - start);
                    int64_t head = kv_head * group + turn * taken;
                    int64_t many = std::min(taken, group - turn * taken);
                    std::fill(x.begin(), x.end(), bf16{0});
                    std::fill(acc.begin(), acc.end(), 0.0f);
                    std::fill(most, most + ROWS, -INFINITY);
                    std::fill(total, total + ROWS, 0.0f);
                    for (int64_t r = 0; r < n * many; r++)
                        memcpy(&x[r * 2 * pairs],
                               q + (start + r / many) * q_row + (head + r % many) * q_head,
                               d * sizeof(bf16));
                    int64_t before = length - rows;  // positions before the first row
                    int64_t top = before + start + n;
                    int64_t low = window > 0 ? std::max<int64_t>(0, before + start + 1 - window) : 0;
                    for (int64_t at = low / KEYS * KEYS; at < top; at += KEYS) {
                        const uint32_t* kb = &k_pairs[at * pairs];
                        for (int64_t r = 0; r < ROWS; r += GROUP)
                            for (int64_t j = 0; j < KEYS; j += 32) {
                                v16 a[GROUP] = {}, b[GROUP] = {};
                                multiply(&x[r * 2 * pairs], 2 * pairs, kb + j, 16, KEYS, pairs, a, b);
                                for (int i = 0; i < GROUP; i++) {
                                    store(&s[(r + i) * KEYS + j], a[i]);
                                    store(&s[(r + i) * KEYS + j + 16], b[i]);
                                }
                            }
                        for (int64_t r = 0; r < ROWS; r++) {
                            float* row = &s[r * KEYS];
                            shrink[r] = 1.0f;
                            if (r < n * many) {
                                int64_t position = before + start + r / many;
                                finish_scores(row, KEYS, rule, head + r % many, at - position);
                                for (int64_t j = std::max<int64_t>(0, position + 1 - at); j < KEYS; j++)
                                    row[j] = -INFINITY;
                                if (window > 0)
                                    for (int64_t j = 0; j < std::min<int64_t>(KEYS, position + 1 - window - at); j++)
                                        row[j] = -INFINITY;
                                shrink[r] = weigh(row, KEYS, most[r], total[r]);
                            }
                            for (int64_t j = 0; j < KEYS; j += 16)
                                store(&w[r * KEYS + j], r < n * many ? load(row + j) : v16{});
                        }
                        const uint32_t* vb = &v_pairs[at / 2 * wide];
                        for (int64_t r = 0; r < ROWS; r += GROUP)
                            for (int64_t i = 0; i < wide; i += 32) {
                                v16 a[GROUP], b[GROUP];
                                for (int j = 0; j < GROUP; j++) {
                                    a[j] = load(&acc[(r + j) * wide + i]) * shrink[r + j];
                                    b[j] = load(&acc[(r + j) * wide + i + 16]) * shrink[r + j];
                                }
                                multiply(&w[r * KEYS], KEYS, vb + i, 16, wide, KEYS / 2, a, b);
                                for (int j = 0; j < GROUP; j++) {
                                    store(&acc[(r + j) * wide + i], a[j]);
                                    store(&acc[(r + j) * wide + i + 16], b[j]);
                                }
                            }
                    }
                    for (int64_t r = 0; r < n * many; r++) {
                        float all = total[r], factor = 1.0f;
                        if (sinks) {
                            float sink = sinks[head + r % many], high = std::max(most[r], sink);
                            factor = std::exp(most[r] - high);
                            all = all * factor + std::exp(sink - high);
                        }
                        bf16* to = out + ((start + r / many) * heads + head + r % many) * dv;
                        for (int64_t i = 0; i < dv; i += 16)
                            store(to + i, load(&acc[r * wide + i]) * (factor / all), dv - i);
                    }
                }
        }
    }
}
