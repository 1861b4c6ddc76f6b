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
// One arithmetic. To meet an integer weight a row is quantised by groups of 32 too, x = s * i with |i| <= 127, or, for
// weights marked fine, x = s * (254 * h + l) with |h|, |l| <= 127: two bytes. Then, for each row and output:
//
//   sum = 0;  for each group in order:  sum = fma(d, s * dot, sum);  INT4: sum = fma(m, s * sum(i), sum)
//
//   dot = float(dot(q, i)), or, when fine, fma(float(dot(q, h)), 254, float(dot(q, l)))
//
// with exact integer dots. Float weights: sum = fma(x[k], w[k], sum), k in order. The number of rows decides only which
// instructions make the exact part, so a row alone, among others and in a longer prompt is the same to the bit.
#pragma once

#include "dot.h"

namespace hb {

enum Kind : std::int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3 };

constexpr int GROUP = 32;

struct Weight {
    std::int32_t kind, out, in;
    std::int32_t fine;  // whether rows meet it with two bytes a value
    const std::uint8_t* data;
    const float* bias;  // padded to whole tiles, or null
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

// Rows of activations: as floats, and quantised. `step` is the distance between rows in floats. Of the quantised arrays
// some rows beyond the last may be read (amx.h; their sums are thrown away): PADDING more are there.
constexpr int PADDING = 16;

// A group whose largest value is below this is all zeros to an integer weight: the factor that would stretch it to
// whole numbers is beyond what fp32 holds.
constexpr float LEAST_PEAK = 1e-30f;

struct Rows {
    const float* x = nullptr;             // [rows, step]
    const std::int8_t* low = nullptr;     // [rows, in]: i, or l
    const std::int8_t* high = nullptr;    // [rows, in]: h
    const float* scale = nullptr;         // [rows, groups]: s
    const float* total = nullptr;         // [rows, groups]: s times the sum of i
    const std::int32_t* low_shift = nullptr;   // [rows, groups]: -128 times the sum of low
    const std::int32_t* high_shift = nullptr;  // [rows, groups]: -128 times the sum of high
    int step = 0;
};

// Quantise one group of 32 values; `high` is null where one byte will do.
inline void quantise_group(
    const float* x, std::int8_t* low, std::int8_t* high, float* scale, float* total, std::int32_t* low_shift,
    std::int32_t* high_shift) {
    const float most = high != nullptr ? 127.0f * 254.0f + 126.0f : 127.0f;  // h does not round up to 128
    const F16 a = load(x), b = load(x + LANES);
    const float peak = largest(max(abs(a), abs(b)));
    // 0, unless something is infinite or no number: then NaN, which must not be lost on the way to the logits.
    const float sane = sum((a - a) + (b - b));
    *scale = peak / most + sane;
    const F16 inverse = all(peak >= LEAST_PEAK ? most / peak : 0.0f);
    float of_high = 0.0f;
    const F16 ia = nearest(a * inverse), ib = nearest(b * inverse);
    if (high != nullptr) {
        const F16 share = all(1.0f / 254.0f), back = all(-254.0f);
        const F16 ha = nearest(ia * share), hb = nearest(ib * share);
        store_int8(high, ha), store_int8(high + LANES, hb);
        store_int8(low, fma(ha, back, ia)), store_int8(low + LANES, fma(hb, back, ib));
        of_high = sum(ha + hb);
        *high_shift = -128 * std::int32_t(of_high);
    } else {
        store_int8(low, ia), store_int8(low + LANES, ib);
    }
    const float whole = sum(ia + ib);  // exact: 32 numbers below 2^15
    *total = *scale * whole;
    *low_shift = -128 * std::int32_t(whole - 254.0f * of_high);
}

// What a group adds to the sum of a row, from its exact dots.
template <int KIND, bool FINE>
inline F16 add_group(F16 sum, Sums low, Sums high, F16 d, F16 m, float scale, float total) {
    const F16 dot = FINE ? fma(to_float(high), all(254.0f), to_float(low)) : to_float(low);
    sum = fma(d, all(scale) * dot, sum);
    return KIND == INT4 ? fma(m, all(total), sum) : sum;
}

}  // namespace hb

#include "amx.h"

