// Scores and outputs of bf16 keys and values, in vectors, with the sums of the matrix instruction: attention_amx.h is
// the other way to the same bits, for many queries.
//
// tdpbf16ps adds even + odd to a sum, where even = fma over the even ones of 32 products, in order, from 0, and odd
// likewise; what is subnormal is zero (found by trying: 512,000 random sums have the same bits). A product of a weight
// 0 leaves a sum as it is. Part of attention.cpp.
#pragma once

#include "softmax.h"

namespace hb {

constexpr int DIMENSIONS_AT_ONCE = 32;

// scores[i] = q[i] . k for the 64 keys of a tile, B blocks at a time; `q` are N queries, [N, head_dim].
template <int N, int B>
void score_pairs(
    const float* q, const bf16* const* blocks, const bf16* const* next, int head_dim, float* scores) {
    for (int b = 0; b < BLOCKS_IN_TILE; b += B) {
        const bf16* k[B];
        if (!find_keys<B>(blocks + b, k)) continue;
        for (int from = 0; from < head_dim; from += DIMENSIONS_AT_ONCE) {
            F16 even[N][B], odd[N][B];
            HB_UNROLL
            for (int i = 0; i < N; ++i)
                HB_UNROLL
                for (int j = 0; j < B; ++j) even[i][j] = odd[i][j] = zero();
            const int end = std::min(head_dim, from + DIMENSIONS_AT_ONCE);
            for (int d = from; d < end; d += 2) {
                HB_UNROLL
                for (int j = 0; j < B; ++j) {
                    F16 first, second;
                    load_pairs(k[j] + d * BLOCK, first, second);
                    ask_for(next, b + j, d * BLOCK);
                    HB_UNROLL
                    for (int i = 0; i < N; ++i) {
                        even[i][j] = fma(all(q[i * head_dim + d]), first, even[i][j]);
                        odd[i][j] = fma(all(q[i * head_dim + d + 1]), second, odd[i][j]);
                    }
                }
            }
            HB_UNROLL
            for (int i = 0; i < N; ++i)
                HB_UNROLL
                for (int j = 0; j < B; ++j) {
                    float* to = scores + i * TILE + (b + j) * BLOCK;
                    const F16 both = even[i][j] + odd[i][j];
                    store(to, from == 0 ? both : load(to) + both);
                }
        }
    }
}

// output[i] += p[i] . v, for N queries and dimensions d .. d + 16 * D - 1.
template <int N, int D>
void mix_pairs(
    const float* p, const bf16* const* blocks, const bf16* const* next, int head_dim, int keys, int d, float* output) {
    for (int b = 0; b * BLOCK < keys; ++b) {
        if (blocks[b] == nullptr) continue;
        const bf16* v = blocks[b] + d * BLOCK;
        const int count = std::min(BLOCK, keys - b * BLOCK);
        F16 even[N][D], odd[N][D];
        HB_UNROLL
        for (int i = 0; i < N; ++i)
            HB_UNROLL
            for (int j = 0; j < D; ++j) even[i][j] = odd[i][j] = zero();
        for (int key = 0; key < count; key += 2) {
            HB_UNROLL
            for (int j = 0; j < D; ++j) {
                F16 first, second;
                load_pairs(v + (j * BLOCK + key) * LANES, first, second);
                ask_for(next, b, d * BLOCK + (j * BLOCK + key) * LANES);
                HB_UNROLL
                for (int i = 0; i < N; ++i) {
                    even[i][j] = fma(all(p[i * TILE + b * BLOCK + key]), first, even[i][j]);
                    odd[i][j] = fma(all(p[i * TILE + b * BLOCK + key + 1]), second, odd[i][j]);
                }
            }
        }
        HB_UNROLL
        for (int i = 0; i < N; ++i)
            HB_UNROLL
            for (int j = 0; j < D; ++j) {
                float* to = output + i * head_dim + d + j * LANES;
                store(to, load(to) + (even[i][j] + odd[i][j]));
            }
    }
}

inline void scale_outputs(const float* factor, int queries, int head_dim, float* output) {
    for (int i = 0; i < queries; ++i) {
        if (factor[i] == 1.0f) continue;
        for (int d = 0; d < head_dim; d += LANES)
            store(output + i * head_dim + d, load(output + i * head_dim + d) * all(factor[i]));
    }
}

class Pairs {
public:
    using Value = bf16;
    Pairs(const float* const* queries, int count, int dim, float* scratch) : q_(scratch), count_(count), dim_(dim) {
        for (int i = 0; i < count; ++i)
            for (int d = 0; d < dim; d += LANES) store(q_ + i * dim + d, rounded_to_bf16(load(queries[i] + d)));
    }
    void score(const bf16* const* keys, const bf16* const* next, float* scores) {
        int i = 0;
        const auto by = [&](auto kernel, int queries) {
            for (; i + queries <= count_; i += queries) kernel(q_ + i * dim_, keys, i == 0 ? next : nullptr, dim_, scores + i * TILE);
        };
#if defined(__AVX512F__)
        by(score_pairs<12, 1>, 12), by(score_pairs<3, 2>, 3), by(score_pairs<1, 4>, 1);
#else
        by(score_pairs<3, 1>, 3), by(score_pairs<1, 2>, 1);
#endif
    }
    float soften(int, float* scores, int from, int to, float& peak, float& sum) {
        return hb::soften(scores, from, to, peak, sum, [](F16 p, int) { return rounded_to_bf16(p); });
    }
    void mix(
        const float* p, const float* factor, const bf16* const* v, const bf16* const* next, int keys, float* output) {
        scale_outputs(factor, count_, dim_, output);
        int i = 0;
#if defined(__AVX512F__)
        for (; i + 6 <= count_; i += 6) mix_heads<6, 2>(p, v, i == 0 ? next : nullptr, keys, i, output);
        for (; i + 3 <= count_; i += 3) mix_heads<3, 4>(p, v, i == 0 ? next : nullptr, keys, i, output);
        for (; i < count_; ++i) mix_heads<1, 4>(p, v, i == 0 ? next : nullptr, keys, i, output);
#else
        for (; i + 3 <= count_; i += 3) mix_heads<3, 1>(p, v, i == 0 ? next : nullptr, keys, i, output);
        for (; i < count_; ++i) mix_heads<1, 2>(p, v, i == 0 ? next : nullptr, keys, i, output);
#endif
    }

private:
    template <int N, int D>
    void mix_heads(
        const float* p, const bf16* const* v, const bf16* const* next, int keys, int i, float* output) {
        p += i * TILE, output += i * dim_;
        int d = 0;
        for (; d + D * LANES <= dim_; d += D * LANES) mix_pairs<N, D>(p, v, next, dim_, keys, d, output);
        for (; d < dim_; d += LANES) mix_pairs<N, 1>(p, v, next, dim_, keys, d, output);
    }
    float* q_;
    int count_, dim_;
};

inline void write_bf16(
    std::int64_t at, int head_dim, int slot, const float* k, const float* v, bf16* keys, bf16* values) {
    for (int d = 0; d < head_dim; d += LANES) {
        bf16 rounded[LANES];
        store_bf16(rounded, load(k + d));
        for (int i = 0; i < LANES; i += 2)
            std::memcpy(keys + at + (d + i) * BLOCK + 2 * slot, rounded + i, 2 * sizeof(bf16));
        store_bf16(rounded, load(v + d));
        bf16* to = values + at + d * BLOCK + slot / 2 * 2 * LANES + slot % 2;
        for (int i = 0; i < LANES; ++i) to[2 * i] = rounded[i];
    }
}

}  // namespace hb
