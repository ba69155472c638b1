// Routing on CPU: selects a row's experts by insertion sort, sorts copies by counting sort.
#include "ostro.h"

#include <algorithm>
#include <numeric>
#include <vector>

// p = e^(p - max p) / their sum, for n numbers, a multiple of 16; padding is -inf.
static void softmax(float* p, int64_t n) {
    v16 most = splat(-INFINITY), total = {};
    for (int64_t i = 0; i < n; i += 16) most = max(most, load(p + i));
    float top = reduce_max(most);
    for (int64_t i = 0; i < n; i += 16) {
        v16 power = exp(load(p + i) - top);
        total += power;
        store(p + i, power);
    }
    float whole = sum(total);
    for (int64_t i = 0; i < n; i += 16) store(p + i, load(p + i) / whole);
}

static void sigmoid(float* p, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) store(p + i, 1.0f / (1.0f + exp(-load(p + i))));
}

static inline bool better(float a, float b) { return a > b || (a != a && b == b); }

// The indices of the `top` best of n keys; of equal ones the lowest first.
static void best(const float* keys, int64_t n, int64_t top, int64_t* found) {
    for (int64_t i = 0, held = 0; i < n; i++) {
        int64_t at = held;
        while (at > 0 && better(keys[i], keys[found[at - 1]])) at--;
        if (at == top) continue;
        if (held < top) held++;
        for (int64_t j = held - 1; j > at; j--) found[j] = found[j - 1];
        found[at] = i;
    }
}

// Set keys outside the best groups to -inf; a group's rank is the sum of its `count` best keys.
static void limit(float* keys, int64_t n, int64_t groups, int64_t kept, int64_t count) {
    int64_t size = n / groups, two[2] = {};
    std::vector<float> ranks(groups);
    std::vector<int64_t> order(groups);
    for (int64_t g = 0; g < groups; g++) {
        best(keys + g * size, size, count, two);
        for (int64_t i = 0; i < count; i++) ranks[g] += keys[g * size + two[i]];
    }
    best(ranks.data(), groups, groups, order.data());
    for (int64_t i = kept; i < groups; i++)
        std::fill_n(keys + order[i] * size, size, -INFINITY);
}

// `route` of the package; `bias` may be null.
template <class T>
void route(const T* logits, int64_t rows, int64_t n, int64_t stride, const float* bias, int64_t top,
           int64_t renormalise, int64_t by_sigmoid, int64_t groups, int64_t best_groups,
           float factor, int64_t* experts, float* weights) {
    int64_t room = (n + 15) / 16 * 16, wide = (top + 15) / 16 * 16;
#pragma omp parallel if (rows * n > 16384)
    {
        std::vector<float> x(room), scores(room), keys(room), taken(wide);
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; row++) {
            int64_t* chosen = experts + row * top;
            float* weight = weights + row * top;
            for (int64_t i = 0; i < n; i += 16) store(&x[i], load(logits + row * stride + i, n - i));
            std::fill(x.begin() + n, x.end(), -INFINITY);
            std::copy(x.begin(), x.end(), scores.begin());
            (by_sigmoid ? sigmoid : softmax)(scores.data(), room);
            for (int64_t i = 0; i < n; i++) keys[i] = bias ? scores[i] + bias[i] : x[i];
            if (best_groups < groups)
                limit(keys.data(), n, groups, best_groups, bias && n > groups ? 2 : 1);
            best(keys.data(), n, top, chosen);
            std::fill(taken.begin(), taken.end(), -INFINITY);
            bool again = renormalise && !by_sigmoid;
            for (int64_t j = 0; j < top; j++) taken[j] = (again ? x : scores)[chosen[j]];
            if (again) softmax(taken.data(), wide);
            float whole = 1.0f;  // below, 1e-20 is TINY of the package
            if (renormalise && by_sigmoid)
                whole = std::accumulate(taken.begin(), taken.begin() + top, 1e-20f);
            for (int64_t j = 0; j < top; j++) weight[j] = taken[j] / whole * factor;
        }
    }
}
EXPORT(route)

// Sort copies [rows * top] by expert; stable. Experts outside of 0..count - 1 are clamped, which
// keeps the writes in bounds; returns how many there are.
extern "C" int64_t sort_copies(const int64_t* experts, int64_t copies, int64_t top, int64_t count,
                               int64_t* expert_of_copy, int64_t* row_of_copy, int64_t* places) {
    if (count < 1) return copies;
    std::vector<int64_t> next(count + 1);
    int64_t wrong = 0;
    auto expert = [&](int64_t i) {
        return std::min(std::max<int64_t>(experts[i], 0), count - 1);
    };
    for (int64_t i = 0; i < copies; i++) {
        wrong += expert(i) != experts[i];
        next[expert(i) + 1]++;
    }
    for (int64_t e = 0; e < count; e++) next[e + 1] += next[e];
    for (int64_t i = 0; i < copies; i++) {
        int64_t place = next[expert(i)]++;
        expert_of_copy[place] = expert(i);
        row_of_copy[place] = i / top;
        places[i] = place;
    }
    return wrong;
}
