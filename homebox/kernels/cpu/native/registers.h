// Has this CPU matrix registers (Intel AMX), and what shape do they have?
//
// All eight are 16 rows of 64 bytes, for whatever they are used. A thread shapes them once a call from outside: torch, whose
// products in bf16 and int8 shape them otherwise and let go of them, may have run on the caller's thread in between.
#pragma once

#include "vec.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define HB_AMX
#endif

namespace hb {

inline thread_local bool registers_shaped = false;

// A call from outside begins on this thread.
inline void forget_registers() { registers_shaped = false; }

#ifdef HB_AMX
inline void shape_registers() {
    if (registers_shaped) return;
    struct alignas(64) {
        std::uint8_t palette = 1, start = 0, reserved[14] = {};
        std::uint16_t bytes[16] = {};
        std::uint8_t rows[16] = {};
    } shape;
    for (int i = 0; i < 8; ++i) shape.bytes[i] = 64, shape.rows[i] = 16;
    asm volatile("" : : "r"(&shape) : "memory");  // older gcc believe that only the first eight bytes are read
    _tile_loadconfig(&shape);
    registers_shaped = true;
}
#endif

}  // namespace hb
