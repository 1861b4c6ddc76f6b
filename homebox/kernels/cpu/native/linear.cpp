// Weights into tiles, rows out of them, and a matmul by itself: what Python calls at load time and in the tests.
#include "linear.h"

#include <algorithm>

#include "pool.h"

#define HB_EXPORT extern "C" __attribute__((visibility("default")))

namespace hb {
namespace {

// Where input k of output lane o of a group lies: the byte, and whether it is its high half.
inline int int8_byte(int o, int k) { return (k / 4) * 64 + o * 4 + k % 4; }
inline int int4_byte(int o, int k) { return (k / 8) * 64 + o * 4 + k % 4; }
inline bool int4_high(int k) { return k % 8 >= 4; }

}  // namespace

void unpack_row(const Weight& w, int row, float* out) {
    const std::uint8_t* tile = w.data + row / LANES * tile_bytes(w.kind, w.in);
    const int o = row % LANES;
    const half* d = (const half*)tile;
    const std::uint8_t* bytes = tile + scale_bytes(w.kind, w.in);
    for (int k = 0; k < w.in; ++k) {
        const int g = k / GROUP;
        if (w.kind == FLOAT32) {
            out[k] = ((const float*)tile)[std::int64_t(k) * LANES + o];
        } else if (w.kind == BFLOAT16) {
            const std::uint32_t bits = std::uint32_t(((const std::uint16_t*)tile)[std::int64_t(k) * LANES + o]) << 16;
            std::memcpy(out + k, &bits, 4);
        } else if (w.kind == INT8) {
            out[k] = half_to_float(d[g * LANES + o]) * float(int(bytes[g * 512 + int8_byte(o, k % GROUP)]) - 128);
        } else {
            const std::uint8_t both = bytes[g * 256 + int4_byte(o, k % GROUP)];
            const int code = int4_high(k % GROUP) ? both >> 4 : both & 15;
            out[k] = half_to_float(d[g * 2 * LANES + o]) * float(code) + half_to_float(d[g * 2 * LANES + LANES + o]);
        }
    }
}

}  // namespace hb

HB_EXPORT std::int64_t hb_packed_bytes(int kind, int out, int in) {
    return (out + hb::LANES - 1) / hb::LANES * hb::tile_bytes(kind, in);
}

// Integer weights. `codes`: [out, in] bytes, 0 .. 15 for INT4 and signed for INT8; `scales`, `minimums`: [out, in / 32]
// fp16 (minimums for INT4 only). `out` is padded with zeros.
HB_EXPORT void hb_pack_integer(
    int kind, int out, int in, const std::uint8_t* codes, const hb::half* scales, const hb::half* minimums,
    std::uint8_t* packed) {
    using namespace hb;
    const int groups = in / GROUP;
    pool_each((out + LANES - 1) / LANES, [&](int t) {
        std::uint8_t* tile = packed + t * tile_bytes(kind, in);
        std::memset(tile, 0, std::size_t(tile_bytes(kind, in)));
        half* d = (half*)tile;
        std::uint8_t* bytes = tile + scale_bytes(kind, in);
        for (int o = 0; o < LANES && t * LANES + o < out; ++o) {
            const std::int64_t row = t * LANES + o;
            for (int g = 0; g < groups; ++g) {
                const std::uint8_t* from = codes + row * in + g * GROUP;
                if (kind == INT4) {
                    d[g * 2 * LANES + o] = scales[row * groups + g];
                    d[g * 2 * LANES + LANES + o] = minimums[row * groups + g];
                    std::uint8_t* to = bytes + g * 256;
                    for (int k = 0; k < GROUP; ++k)
                        to[int4_byte(o, k)] |= std::uint8_t(int4_high(k) ? from[k] << 4 : from[k]);
                } else {
                    d[g * LANES + o] = scales[row * groups + g];
                    std::uint8_t* to = bytes + g * 512;
                    for (int k = 0; k < GROUP; ++k) to[int8_byte(o, k)] = std::uint8_t(from[k] + 128);
                }
            }
        }
    });
}

// Float weights: `values` is [out, in] of the kind's own type.
HB_EXPORT void hb_pack_float(int kind, int out, int in, const void* values, std::uint8_t* packed) {
    using namespace hb;
    const int size = kind == FLOAT32 ? 4 : 2;
    pool_each((out + LANES - 1) / LANES, [&](int t) {
        std::uint8_t* tile = packed + t * tile_bytes(kind, in);
        std::memset(tile, 0, std::size_t(tile_bytes(kind, in)));
        for (int o = 0; o < LANES && t * LANES + o < out; ++o) {
            const std::uint8_t* from = (const std::uint8_t*)values + (t * LANES + o) * std::int64_t(in) * size;
            for (std::int64_t k = 0; k < in; ++k)
                std::memcpy(tile + (k * LANES + o) * size, from + k * size, std::size_t(size));
        }
    });
}

HB_EXPORT void hb_unpack_rows(const hb::Weight* w, const std::int64_t* rows, int count, float* out) {
    hb::pool_each(count, [&](int i) { hb::unpack_row(*w, int(rows[i]), out + std::int64_t(i) * w->in); });
}

// `out` = `x` times the weight, plus its bias: [rows, in] to [rows, out].
HB_EXPORT void hb_multiply(const hb::Weight* w, const float* x, int rows, float* out) {
    using namespace hb;
    Activations input;
    input.resize(rows, w->in);
    pool_each(rows, [&](int r) {
        std::copy(x + std::int64_t(r) * w->in, x + std::int64_t(r + 1) * w->in, input.row(r));
        if (is_integer(*w)) input.quantise(r, w->fine);
    });
    pool_each(turns(*w, rows), [&](int turn) {
        multiply_turn(*w, turn, input.rows(), rows, [&](int row, int t, F16 sums) {
            store_some(out + std::int64_t(row) * w->out + t * LANES, sums, w->out - t * LANES);
        });
    });
}
