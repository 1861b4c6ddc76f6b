// How is a row multiplied with a weight, however many rows there are?
//
// A weight lies in tiles of 16 outputs, so that a vector holds one input of 16 outputs. Four kinds:
//
//   FLOAT32   in x 64 bytes: an input's 16 weights as fp32
//   BFLOAT16  in x 32 bytes
//   INT8      groups x 32 bytes of scales d (fp16), padded to 64; groups x 512 bytes: w + 128 as a byte
//   INT4      groups x 64 bytes: 16 scales d, 16 minimums m (fp16); groups x 256 bytes: two codes q a byte
//
// A group is 32 inputs; w = d * q (+ m). Inside a group a byte vector holds, for each of 16 outputs, four inputs in a
// row: that is what a dot-product instruction wants. INT4 has inputs 8c .. 8c+3 in the low and 8c+4 .. 8c+7 in the high
// halves of vector c.
//
// One arithmetic. To meet an integer weight a row is quantised by groups of 32 too: x = s * i with s = max |x| / 127.
// Then, for each row and output, whatever the tiling:
//
//   sum = 0;  for each group in order:  sum = fma(d, s * float(dot(q, i)), sum);  INT4: sum = fma(m, s * float(sum(i)), sum)
//
// with exact integer dots. Float weights: sum = fma(x[k], w[k], sum), k in order. So a row alone, among others and as
// part of a longer prompt is the same to the bit.
#pragma once

#include "dot.h"

namespace hb {

enum Kind : std::int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3 };

constexpr int GROUP = 32;

struct Weight {
    std::int32_t kind, out, in, unused;
    const std::uint8_t* data;
    const float* bias;  // as long as the tiles are, or null
};

inline bool is_integer(const Weight& w) { return w.kind == INT8 || w.kind == INT4; }
inline int tiles(const Weight& w) { return (w.out + LANES - 1) / LANES; }

inline std::int64_t scale_bytes(int kind, int in) {
    const std::int64_t groups = in / GROUP;
    return kind == INT4 ? groups * 64 : kind == INT8 ? (groups * 32 + 63) / 64 * 64 : 0;
}
inline std::int64_t tile_bytes(int kind, int in) {
    const std::int64_t groups = in / GROUP;
    switch (kind) {
        case FLOAT32: return std::int64_t(in) * 64;
        case BFLOAT16: return std::int64_t(in) * 32;
        case INT8: return scale_bytes(kind, in) + groups * 512;
        default: return scale_bytes(kind, in) + groups * 256;
    }
}

// One output's weights as floats: a row of an embedding.
void unpack_row(const Weight& w, int row, float* out);

// Rows of activations: as floats, or quantised. `step` is the distance between rows in elements.
struct Rows {
    const float* x = nullptr;          // [rows, step]
    const std::int8_t* q = nullptr;    // [rows, in]
    const float* scale = nullptr;      // [rows, groups]: s
    const float* total = nullptr;      // [rows, groups]: s * sum(i)
    const std::int32_t* shift = nullptr;  // [rows, groups]: -128 * sum(i), which INT8 starts from
    int step = 0;
};

// Quantise one group of 32 values.
inline void quantise_group(const float* x, std::int8_t* q, float* scale, float* total, std::int32_t* shift) {
    const F16 a = load(x), b = load(x + LANES);
    const float peak = largest(max(abs(a), abs(b)));
    // 0, unless something is infinite or no number: then NaN, which must not be lost on the way to the logits.
    const float sane = sum((a - a) + (b - b));
    const float s = peak / 127.0f + sane;
    const float inverse = peak > 0.0f ? 127.0f / peak : 0.0f;
    store_int8(q, nearest(a * all(inverse)));
    store_int8(q + LANES, nearest(b * all(inverse)));
    std::int32_t sum = 0;
    for (int i = 0; i < GROUP; ++i) sum += q[i];
    *scale = s;
    *total = s * float(sum);
    *shift = -128 * sum;
}

