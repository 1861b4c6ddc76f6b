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
// weights marked fine, |i| <= 2039 in two bytes: i = 16 * h + l. Then, for each row and output:
//
//   sum = 0;  for each group in order:  sum = fma(d, s * dot(q, i), sum);  INT4: sum = fma(m, s * sum(i), sum)
//
// with exact integer dots (below 2^23, so exact as floats, too). Float weights: sum = fma(x[k], w[k], sum), k in order.
// The number of rows decides only which instructions make the exact part, so a row alone, among others and in a longer
// prompt is the same to the bit.
#pragma once

#include <vector>

#include "dot.h"

namespace hb {

enum Kind : std::int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3 };

constexpr int GROUP = 32;
constexpr int MANY_ROWS = 9;  // are worth unpacking a tile for, where there are matrix registers

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
    const std::int8_t* bytes = nullptr;   // [rows, groups, 32]: i; where fine [rows, groups, 2, 32]: l, then h
    const float* scale = nullptr;         // [groups, capacity]: s
    const float* total = nullptr;         // [groups, capacity]: s times the sum of i
    const std::int32_t* shift = nullptr;  // [groups, capacity]: -128 times the sum of i, for INT8's w + 128
    int step = 0;
    int capacity = 0;
};

// Quantise one group of 32 values.
inline void quantise_group(
    const float* x, bool fine, std::int8_t* bytes, float* scale, float* total, std::int32_t* shift) {
    const float most = fine ? 127.0f * 16.0f + 7.0f : 127.0f;  // h does not round up to 128
    const F16 a = load(x), b = load(x + LANES);
    const float peak = largest_magnitude(a, b);
    // 0, unless something is infinite or no number: then NaN, which must not be lost on the way to the logits.
    *scale = peak / most + (peak - peak);
    const F16 inverse = all(peak >= LEAST_PEAK ? most / peak : 0.0f);
    const F16 ia = nearest(a * inverse), ib = nearest(b * inverse);
    if (fine) {
        const F16 share = all(1.0f / 16.0f), back = all(-16.0f);
        const F16 ha = nearest(ia * share), hb = nearest(ib * share);
        store_int8(bytes, fma(ha, back, ia)), store_int8(bytes + LANES, fma(hb, back, ib));
        store_int8(bytes + GROUP, ha), store_int8(bytes + GROUP + LANES, hb);
    } else {
        store_int8(bytes, ia), store_int8(bytes + LANES, ib);
    }
    const float whole = sum(ia + ib);  // exact: 32 numbers below 2^11
    *total = *scale * whole;
    *shift = -128 * std::int32_t(whole);
}

// Rows that are about to meet a weight: as floats and, for integer weights, quantised too.
class Activations {
public:
    void resize(int rows, int width) {
        width_ = width, groups_ = width / GROUP;
        const std::size_t padded = std::size_t(rows) + PADDING;
        capacity_ = int(padded);
        grow(x_, padded * width), grow(bytes_, padded * width * 2 + LINE);
        grow(scale_, padded * groups_), grow(total_, padded * groups_), grow(shift_, padded * groups_);
    }
    float* row(int i) { return x_.data() + std::int64_t(i) * width_; }
    void quantise(int row, int group, bool fine) {
        const std::size_t at = std::size_t(row) * width_ + group * GROUP;
        const std::size_t i = std::size_t(group) * capacity_ + row;
        quantise_group(x_.data() + at, fine, bytes() + at * (fine ? 2 : 1), &scale_[i], &total_[i], &shift_[i]);
    }
    void quantise(int row, bool fine) {
        for (int g = 0; g < groups_; ++g) quantise(row, g, fine);
    }
    Rows rows() const {
        return {x_.data(), bytes(), scale_.data(), total_.data(), shift_.data(), width_, capacity_};
    }

private:
    static constexpr std::size_t LINE = 64;  // of a cache: matrix registers are filled line by line
    std::int8_t* bytes() const {
        return (std::int8_t*)((std::uintptr_t(bytes_.data()) + LINE - 1) / LINE * LINE);
    }
    template <class T>
    static void grow(std::vector<T>& v, std::size_t size) {
        if (v.size() < size) v.resize(size);
    }
    int width_ = 0, groups_ = 0, capacity_ = 0;
    std::vector<float> x_, scale_, total_;
    std::vector<std::int8_t> bytes_;
    std::vector<std::int32_t> shift_;
};

