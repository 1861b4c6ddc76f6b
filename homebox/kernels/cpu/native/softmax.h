// The softmax of a tile of scores, and how the softmaxes of tiles and splits are joined. Part of attention.cpp.
#pragma once

#include <algorithm>
#include <limits>

#include "attention.h"

namespace hb {

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

// Softmaxes under way, for each query of a piece.
struct Softmax {
    float peak[MOST_QUERIES];
    float sum[MOST_QUERIES];
    void begin(int queries) {
        std::fill(peak, peak + queries, NOTHING);
        std::fill(sum, sum + queries, 0.0f);
    }
};

// Scores become weights e^(s - peak), those outside [from, to) become 0; `weight(p, block)` may round them. Returns
// what earlier sums are scaled with.
template <class F>
float soften(float* scores, int from, int to, float& peak, float& sum_so_far, F&& weight) {
    if (from >= to) {
        std::fill(scores, scores + TILE, 0.0f);
        return 1.0f;
    }
    std::fill(scores, scores + from, NOTHING);
    std::fill(scores + to, scores + TILE, NOTHING);
    F16 s[BLOCKS_IN_TILE];
    for (int b = 0; b < BLOCKS_IN_TILE; ++b) s[b] = load(scores + b * BLOCK);
    const float before = peak;
    peak = std::max(before, largest(max(max(s[0], s[1]), max(s[2], s[3]))));
    F16 total = zero();
    for (int b = 0; b < BLOCKS_IN_TILE; ++b) {
        s[b] = weight(exp(s[b] - all(peak)), b);
        store(scores + b * BLOCK, s[b]);
        total = total + s[b];
    }
    const float factor = before == peak ? 1.0f : first(exp(all(before - peak)));
    sum_so_far = sum_so_far * factor + sum(total);
    return factor;
}

// Join the softmax (m, l, o) of a split to that of the splits before it.
inline void join_one(float m, float l, const float* o, int head_dim, float& peak, float& total, float* output) {
    if (m == NOTHING) return;
    const float joined = std::max(peak, m);
    const float a = first(exp(all(peak - joined))), b = first(exp(all(m - joined)));
    peak = joined;
    total = total * a + l * b;
    for (int d = 0; d < head_dim; d += LANES)
        store(output + d, fma(load(o + d), all(b), load(output + d) * all(a)));
}

inline void finish(const float* output, float total, int head_dim, float* out) {
    const F16 share = all(1.0f / total);
    for (int d = 0; d < head_dim; d += LANES) store(out + d, load(output + d) * share);
}

}  // namespace hb
