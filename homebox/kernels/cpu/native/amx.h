// The exact dots of many rows at once, where the CPU has matrix registers (Intel AMX, 8 bits).
//
// A register holds 64 bytes of 16 rows, another what they meet of 16 outputs; one instruction multiplies them. 64 bytes
// are two groups of a row, or one whose values have two bytes:
//
//   coarse       a register of rows [g, g+1] meets [w of g, 0] and [0, w of g+1]
//   INT4, fine   [l, h] of a group meets [q, 16 q]: the dot is whole at once
//   INT8, fine   [l, h] of a group meets [w, 0] and [0, w]: the dot is l + 16 h
//
// So two tiles of outputs make four products a turn. The weights of a turn are unpacked once and stay in their
// registers for a whole panel of rows, whose sums wait in the nearest cache. What is done with the dots is the same as
// everywhere (add_group), so the sums are the same to the bit. Part of linear.h.
#pragma once

#include "registers.h"

#if defined(HB_AMX)

namespace hb {

constexpr int AMX_ROWS = 16;   // rows of a register
constexpr int AMX_BLOCKS = 8;  // registers of rows in a panel

static_assert(AMX_ROWS <= PADDING, "a register is filled beyond the last row");

// Registers 0 to 2: dots; 3: rows; 4 to 7: outputs.
struct alignas(64) Register {
    std::uint8_t bytes[16][64];
};
struct alignas(64) Dots {
    std::int32_t of[AMX_ROWS][LANES];
};
struct alignas(64) Panel {  // the sums of a panel, for two tiles
    float of[AMX_BLOCKS * AMX_ROWS][2][LANES];
};

template <int KIND, bool FINE>
constexpr int turn_groups() {
    return KIND == INT8 && FINE ? 1 : 2;
}

// The weights of `groups` groups (one may be left at the end) of two tiles, for one turn: in the order of its products,
// group by group (of INT8, fine: l, h) and in a group tile by tile.
template <int KIND, bool FINE>
inline void unpack_turn(const std::uint8_t* const* codes, int groups, Register* to) {
    const __m512i zero = _mm512_setzero_si512();
    for (int tile = 0; tile < 2; ++tile) {
        const std::uint8_t* from = codes[tile];
        for (int g = 0; g < turn_groups<KIND, FINE>(); ++g) {
            Register& first = to[2 * g + tile];
            for (int i = 0; i < 8; ++i) {
                __m512i w = zero, other = zero;  // 4 inputs of 16 outputs, and what the second bytes meet
                if (g < groups && KIND == INT4) {
                    const Bytes both = bytes(from + g * 256 + i / 2 * 64);
                    w = (i % 2 == 0 ? low_codes(both) : high_codes(both)).v;
                    if (FINE) other = _mm512_slli_epi16(w, 4);  // below 256: nothing leaves its byte
                } else if (g < groups) {
                    w = _mm512_xor_si512(bytes(from + g * 512 + i * 64).v, _mm512_set1_epi8(-128));
                }
                const bool second = !FINE && g == 1;
                _mm512_store_si512(first.bytes[i], second ? zero : w);
                _mm512_store_si512(first.bytes[i + 8], second ? w : other);
                if (KIND == INT8 && FINE) {
                    _mm512_store_si512(to[2 + tile].bytes[i], zero);
                    _mm512_store_si512(to[2 + tile].bytes[i + 8], w);
                }
            }
        }
    }
}

// The dots of 16 rows with the four registers of outputs. The numbers of registers are part of an instruction.
template <int KIND, bool FINE>
inline void make_dots(const std::int8_t* rows, std::int64_t step, Dots* to) {
    _tile_loadd(3, rows, step);
#define HB_PRODUCT(c, b, i)                         \
    _tile_zero(c);                                  \
    if constexpr (KIND == INT4) _tile_dpbsud(c, 3, b); \
    else _tile_dpbssd(c, 3, b);                     \
    _tile_stored(c, to[i].of, 64);
    HB_PRODUCT(0, 4, 0)
    HB_PRODUCT(1, 5, 1)
    if (KIND == INT4 && FINE) _tile_loadd(3, rows + 64, step);
    HB_PRODUCT(2, 6, 2)
    HB_PRODUCT(0, 7, 3)
#undef HB_PRODUCT
}

// The sums of two tiles for `blocks` times 16 rows from `first` on.
template <int KIND, bool FINE>
inline void sum_by_amx(
    const std::uint8_t* const* tiles, int in, const Rows& rows, int first, int blocks, Panel& panel) {
    shape_registers();
    constexpr int TURN = turn_groups<KIND, FINE>(), CODES = KIND == INT4 ? 256 : 512, STEP = FINE ? 2 : 1;
    const int groups = in / GROUP;
    const std::int64_t row = std::int64_t(in) * STEP, capacity = rows.capacity;
    alignas(64) Register weights[4];
    alignas(64) Dots dots[2][4];
    std::memset(&panel, 0, sizeof(float) * std::size_t(blocks) * AMX_ROWS * 2 * LANES);
    for (int g = 0; g < groups; g += TURN) {
        const int here = groups - g < TURN ? groups - g : TURN;
        const std::uint8_t* codes[2];
        F16 d[2][TURN], m[2][TURN];
        for (int tile = 0; tile < 2; ++tile) {
            codes[tile] = tiles[tile] + scale_bytes(KIND, in) + g * CODES;
            for (int i = 0; i < TURN; ++i) {
                const half* at = (const half*)tiles[tile] + std::int64_t(g + i) * (KIND == INT4 ? 2 * LANES : LANES);
                d[tile][i] = i < here ? load(at) : zero();
                m[tile][i] = KIND == INT4 && i < here ? load(at + LANES) : zero();
            }
        }
        unpack_turn<KIND, FINE>(codes, here, weights);
        _tile_loadd(4, weights[0].bytes, 64);
        _tile_loadd(5, weights[1].bytes, 64);
        _tile_loadd(6, weights[2].bytes, 64);
        _tile_loadd(7, weights[3].bytes, 64);
        const std::int8_t* x = rows.bytes + first * row + g * GROUP * STEP;
        const float *scale = rows.scale + g * capacity + first, *total = rows.total + g * capacity + first;
        const auto add = [&](int block) __attribute__((always_inline)) {
            const Dots* dot = dots[block % 2];
            for (int r = 0; r < AMX_ROWS; ++r) {
                const int at = block * AMX_ROWS + r;
                HB_UNROLL
                for (int tile = 0; tile < 2; ++tile) {
                    F16 sum = load(panel.of[at][tile]);
                    HB_UNROLL
                    for (int i = 0; i < TURN; ++i) {
                        if (i >= here) break;
                        Sums whole{_mm512_load_si512(dot[2 * i + tile].of[r])};
                        if (KIND == INT8 && FINE) whole = with_high(whole, {_mm512_load_si512(dot[2 + tile].of[r])});
                        sum = add_group<KIND>(
                            sum, whole, d[tile][i], m[tile][i], scale[i * capacity + at], total[i * capacity + at]);
                    }
                    store(panel.of[at][tile], sum);
                }
            }
        };
        // The dots of a block are made while those of the block before are added.
        for (int block = 0; block < blocks; ++block) {
            make_dots<KIND, FINE>(x + block * AMX_ROWS * row, row, dots[block % 2]);
            if (block > 0) add(block - 1);
        }
        add(blocks - 1);
    }
}

}  // namespace hb

#endif