// What a group adds to the sum of a row, from its exact dot.
template <int KIND>
inline F16 add_group(F16 sum, Sums dot, F16 d, F16 m, float scale, float total) {
    sum = fma(d, all(scale) * to_float(dot), sum);
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
    constexpr int STEP = FINE ? 2 : 1;
    const std::int64_t row = std::int64_t(in) * STEP, capacity = rows.capacity;
    const std::int8_t* x = rows.bytes + first * row;
    const float *scale = rows.scale + first, *total = rows.total + first;
    const std::int32_t* shift = rows.shift + first;
    F16 sum[R];
    HB_UNROLL
    for (int r = 0; r < R; ++r) sum[r] = zero();
    for (int g = 0; g < groups; ++g) {
        Sums l[R], h[R];
        HB_UNROLL
        for (int r = 0; r < R; ++r) {
            l[r] = sums(KIND == INT8 ? shift[g * capacity + r] : 0);
            h[r] = sums(0);
        }
        const auto meet = [&](Bytes w, int k) __attribute__((always_inline)) {
            HB_UNROLL
            for (int r = 0; r < R; ++r) {
                l[r] = dot<KIND == INT4>(l[r], w, x + r * row + k);
                if (FINE) h[r] = dot<KIND == INT4>(h[r], w, x + r * row + k + GROUP);
            }
        };
        for (int c = 0; c < (KIND == INT4 ? 4 : 8); ++c, codes += 64) {
            const Bytes w = bytes(codes);
            if (KIND == INT4)
                meet(low_codes(w), 8 * c), meet(high_codes(w), 8 * c + 4);
            else
                meet(w, 4 * c);
        }
        x += GROUP * STEP;
        const F16 d = load(scales), m = KIND == INT4 ? load(scales + LANES) : zero();
        scales += KIND == INT4 ? 2 * LANES : LANES;
        HB_UNROLL
        for (int r = 0; r < R; ++r)
            sum[r] = add_group<KIND>(
                sum[r], FINE ? with_high(l[r], h[r]) : l[r], d, m, scale[g * capacity + r], total[g * capacity + r]);
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

// `out(row, tile, sums)` for all rows and one tile.
template <int KIND, bool FINE, class Out>
inline void rows_of_tile(const Weight& w, int tile, const Rows& rows, int count, Out&& out) {
    const std::uint8_t* data = w.data + tile * tile_bytes(KIND, w.in);
    const F16 bias = w.bias != nullptr ? load(w.bias + tile * LANES) : zero();
    F16 sum[8];
    int row = 0;
    const auto hand_out = [&](int n) {
        for (int r = 0; r < n; ++r) out(row + r, tile, w.bias != nullptr ? sum[r] + bias : sum[r]);
        row += n;
    };
    while (count - row >= 8) sum_tile<KIND, FINE, 8>(data, w.in, rows, row, sum), hand_out(8);
    if (count - row >= 4) sum_tile<KIND, FINE, 4>(data, w.in, rows, row, sum), hand_out(4);
    if (count - row >= 2) sum_tile<KIND, FINE, 2>(data, w.in, rows, row, sum), hand_out(2);
    if (count - row >= 1) sum_tile<KIND, FINE, 1>(data, w.in, rows, row, sum), hand_out(1);
}

#if defined(HB_AMX)
// All rows of one tile or two, in panels.
template <int KIND, bool FINE, class Out>
inline void rows_by_amx(const Weight& w, int tile, int valid, const Rows& rows, int count, Out&& out) {
    const std::int64_t size = tile_bytes(KIND, w.in);
    const std::uint8_t* data[2] = {w.data + tile * size, w.data + (tile + valid - 1) * size};
    alignas(64) thread_local Panel panel;
    int row = 0;
    while (row < count) {
        const int left = (count - row + AMX_ROWS - 1) / AMX_ROWS, blocks = left < AMX_BLOCKS ? left : AMX_BLOCKS;
        sum_by_amx<KIND, FINE>(data, w.in, rows, row, blocks, panel);
        const int end = row + blocks * AMX_ROWS < count ? row + blocks * AMX_ROWS : count;
        for (int t = 0; t < valid; ++t) {
            const F16 bias = w.bias != nullptr ? load(w.bias + (tile + t) * LANES) : zero();
            for (int r = row; r < end; ++r) {
                const F16 sums = load(panel.of[r - row][t]);
                out(r, tile + t, w.bias != nullptr ? sums + bias : sums);
            }
        }
        row = end;
    }
}
#endif

template <int KIND, bool FINE, class Out>
inline void rows_of_tiles(const Weight& w, int tile, int valid, const Rows& rows, int count, Out&& out) {
#if defined(HB_AMX)
    if constexpr (KIND == INT4 || KIND == INT8)
        if (count >= MANY_ROWS) return rows_by_amx<KIND, FINE>(w, tile, valid, rows, count, out);
#endif
    for (int t = tile; t < tile + valid; ++t) rows_of_tile<KIND, FINE>(w, t, rows, count, out);
}

// `out(row, tile, sums)` for each of `count` rows, with the 16 outputs of tile `tile` and, where `valid` is 2, of the
// next. Two at a time are faster for many rows.
template <class Out>
inline void multiply_tiles(const Weight& w, int tile, int valid, const Rows& rows, int count, Out&& out) {
    switch (w.kind) {
        case FLOAT32: return rows_of_tiles<FLOAT32, false>(w, tile, valid, rows, count, out);
        case BFLOAT16: return rows_of_tiles<BFLOAT16, false>(w, tile, valid, rows, count, out);
        case INT8:
            return w.fine ? rows_of_tiles<INT8, true>(w, tile, valid, rows, count, out)
                          : rows_of_tiles<INT8, false>(w, tile, valid, rows, count, out);
        default:
            return w.fine ? rows_of_tiles<INT4, true>(w, tile, valid, rows, count, out)
                          : rows_of_tiles<INT4, false>(w, tile, valid, rows, count, out);
    }
}

// How many tiles are multiplied at a time, and how many such turns a weight has.
inline int tiles_at_once(int rows) { return rows >= MANY_ROWS ? 2 : 1; }
inline int turns(const Weight& w, int rows) { return (tiles(w) + tiles_at_once(rows) - 1) / tiles_at_once(rows); }

// The same for turn `turn` of a weight.
template <class Out>
inline void multiply_turn(const Weight& w, int turn, const Rows& rows, int count, Out&& out) {
    const int most = tiles_at_once(count), tile = turn * most, left = tiles(w) - tile;
    multiply_tiles(w, tile, left < most ? left : most, rows, count, out);
}

// Sixteen or fewer values of a tile into a matrix whose rows are as long as the weight has outputs.
inline void store_some(float* p, F16 v, int valid) {
    if (valid >= LANES) return store(p, v);
    float t[LANES];
    store(t, v);
    std::memcpy(p, t, std::size_t(valid) * sizeof(float));
}

}  // namespace hb