namespace hb {

// The sums of tile `data` for R rows from `first` on; integer weights.
template <int KIND, bool FINE, int R>
inline void sum_integers(const std::uint8_t* data, int in, const Rows& rows, int first, F16* out) {
    const int groups = in / GROUP;
    const std::uint8_t* codes = data + scale_bytes(KIND, in);
    const half* scales = (const half*)data;
    const std::int64_t at = std::int64_t(first) * in, group_at = std::int64_t(first) * groups;
    const std::int8_t *low = rows.low + at, *high = FINE ? rows.high + at : nullptr;
    const float *scale = rows.scale + group_at, *total = rows.total + group_at;
    const std::int32_t *low_shift = rows.low_shift + group_at, *high_shift = rows.high_shift + group_at;
    F16 sum[R];
    HB_UNROLL
    for (int r = 0; r < R; ++r) sum[r] = zero();
    for (int g = 0; g < groups; ++g) {
        Sums l[R], h[R];
        HB_UNROLL
        for (int r = 0; r < R; ++r) {
            l[r] = sums(KIND == INT8 ? low_shift[r * groups + g] : 0);
            h[r] = sums(KIND == INT8 && FINE ? high_shift[r * groups + g] : 0);
        }
        const auto meet = [&](Bytes w, int k) __attribute__((always_inline)) {
            HB_UNROLL
            for (int r = 0; r < R; ++r) {
                l[r] = dot<KIND == INT4>(l[r], w, low + std::int64_t(r) * in + k);
                if (FINE) h[r] = dot<KIND == INT4>(h[r], w, high + std::int64_t(r) * in + k);
            }
        };
        for (int c = 0; c < (KIND == INT4 ? 4 : 8); ++c, codes += 64) {
            const Bytes w = bytes(codes);
            if (KIND == INT4)
                meet(low_codes(w), g * GROUP + 8 * c), meet(high_codes(w), g * GROUP + 8 * c + 4);
            else
                meet(w, g * GROUP + 4 * c);
        }
        const F16 d = load(scales), m = KIND == INT4 ? load(scales + LANES) : zero();
        scales += KIND == INT4 ? 2 * LANES : LANES;
        HB_UNROLL
        for (int r = 0; r < R; ++r)
            sum[r] = add_group<KIND, FINE>(sum[r], l[r], h[r], d, m, scale[r * groups + g], total[r * groups + g]);
    }
    HB_UNROLL
    for (int r = 0; r < R; ++r) out[r] = sum[r];
}

template <int KIND, int R>
inline void sum_floats(const std::uint8_t* data, int in, const Rows& rows, int first, F16* out) {
    const float* x = rows.x + std::int64_t(first) * rows.step;
    F16 sum[R];
    HB_UNROLL
    for (int r = 0; r < R; ++r) sum[r] = zero();
    for (int k = 0; k < in; ++k) {
        F16 w;
        if constexpr (KIND == FLOAT32)
            w = load((const float*)data + std::int64_t(k) * LANES);
        else
            w = load_bf16((const std::uint16_t*)data + std::int64_t(k) * LANES);
        HB_UNROLL
        for (int r = 0; r < R; ++r) sum[r] = fma(all(x[std::int64_t(r) * rows.step + k]), w, sum[r]);
    }
    HB_UNROLL
    for (int r = 0; r < R; ++r) out[r] = sum[r];
}

template <int KIND, bool FINE, int R>
inline void sum_tile(const std::uint8_t* data, int in, const Rows& rows, int first, F16* out) {
    if constexpr (KIND == INT4 || KIND == INT8)
        sum_integers<KIND, FINE, R>(data, in, rows, first, out);
    else
        sum_floats<KIND, R>(data, in, rows, first, out);
}

template <int KIND, bool FINE, class Out>
inline void rows_of_tile(const Weight& w, int tile, const Rows& rows, int count, Out&& out) {
    const std::uint8_t* data = w.data + tile * tile_bytes(KIND, w.in);
    const F16 bias = w.bias != nullptr ? load(w.bias + tile * LANES) : zero();
    F16 sum[16];
    int row = 0;
    const auto hand_out = [&](int n) {
        for (int r = 0; r < n; ++r) out(row + r, w.bias != nullptr ? sum[r] + bias : sum[r]);
        row += n;
    };
#if defined(HB_AMX)
    if constexpr (KIND == INT4 || KIND == INT8)
        if (count >= AMX_FROM && w.in <= AMX_MOST) {
            unpack_tile<KIND>(data, w.in);
            for (; count - row > 8; hand_out(count - row < AMX_ROWS ? count - row : AMX_ROWS))
                sum_by_amx<KIND, FINE>(data, w.in, rows, row, sum);
        }
#endif
    while (count - row >= 8) sum_tile<KIND, FINE, 8>(data, w.in, rows, row, sum), hand_out(8);
    if (count - row >= 4) sum_tile<KIND, FINE, 4>(data, w.in, rows, row, sum), hand_out(4);
    if (count - row >= 2) sum_tile<KIND, FINE, 2>(data, w.in, rows, row, sum), hand_out(2);
    if (count - row >= 1) sum_tile<KIND, FINE, 1>(data, w.in, rows, row, sum), hand_out(1);
}

// `out(row, sums)` for each of `count` rows, with the 16 outputs of `tile`.
template <class Out>
inline void multiply_tile(const Weight& w, int tile, const Rows& rows, int count, Out&& out) {
    switch (w.kind) {
        case FLOAT32: return rows_of_tile<FLOAT32, false>(w, tile, rows, count, out);
        case BFLOAT16: return rows_of_tile<BFLOAT16, false>(w, tile, rows, count, out);
        case INT8:
            return w.fine ? rows_of_tile<INT8, true>(w, tile, rows, count, out)
                          : rows_of_tile<INT8, false>(w, tile, rows, count, out);
        default:
            return w.fine ? rows_of_tile<INT4, true>(w, tile, rows, count, out)
                          : rows_of_tile<INT4, false>(w, tile, rows, count, out);
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