// The sums of tile `data` for R rows.
template <int KIND, int R>
inline void sum_tile(const std::uint8_t* data, int in, const Rows& rows, int first, F16* out) {
    F16 sum[R];
    for (int r = 0; r < R; ++r) sum[r] = zero();
    if constexpr (KIND == FLOAT32 || KIND == BFLOAT16) {
        const float* x = rows.x + std::int64_t(first) * rows.step;
        for (int k = 0; k < in; ++k) {
            F16 w;
            if constexpr (KIND == FLOAT32)
                w = load((const float*)data + std::int64_t(k) * LANES);
            else
                w = load_bf16((const std::uint16_t*)data + std::int64_t(k) * LANES);
            for (int r = 0; r < R; ++r) sum[r] = fma(all(x[std::int64_t(r) * rows.step + k]), w, sum[r]);
        }
    } else {
        const int groups = in / GROUP;
        const std::uint8_t* codes = data + scale_bytes(KIND, in);
        const half* scales = (const half*)data;
        const std::int8_t* q = rows.q + std::int64_t(first) * in;
        const float* scale = rows.scale + std::int64_t(first) * groups;
        const float* total = rows.total + std::int64_t(first) * groups;
        const std::int32_t* shift = rows.shift + std::int64_t(first) * groups;
        for (int g = 0; g < groups; ++g) {
            Sums part[R];
            for (int r = 0; r < R; ++r) part[r] = sums(KIND == INT8 ? shift[r * groups + g] : 0);
            if constexpr (KIND == INT4) {
                for (int c = 0; c < 4; ++c, codes += 64) {
                    const Bytes both = bytes(codes);
                    const Bytes low = low_codes(both), high = high_codes(both);
                    const std::int8_t* x = q + g * GROUP + 8 * c;
                    for (int r = 0; r < R; ++r) {
                        part[r] = dot<true>(part[r], low, x + std::int64_t(r) * in);
                        part[r] = dot<true>(part[r], high, x + std::int64_t(r) * in + 4);
                    }
                }
                const F16 d = load(scales), m = load(scales + LANES);
                scales += 2 * LANES;
                for (int r = 0; r < R; ++r) {
                    sum[r] = fma(d, all(scale[r * groups + g]) * to_float(part[r]), sum[r]);
                    sum[r] = fma(m, all(total[r * groups + g]), sum[r]);
                }
            } else {
                for (int c = 0; c < 8; ++c, codes += 64) {
                    const Bytes w = bytes(codes);
                    const std::int8_t* x = q + g * GROUP + 4 * c;
                    for (int r = 0; r < R; ++r) part[r] = dot<false>(part[r], w, x + std::int64_t(r) * in);
                }
                const F16 d = load(scales);
                scales += LANES;
                for (int r = 0; r < R; ++r) sum[r] = fma(d, all(scale[r * groups + g]) * to_float(part[r]), sum[r]);
            }
        }
    }
    for (int r = 0; r < R; ++r) out[r] = sum[r];
}

template <int KIND, class Out>
inline void rows_of_tile(const Weight& w, int tile, const Rows& rows, int count, Out&& out) {
    const std::uint8_t* data = w.data + tile * tile_bytes(KIND, w.in);
    const F16 bias = w.bias != nullptr ? load(w.bias + tile * LANES) : zero();
    F16 sum[8];
    int row = 0;
    const auto hand_out = [&](int n) {
        for (int r = 0; r < n; ++r) out(row + r, w.bias != nullptr ? sum[r] + bias : sum[r]);
        row += n;
    };
    while (count - row >= 8) sum_tile<KIND, 8>(data, w.in, rows, row, sum), hand_out(8);
    if (count - row >= 4) sum_tile<KIND, 4>(data, w.in, rows, row, sum), hand_out(4);
    if (count - row >= 2) sum_tile<KIND, 2>(data, w.in, rows, row, sum), hand_out(2);
    if (count - row >= 1) sum_tile<KIND, 1>(data, w.in, rows, row, sum), hand_out(1);
}

// `out(row, sums)` for each of `count` rows, with the 16 outputs of `tile`.
template <class Out>
inline void multiply_tile(const Weight& w, int tile, const Rows& rows, int count, Out&& out) {
    switch (w.kind) {
        case FLOAT32: return rows_of_tile<FLOAT32>(w, tile, rows, count, out);
        case BFLOAT16: return rows_of_tile<BFLOAT16>(w, tile, rows, count, out);
        case INT8: return rows_of_tile<INT8>(w, tile, rows, count, out);
        default: return rows_of_tile<INT4>(w, tile, rows, count, out);
    }
}

// Sixteen or fewer values of a tile into a matrix whose rows are as long as the weight has outputs.
inline void store_some(float* p, F16 v, int valid) {
    if (valid >= LANES) return store(p, v);
    float t[LANES];
    store(t, v);
    std::memcpy(p, t, std::size_t(valid) * sizeof(float));
}

}  // namespace hb
