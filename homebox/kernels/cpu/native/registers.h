// Has this CPU matrix registers (Intel AMX), and what shape do they have?
//
// All eight are 16 rows of 64 bytes, for whatever they are used: shaped once a thread, since nobody else in the
// engine's process shapes them (torch would for products in bf16 and int8, and none is made beside these kernels).
#pragma once

#include "vec.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define HB_AMX

namespace hb {

inline void shape_registers() {
    thread_local bool done = false;
    if (done) return;
    struct alignas(64) {
        std::uint8_t palette = 1, start = 0, reserved[14] = {};
        std::uint16_t bytes[16] = {};
        std::uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; ++i) shape.bytes[i] = 64, shape.rows[i] = 16;
    asm volatile("" : : "r"(&shape) : "memory");  // older gcc believe that only the first eight bytes are read
    _tile_loadconfig(&shape);
    done = true;
}

}  // namespace hb

#endif
