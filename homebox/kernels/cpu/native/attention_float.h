// Scores and outputs of fp32 keys and values, in vectors: one fma a dimension, and one a key, in order. Part of
// attention.cpp.
#pragma once

#include "softmax.h"

namespace hb {

// scores[i] = q[i] . k for the 64 keys of a tile, B blocks at a time; N queries share the loaded keys.
template <int N, int B>
void score_floats(
    const float* const* queries, const float* const* blocks, const float* const* next, int head_dim, float* scores) {
    const float* q[N];
    for (int i = 0; i < N; ++i) q[i] = queries[i];
    for (int b = 0; b < BLOCKS_IN_TILE; b += B) {
        const float* k[B];
        if (!find_keys<B>(blocks + b, k)) continue;
        F16 sum[N][B];
        HB_UNROLL
        for (int i = 0; i < N; ++i)
            HB_UNROLL
            for (int j = 0; j < B; ++j) sum[i][j] = zero();
        for (int d = 0; d < head_dim; ++d) {
            F16 keys[B];
            HB_UNROLL
            for (int j = 0; j < B; ++j) keys[j] = load(k[j] + d * BLOCK), ask_for(next, b + j, d * BLOCK);
            HB_UNROLL
            for (int i = 0; i < N; ++i) {
                const F16 value = all(q[i][d]);
                HB_UNROLL
                for (int j = 0; j < B; ++j) sum[i][j] = fma(value, keys[j], sum[i][j]);
            }
        }
        HB_UNROLL
        for (int i = 0; i < N; ++i)
            HB_UNROLL
            for (int j = 0; j < B; ++j) store(scores + i * TILE + (b + j) * BLOCK, sum[i][j]);
    }
}

// output[i] = output[i] * factor[i] + p[i] . v, for N queries and 16 * D dimensions.
template <int N, int D>
void mix_floats(
    const float* p, const float* factor, const float* const* blocks, const float* const* next, int head_dim, int keys,
    int d, float* output) {
    F16 sum[N][D];
    HB_UNROLL
    for (int i = 0; i < N; ++i)
        HB_UNROLL
        for (int j = 0; j < D; ++j) sum[i][j] = load(output + i * head_dim + d + j * LANES) * all(factor[i]);
    for (int b = 0; b * BLOCK < keys; ++b) {
        if (blocks[b] == nullptr) continue;
        const int count = std::min(BLOCK, keys - b * BLOCK);
        for (int key = 0; key < count; ++key) {
            F16 values[D];
            HB_UNROLL
            for (int j = 0; j < D; ++j) {
                const int at = key * head_dim + d + j * LANES;
                values[j] = load(blocks[b] + at), ask_for(next, b, at);
            }
            HB_UNROLL
            for (int i = 0; i < N; ++i) {
                const F16 weight = all(p[i * TILE + b * BLOCK + key]);
                HB_UNROLL
                for (int j = 0; j < D; ++j) sum[i][j] = fma(weight, values[j], sum[i][j]);
            }
        }
    }
    HB_UNROLL
    for (int i = 0; i < N; ++i)
        HB_UNROLL
        for (int j = 0; j < D; ++j) store(output + i * head_dim + d + j * LANES, sum[i][j]);
}

class Floats {
public:
    using Value = float;
    Floats(const float* const* queries, int count, int dim, float*) : queries_(queries), count_(count), dim_(dim) {}
    void score(const float* const* keys, const float* const* next, float* scores) {
        int i = 0;
        for (; i + 12 <= count_; i += 12) score_floats<12, 2>(queries_ + i, keys, i == 0 ? next : nullptr, dim_, scores + i * TILE);
        for (; i + 3 <= count_; i += 3) score_floats<3, 4>(queries_ + i, keys, i == 0 ? next : nullptr, dim_, scores + i * TILE);
        for (; i < count_; ++i) score_floats<1, 4>(queries_ + i, keys, i == 0 ? next : nullptr, dim_, scores + i * TILE);
    }
    float soften(int, float* scores, int from, int to, float& peak, float& sum) {
        return hb::soften(scores, from, to, peak, sum, [](F16 p, int) { return p; });
    }
    void mix(
        const float* p, const float* factor, const float* const* v, const float* const* next, int keys, float* output) {
        int i = 0;
        for (; i + 6 <= count_; i += 6) mix_heads<6>(p, factor, v, i == 0 ? next : nullptr, keys, i, output);
        for (; i + 3 <= count_; i += 3) mix_heads<3>(p, factor, v, i == 0 ? next : nullptr, keys, i, output);
        for (; i < count_; ++i) mix_heads<1>(p, factor, v, i == 0 ? next : nullptr, keys, i, output);
    }

private:
    template <int N>
    void mix_heads(
        const float* p, const float* factor, const float* const* v, const float* const* next, int keys, int i,
        float* output) {
        p += i * TILE, factor += i, output += i * dim_;
        int d = 0;
        for (; d + 4 * LANES <= dim_; d += 4 * LANES) mix_floats<N, 4>(p, factor, v, next, dim_, keys, d, output);
        for (; d < dim_; d += LANES) mix_floats<N, 1>(p, factor, v, next, dim_, keys, d, output);
    }
    const float* const* queries_;
    int count_, dim_;
};

inline void write_floats(
    std::int64_t at, int head_dim, int slot, const float* k, const float* v, float* keys, float* values) {
    for (int d = 0; d < head_dim; ++d) keys[at + std::int64_t(d) * BLOCK + slot] = k[d];
    std::copy(v, v + head_dim, values + at + std::int64_t(slot) * head_dim);
}

}  // namespace hb
