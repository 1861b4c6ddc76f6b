// Four products summed, sixteen times: the integer heart of a quantised matmul.
//
// `weights` are 64 unsigned bytes, four for each of 16 outputs; `x` are four signed bytes of one row, the same for all
// outputs. The sums are exact on every CPU, so which instruction makes them can never change a result. `with_high` is
// l + 16 * h.
#pragma once

#include "vec.h"

namespace hb {

inline std::int32_t four(const std::int8_t* x) {
    std::int32_t out;
    std::memcpy(&out, x, 4);
    return out;
}

#if defined(__AVX512F__)  // with VNNI: AVX-512 without it runs as AVX2

struct Sums {
    __m512i v;
};
struct Bytes {
    __m512i v;
};
inline Sums sums(std::int32_t start) { return {_mm512_set1_epi32(start)}; }
inline Bytes bytes(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes low_codes(Bytes packed) { return {_mm512_and_si512(packed.v, _mm512_set1_epi8(15))}; }
inline Bytes high_codes(Bytes packed) {
    return {_mm512_and_si512(_mm512_srli_epi16(packed.v, 4), _mm512_set1_epi8(15))};
}
inline F16 to_float(Sums s) { return {_mm512_cvtepi32_ps(s.v)}; }
inline Sums with_high(Sums l, Sums h) { return {_mm512_add_epi32(l.v, _mm512_slli_epi32(h.v, 4))}; }
template <bool SMALL>
inline Sums dot(Sums s, Bytes weights, const std::int8_t* x) {
    return {_mm512_dpbusd_epi32(s.v, weights.v, _mm512_set1_epi32(four(x)))};
}

#elif defined(__AVX2__)

struct Sums {
    __m256i a, b;
};
struct Bytes {
    __m256i a, b;
};
inline Sums sums(std::int32_t start) { return {_mm256_set1_epi32(start), _mm256_set1_epi32(start)}; }
inline Bytes bytes(const std::uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
inline Bytes low_codes(Bytes p) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(p.a, mask), _mm256_and_si256(p.b, mask)};
}
inline Bytes high_codes(Bytes p) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(p.a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(p.b, 4), mask)};
}
inline F16 to_float(Sums s) { return {_mm256_cvtepi32_ps(s.a), _mm256_cvtepi32_ps(s.b)}; }
inline Sums with_high(Sums l, Sums h) {
    return {_mm256_add_epi32(l.a, _mm256_slli_epi32(h.a, 4)), _mm256_add_epi32(l.b, _mm256_slli_epi32(h.b, 4))};
}
template <bool SMALL>
inline __m256i dot_half(__m256i s, __m256i w, __m256i x) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(s, w, x);
#else
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (SMALL)  // codes up to 15: a pair of products fits into 16 bits
        return _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones));
    // Up to 255 they would not. As signed numbers w - 128 they do, and 128 times the sum of x comes back.
    const __m256i shifted = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    const __m256i part = _mm256_maddubs_epi16(_mm256_abs_epi8(shifted), _mm256_sign_epi8(x, shifted));
    const __m256i whole = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
    return _mm256_add_epi32(
        s, _mm256_add_epi32(_mm256_madd_epi16(part, ones), _mm256_madd_epi16(whole, _mm256_set1_epi16(128))));
#endif
}
template <bool SMALL>
inline Sums dot(Sums s, Bytes w, const std::int8_t* x) {
    const __m256i v = _mm256_set1_epi32(four(x));
    return {dot_half<SMALL>(s.a, w.a, v), dot_half<SMALL>(s.b, w.b, v)};
}

#elif defined(__ARM_FEATURE_DOTPROD)

struct Sums {
    int32x4_t q[4];
};
struct Bytes {
    uint8x16_t q[4];
};
inline Sums sums(std::int32_t start) {
    const int32x4_t v = vdupq_n_s32(start);
    return {{v, v, v, v}};
}
inline Bytes bytes(const std::uint8_t* p) {
    return {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}
inline Bytes low_codes(Bytes p) {
    for (auto& v : p.q) v = vandq_u8(v, vdupq_n_u8(15));
    return p;
}
inline Bytes high_codes(Bytes p) {
    for (auto& v : p.q) v = vshrq_n_u8(v, 4);
    return p;
}
inline F16 to_float(Sums s) {
    F16 out;
    for (int i = 0; i < 4; ++i) out.q[i] = (F4)vcvtq_f32_s32(s.q[i]);
    return out;
}
inline Sums with_high(Sums l, Sums h) {
    for (int i = 0; i < 4; ++i) l.q[i] = vaddq_s32(l.q[i], vshlq_n_s32(h.q[i], 4));
    return l;
}
template <bool SMALL>
inline Sums dot(Sums s, Bytes w, const std::int8_t* x) {
    const int8x16_t v = vreinterpretq_s8_s32(vdupq_n_s32(four(x)));
    for (int i = 0; i < 4; ++i) {
        if constexpr (SMALL) {
            s.q[i] = vdotq_s32(s.q[i], vreinterpretq_s8_u8(w.q[i]), v);
        } else {  // as signed numbers w - 128, and 128 times the sum of x comes back
            s.q[i] = vdotq_s32(s.q[i], vreinterpretq_s8_u8(veorq_u8(w.q[i], vdupq_n_u8(128))), v);
            s.q[i] = vaddq_s32(s.q[i], vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), v), 7));
        }
    }
    return s;
}

#else

struct Sums {
    std::int32_t v[16];
};
struct Bytes {
    std::uint8_t v[64];
};
inline Sums sums(std::int32_t start) {
    Sums s;
    for (auto& v : s.v) v = start;
    return s;
}
inline Bytes bytes(const std::uint8_t* p) {
    Bytes b;
    std::memcpy(b.v, p, 64);
    return b;
}
inline Bytes low_codes(Bytes b) {
    for (auto& v : b.v) v &= 15;
    return b;
}
inline Bytes high_codes(Bytes b) {
    for (auto& v : b.v) v = std::uint8_t(v >> 4);
    return b;
}
inline F16 to_float(Sums s) {
    float t[16];
    for (int i = 0; i < 16; ++i) t[i] = float(s.v[i]);
    return load(t);
}
inline Sums with_high(Sums l, Sums h) {
    for (int i = 0; i < 16; ++i) l.v[i] += 16 * h.v[i];
    return l;
}
template <bool SMALL>
inline Sums dot(Sums s, Bytes w, const std::int8_t* x) {
    for (int i = 0; i < 16; ++i)
        s.v[i] += w.v[4 * i] * x[0] + w.v[4 * i + 1] * x[1] + w.v[4 * i + 2] * x[2] + w.v[4 * i + 3] * x[3];
    return s;
}

#endif

}  // namespace hb
