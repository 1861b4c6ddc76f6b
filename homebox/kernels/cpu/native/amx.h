// The exact dots of many rows at once, where the CPU has matrix registers (Intel AMX, 8 bits).
//
// A register holds 16 rows of 32 inputs, another the same inputs of 16 outputs; one instruction multiplies them. What
// is done with the dots is the same as everywhere (add_group), so the sums are the same to the bit. Part of linear.h.
#pragma once

#if defined(__AMX_INT8__) && defined(__AVX512F__)
#define HB_AMX

#include <type_traits>

namespace hb {

constexpr int AMX_FROM = 16;     // so many rows are worth unpacking a tile for
constexpr int AMX_ROWS = 16;     // rows of a register
constexpr int AMX_MOST = 32768;  // inputs of an unpacked tile: half a megabyte a thread

static_assert(AMX_ROWS <= PADDING, "a register is filled beyond the last row");

// Registers 0, 1: dots of the low bytes; 2, 3: of the high ones; 4, 5: rows; 6: outputs. Once a thread: nobody else in
// the engine's process shapes them (torch would for products in bf16 and int8, and none is made beside these kernels).
inline void shape_registers() {
    thread_local bool done = false;
    if (done) return;
    struct alignas(64) {
        std::uint8_t palette = 1, start = 0, reserved[14] = {};
        std::uint16_t bytes[16] = {};
        std::uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 4; ++i) shape.bytes[i] = 64, shape.rows[i] = AMX_ROWS;
    for (int i = 4; i < 6; ++i) shape.bytes[i] = GROUP, shape.rows[i] = AMX_ROWS;
    shape.bytes[6] = 64, shape.rows[6] = GROUP / 4;
    _tile_loadconfig(&shape);
    done = true;
}

// A tile's weights as signed bytes or codes, one a byte: [groups][8][64].
inline std::uint8_t* unpacked() {
    alignas(64) thread_local std::uint8_t bytes[std::size_t(AMX_MOST) * LANES];
    return bytes;
}

template <int KIND>
inline void unpack_tile(const std::uint8_t* data, int in) {
    const std::uint8_t* codes = data + scale_bytes(KIND, in);
    std::uint8_t* to = unpacked();
    for (int i = 0; i < in / GROUP * (KIND == INT4 ? 4 : 8); ++i, codes += 64) {
        const Bytes both = bytes(codes);
        if (KIND == INT4) {
            _mm512_store_si512(to, low_codes(both).v);
            _mm512_store_si512(to + 64, high_codes(both).v);
            to += 128;
        } else {
            _mm512_store_si512(to, _mm512_xor_si512(both.v, _mm512_set1_epi8(-128)));
            to += 64;
        }
    }
}

template <int KIND>
inline void dots(int odd, bool high) {
    // The numbers of registers are part of the instruction.
    if (KIND == INT4) {
        if (!odd && !high) _tile_dpbsud(0, 4, 6);
        if (odd && !high) _tile_dpbsud(1, 4, 6);
        if (!odd && high) _tile_dpbsud(2, 5, 6);
        if (odd && high) _tile_dpbsud(3, 5, 6);
    } else {
        if (!odd && !high) _tile_dpbssd(0, 4, 6);
        if (odd && !high) _tile_dpbssd(1, 4, 6);
        if (!odd && high) _tile_dpbssd(2, 5, 6);
        if (odd && high) _tile_dpbssd(3, 5, 6);
    }
}

// The sums of an unpacked tile for 16 rows from `first` on.
template <int KIND, bool FINE>
inline void sum_by_amx(const std::uint8_t* data, int in, const Rows& rows, int first, F16* out) {
    shape_registers();
    const int groups = in / GROUP;
    const half* scales = (const half*)data;
    const std::uint8_t* w = unpacked();
    const std::int64_t at = std::int64_t(first) * in, capacity = rows.capacity;
    const std::int8_t *low = rows.low + at, *high = FINE ? rows.high + at : nullptr;
    const float *scale = rows.scale + first, *total = rows.total + first;
    alignas(64) std::int32_t l[2][AMX_ROWS * LANES], h[2][AMX_ROWS * LANES];
    F16 sum[AMX_ROWS];
    HB_UNROLL
    for (int r = 0; r < AMX_ROWS; ++r) sum[r] = zero();
    const auto meet = [&](int g, auto odd) __attribute__((always_inline)) {
        _tile_loadd(6, w + std::int64_t(g) * 512, 64);
        _tile_loadd(4, low + g * GROUP, in);
        if constexpr (odd.value) _tile_zero(1); else _tile_zero(0);
        dots<KIND>(odd.value, false);
        if constexpr (odd.value) _tile_stored(1, l[1], 64); else _tile_stored(0, l[0], 64);
        if constexpr (FINE) {
            _tile_loadd(5, high + g * GROUP, in);
            if constexpr (odd.value) _tile_zero(3); else _tile_zero(2);
            dots<KIND>(odd.value, true);
            if constexpr (odd.value) _tile_stored(3, h[1], 64); else _tile_stored(2, h[0], 64);
        }
    };
    const auto add = [&](int g, int odd) __attribute__((always_inline)) {
        const half* at_scales = scales + std::int64_t(g) * (KIND == INT4 ? 2 * LANES : LANES);
        const F16 d = load(at_scales), m = KIND == INT4 ? load(at_scales + LANES) : zero();
        HB_UNROLL
        for (int r = 0; r < AMX_ROWS; ++r) {
            const Sums of_low{_mm512_load_si512(l[odd] + r * LANES)};
            const Sums of_high{FINE ? _mm512_load_si512(h[odd] + r * LANES) : _mm512_setzero_si512()};
            sum[r] = add_group<KIND, FINE>(sum[r], of_low, of_high, d, m, scale[g * capacity + r], total[g * capacity + r]);
        }
    };
    // The dots of a group are made while those of the group before are added.
    std::integral_constant<int, 0> even;
    std::integral_constant<int, 1> odd;
    meet(0, even);
    int g = 1;
    for (; g + 1 < groups; g += 2) {
        meet(g, odd), add(g - 1, 0);
        meet(g + 1, even), add(g, 1);
    }
    if (g < groups) meet(g, odd), add(g - 1, 0), add(g, 1);
    else add(g - 1, 0);
    HB_UNROLL
    for (int r = 0; r < AMX_ROWS; ++r) out[r] = sum[r];
}

}  // namespace hb

#endif
