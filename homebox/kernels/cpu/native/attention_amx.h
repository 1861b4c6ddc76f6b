// Scores and outputs by matrix registers: 16 queries meet 16 keys, or 16 dimensions of 16 values, in one instruction.
//
// Values: a register takes 32 keys, a block has 16. So it is filled with the 16 keys of a block for 32 dimensions, 16
// behind each other, and meets the weights twice: as [p, 0] for the first dimensions and as [0, p] for the second. Part
// of attention.cpp.
#pragma once

#include "attention_bf16.h"
#include "registers.h"

#if defined(HB_AMX)

namespace hb {

constexpr int GROUP_OF_QUERIES = 16;
constexpr int MOST_GROUPS = MOST_QUERIES / GROUP_OF_QUERIES;
constexpr int WEIGHTS_STEP = 4 * BLOCK;  // [0, p] and [p, 0]
constexpr int FEW_QUERIES = 4;           // up to which vectors are faster

static_assert(MOST_QUERIES % GROUP_OF_QUERIES == 0 && MOST_GROUPS <= 3, "a group has registers of its own");

// What is loaded as one line is stored as one: the processor then hands it over before it is in the cache.
inline void store_weights(bf16* p, F16 x) {
    const __m512i low = _mm512_zextsi256_si512(to_bf16(x));
    _mm512_store_si512(p, _mm512_shuffle_i64x2(low, low, 0x4e));
    _mm512_store_si512(p + 2 * BLOCK, low);
}

inline void ask_for_register(const bf16* const* next, int block, int at) {
    for (int row = 0; row < 16; ++row) ask_for(next, block, at + row * 2 * LANES);
}

// scores[i] = q[i] . k for the 64 keys of a tile; N groups of queries `q` [16 * N, head_dim]. Blocks of which nothing
// is seen are passed over: their scores are not looked at.
template <int N>
inline void score_by_amx(
    const bf16* q, const bf16* const* keys, const bf16* const* next, int head_dim, float* scores) {
    const std::int64_t row = std::int64_t(head_dim) * 2, group = std::int64_t(GROUP_OF_QUERIES) * head_dim;
    for (int b = 0; b < BLOCKS_IN_TILE; ++b) {
        if (keys[b] == nullptr) continue;
        _tile_zero(0);
        if constexpr (N > 1) _tile_zero(1);
        if constexpr (N > 2) _tile_zero(2);
        for (int d = 0; d < head_dim; d += 32) {
            _tile_loadd(7, keys[b] + d * BLOCK, 64);
            ask_for_register(next, b, d * BLOCK);
            _tile_loadd(3, q + d, row);
            _tile_dpbf16ps(0, 3, 7);
            if constexpr (N > 1) {
                _tile_loadd(4, q + group + d, row);
                _tile_dpbf16ps(1, 4, 7);
            }
            if constexpr (N > 2) {
                _tile_loadd(5, q + 2 * group + d, row);
                _tile_dpbf16ps(2, 5, 7);
            }
        }
        float* to = scores + b * BLOCK;
        _tile_stored(0, to, TILE * sizeof(float));
        if constexpr (N > 1) _tile_stored(1, to + GROUP_OF_QUERIES * TILE, TILE * sizeof(float));
        if constexpr (N > 2) _tile_stored(2, to + 2 * GROUP_OF_QUERIES * TILE, TILE * sizeof(float));
    }
}

// output[i] += p[i] . v, for the first `keys` keys of a tile. `weights`: [blocks, MOST_QUERIES, WEIGHTS_STEP].
template <int N>
inline void mix_by_amx(
    const bf16* weights, const bf16* const* values, const bf16* const* next, int head_dim, int keys, float* output) {
    const std::int64_t row = std::int64_t(head_dim) * sizeof(float), group = std::int64_t(GROUP_OF_QUERIES) * head_dim;
    constexpr std::int64_t step = WEIGHTS_STEP * sizeof(bf16), on = GROUP_OF_QUERIES * WEIGHTS_STEP;
    for (int d = 0; d < head_dim; d += 2 * LANES) {
        float* to = output + d;
        _tile_loadd(0, to, row);
        _tile_loadd(1, to + LANES, row);
        if constexpr (N > 1) {
            _tile_loadd(2, to + group, row);
            _tile_loadd(3, to + group + LANES, row);
        }
        if constexpr (N > 2) {
            _tile_loadd(4, to + 2 * group, row);
            _tile_loadd(5, to + 2 * group + LANES, row);
        }
        for (int b = 0; b * BLOCK < keys; ++b) {
            if (values[b] == nullptr) continue;
            const bf16* second = weights + std::int64_t(b) * MOST_QUERIES * WEIGHTS_STEP;
            const bf16* first = second + 2 * BLOCK;
            _tile_loadd(6, values[b] + d * BLOCK, 64);
            ask_for_register(next, b, d * BLOCK);
            _tile_loadd(7, first, step);
            _tile_dpbf16ps(0, 7, 6);
            _tile_loadd(7, second, step);
            _tile_dpbf16ps(1, 7, 6);
            if constexpr (N > 1) {
                _tile_loadd(7, first + on, step);
                _tile_dpbf16ps(2, 7, 6);
                _tile_loadd(7, second + on, step);
                _tile_dpbf16ps(3, 7, 6);
            }
            if constexpr (N > 2) {
                _tile_loadd(7, first + 2 * on, step);
                _tile_dpbf16ps(4, 7, 6);
                _tile_loadd(7, second + 2 * on, step);
                _tile_dpbf16ps(5, 7, 6);
            }
        }
        _tile_stored(0, to, row);
        _tile_stored(1, to + LANES, row);
        if constexpr (N > 1) {
            _tile_stored(2, to + group, row);
            _tile_stored(3, to + group + LANES, row);
        }
        if constexpr (N > 2) {
            _tile_stored(4, to + 2 * group, row);
            _tile_stored(5, to + 2 * group + LANES, row);
        }
    }
}

// What these make of rows behind the last query is never looked at.
class Matrices {
public:
    using Value = bf16;
    Matrices(const float* const* queries, int count, int dim, float* scratch)
        : count_(count), dim_(dim), q_((bf16*)scratch), weights_(q_ + MOST_QUERIES * dim) {
        shape_registers();
        for (int i = 0; i < count; ++i)
            for (int d = 0; d < dim; d += LANES) store_bf16(q_ + i * dim + d, load(queries[i] + d));
    }
    void score(const bf16* const* keys, const bf16* const* next, float* scores) {
        if (count_ <= GROUP_OF_QUERIES) score_by_amx<1>(q_, keys, next, dim_, scores);
        else if (count_ <= 2 * GROUP_OF_QUERIES) score_by_amx<2>(q_, keys, next, dim_, scores);
        else score_by_amx<3>(q_, keys, next, dim_, scores);
    }
    float soften(int i, float* scores, int from, int to, float& peak, float& sum) {
        if (from >= to)
            for (int b = 0; b < BLOCKS_IN_TILE; ++b) store_weights(weights(b, i), zero());
        return hb::soften(scores, from, to, peak, sum, [&](F16 p, int b) {
            store_weights(weights(b, i), p);
            return rounded_to_bf16(p);
        });
    }
    void mix(const float*, const float* factor, const bf16* const* v, const bf16* const* next, int keys, float* output) {
        scale_outputs(factor, count_, dim_, output);
        if (count_ <= GROUP_OF_QUERIES) mix_by_amx<1>(weights_, v, next, dim_, keys, output);
        else if (count_ <= 2 * GROUP_OF_QUERIES) mix_by_amx<2>(weights_, v, next, dim_, keys, output);
        else mix_by_amx<3>(weights_, v, next, dim_, keys, output);
    }

private:
    bf16* weights(int block, int query) { return weights_ + (block * MOST_QUERIES + query) * WEIGHTS_STEP; }
    int count_, dim_;
    bf16 *q_, *weights_;
};

}  // namespace hb

#endif
