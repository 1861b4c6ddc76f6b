// Scores and outputs by matrix registers: 16 queries meet 16 keys, or 16 dimensions of 16 values, in one instruction.
//
// Values: a register takes 32 keys, a block has 16. So it is filled with the 16 keys of a block for 32 dimensions, 16
// behind each other, and meets the weights twice: as [p, 0] for the first dimensions and as [0, p] for the second. Part
// of attention.cpp.
#pragma once

#include "attention.h"
#include "registers.h"

#if defined(HB_AMX)

namespace hb {

using bf16 = std::uint16_t;

// What is loaded as one line is stored as one: the processor then hands it over before it is in the cache.
inline void store_weights(bf16* p, F16 x) {
    const __m512i low = _mm512_zextsi256_si512((__m256i)_mm512_cvtneps_pbh(x.v));
    _mm512_store_si512(p, _mm512_shuffle_i64x2(low, low, 0x4e));
    _mm512_store_si512(p + 2 * BLOCK, low);
}
inline void store_bf16(bf16* p, F16 x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x.v)); }
inline F16 rounded_to_bf16(F16 x) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x.v)), 16))};
}

constexpr int GROUP_OF_QUERIES = 16;
constexpr int MOST_GROUPS = MOST_QUERIES / GROUP_OF_QUERIES;
constexpr int WEIGHTS_STEP = 4 * BLOCK;  // [0, p] and [p, 0]

static_assert(MOST_QUERIES % GROUP_OF_QUERIES == 0 && MOST_GROUPS <= 3, "a group has registers of its own");

// scores[i] = q[i] . k for the 64 keys of a tile; N groups of queries `q` [16 * N, head_dim]. Blocks of which nothing
// is seen are passed over: their scores are not looked at.
template <int N>
inline void score_by_amx(const bf16* q, const bf16* const* keys, int head_dim, float* scores) {
    const std::int64_t row = std::int64_t(head_dim) * 2, group = std::int64_t(GROUP_OF_QUERIES) * head_dim;
    for (int b = 0; b < BLOCKS_IN_TILE; ++b) {
        if (keys[b] == nullptr) continue;
        _tile_zero(0);
        if constexpr (N > 1) _tile_zero(1);
        if constexpr (N > 2) _tile_zero(2);
        for (int d = 0; d < head_dim; d += 32) {
            _tile_loadd(7, keys[b] + d * BLOCK, 64);
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
inline void mix_by_amx(const bf16* weights, const bf16* const* values, int head_dim, int keys, float* output) {
    const std::int64_t row = std::int64_t(head_dim) * sizeof(float), group = std::int64_t(GROUP_OF_QUERIES) * head_dim;
    constexpr std::int64_t step = WEIGHTS_STEP * sizeof(bf16), next = GROUP_OF_QUERIES * WEIGHTS_STEP;
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
            _tile_loadd(7, first, step);
            _tile_dpbf16ps(0, 7, 6);
            _tile_loadd(7, second, step);
            _tile_dpbf16ps(1, 7, 6);
            if constexpr (N > 1) {
                _tile_loadd(7, first + next, step);
                _tile_dpbf16ps(2, 7, 6);
                _tile_loadd(7, second + next, step);
                _tile_dpbf16ps(3, 7, 6);
            }
            if constexpr (N > 2) {
                _tile_loadd(7, first + 2 * next, step);
                _tile_dpbf16ps(4, 7, 6);
                _tile_loadd(7, second + 2 * next, step);
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

inline void write_bf16(
    const Shape& shape, std::int64_t block, int kv_head, int slot, const float* k, const float* v, bf16* keys,
    bf16* values) {
    const int dim = shape.head_dim;
    const std::int64_t at = (block * shape.kv_heads + kv_head) * dim * BLOCK;
    for (int d = 0; d < dim; d += LANES) {
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

#endif
