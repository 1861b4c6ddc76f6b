// Sixteen floats, and sixteen sums of four small products, on whatever this CPU has.
//
// In bf16, what is subnormal is zero. Two bf16 beside each other are one lane's pair, the even one below.
//
// One meaning, four spellings: AVX-512, AVX2, NEON and plain C++. Kernels are written once on these two types. An
// operation rounds once (fused where the name says fma), and sums over lanes run in one fixed order, so a result does
// not depend on how a kernel is tiled. Compiled with -ffp-contract=off: nothing is fused that is not written so.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__SSE__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

// A small array stays in registers only if the loops over it are gone before the compiler looks.
#define HB_UNROLL _Pragma("GCC unroll 16")

namespace hb {

constexpr int LANES = 16;

using half = std::uint16_t;  // IEEE 754 binary16, as bits
using bf16 = std::uint16_t;  // the upper half of an fp32, as bits

inline float half_to_float(half h) {
    const std::uint32_t sign = std::uint32_t(h & 0x8000u) << 16;
    const std::uint32_t rest = h & 0x7fffu;
    std::uint32_t bits;
    if (rest >= 0x7c00u) {
        bits = sign | 0x7f800000u | ((rest & 0x3ffu) << 13);
    } else if (rest >= 0x400u) {
        bits = sign | ((rest << 13) + 0x38000000u);
    } else {  // subnormal: exact in fp32
        const float value = float(rest) * 5.9604644775390625e-8f;
        std::memcpy(&bits, &value, 4);
        bits |= sign;
    }
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

#if defined(__AVX512F__)

struct F16 {
    __m512 v;
};
inline F16 zero() { return {_mm512_setzero_ps()}; }
inline F16 all(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 load(const half* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline F16 load_bf16(const bf16* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
inline void load_pairs(const bf16* p, F16& even, F16& odd) {
    const __m512i line = _mm512_loadu_si512(p);
    even = {_mm512_castsi512_ps(_mm512_slli_epi32(line, 16))};
    odd = {_mm512_castsi512_ps(_mm512_and_si512(line, _mm512_set1_epi32(int(0xffff0000u))))};
}
#if defined(__AVX512BF16__)
inline __m256i to_bf16(F16 x) { return (__m256i)_mm512_cvtneps_pbh(x.v); }
#else
inline __m256i to_bf16(F16 x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff)));
    const __mmask16 subnormal = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    rounded = _mm512_mask_and_epi32(rounded, subnormal, bits, _mm512_set1_epi32(int(0x80000000u)));
    const __mmask16 no_number = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, no_number, bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
#endif
inline void store_bf16(bf16* p, F16 x) { _mm256_storeu_si256((__m256i*)p, to_bf16(x)); }
inline F16 rounded_to_bf16(F16 x) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(x)), 16))};
}
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
inline F16 nearest(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// 2^n * a for whole n in the range of exponents
inline F16 scale2(F16 a, F16 n) {
    const __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
    return {_mm512_mul_ps(a.v, _mm512_castsi512_ps(e))};
}
inline F16 zero_below(F16 a, F16 x, float limit) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ), a.v)};
}
inline void store_int8(std::int8_t* p, F16 whole) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole.v)));
}

#elif defined(__AVX2__)

struct F16 {
    __m256 a, b;
};
inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F16 all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline F16 load(const half* p) {
    const auto* eight = (const __m128i*)p;
    return {_mm256_cvtph_ps(_mm_loadu_si128(eight)), _mm256_cvtph_ps(_mm_loadu_si128(eight + 1))};
}
inline F16 load_bf16(const bf16* p) {
    const __m256i a = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
    const __m256i b = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p + 1)), 16);
    return {_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)};
}
inline void load_pairs(const bf16* p, F16& even, F16& odd) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)p), b = _mm256_loadu_si256((const __m256i*)p + 1);
    const __m256i upper = _mm256_set1_epi32(int(0xffff0000u));
    even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
    odd = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
}
inline __m256 rounded_to_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x), upper = _mm256_set1_epi32(int(0xffff0000u));
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(last, _mm256_set1_epi32(0x7fff)));
    const __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000));
    const __m256 subnormal = _mm256_castsi256_ps(_mm256_cmpeq_epi32(exponent, _mm256_setzero_si256()));
    const __m256 no_number = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 out = _mm256_castsi256_ps(_mm256_and_si256(rounded, upper));
    out = _mm256_blendv_ps(out, _mm256_and_ps(x, _mm256_set1_ps(-0.0f)), subnormal);
    const __m256i quiet = _mm256_and_si256(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), upper);
    return _mm256_blendv_ps(out, _mm256_castsi256_ps(quiet), no_number);
}
inline F16 rounded_to_bf16(F16 x) { return {rounded_to_bf16(x.a), rounded_to_bf16(x.b)}; }
inline void store_bf16(bf16* p, F16 x) {
    const F16 r = rounded_to_bf16(x);
    const __m256i a = _mm256_srli_epi32(_mm256_castps_si256(r.a), 16);
    const __m256i b = _mm256_srli_epi32(_mm256_castps_si256(r.b), 16);
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}
inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 c) { return {_mm256_fmadd_ps(x.a, y.a, c.a), _mm256_fmadd_ps(x.b, y.b, c.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F16 abs(F16 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F16 nearest(F16 x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline F16 scale2(F16 x, F16 n) { return x * F16{power_of_two(n.a), power_of_two(n.b)}; }
inline F16 zero_below(F16 y, F16 x, float limit) {
    const __m256 l = _mm256_set1_ps(limit);
    const __m256 a = _mm256_cmp_ps(x.a, l, _CMP_NLT_UQ), b = _mm256_cmp_ps(x.b, l, _CMP_NLT_UQ);
    return {_mm256_and_ps(y.a, a), _mm256_and_ps(y.b, b)};
}
inline void store_int8(std::int8_t* p, F16 whole) {
    const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(whole.a), _mm256_cvtps_epi32(whole.b));
    const __m256i order = _mm256_permute4x64_epi64(words, 0xd8);  // packs works in halves of the register
    _mm_storeu_si128((__m128i*)p, _mm_packs_epi16(_mm256_castsi256_si128(order), _mm256_extracti128_si256(order, 1)));
}

#else

// Four registers of four: what NEON has, and what a compiler makes of plain C++ elsewhere.
typedef float F4 __attribute__((vector_size(16)));
typedef std::int32_t I4 __attribute__((vector_size(16)));
struct F16 {
    F4 q[4];
};
#define HB_EACH for (int i = 0; i < 4; ++i)
inline F16 all(float x) {
    const F4 v = {x, x, x, x};
    return {{v, v, v, v}};
}
inline F16 zero() { return all(0.0f); }
inline F16 load(const float* p) {
    F16 out;
    std::memcpy(&out, p, 64);
    return out;
}
inline void store(float* p, F16 x) { std::memcpy(p, &x, 64); }
inline F16 load(const half* p) {
#if defined(__ARM_NEON) && defined(__ARM_FP16_FORMAT_IEEE)
    F16 out;
    HB_EACH out.q[i] = (F4)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
    return out;
#else
    float t[16];
    for (int i = 0; i < 16; ++i) t[i] = half_to_float(p[i]);
    return load(t);
#endif
}
inline void load_pairs(const bf16* p, F16& even, F16& odd) {
    I4 line[4];
    std::memcpy(line, p, 64);
    HB_EACH even.q[i] = (F4)(line[i] << 16), odd.q[i] = (F4)(line[i] & int(0xffff0000u));
}
inline F16 rounded_to_bf16(F16 x) {
    std::uint32_t t[16];
    std::memcpy(t, &x, 64);
    for (std::uint32_t& bits : t) {
        const std::uint32_t rest = bits & 0x7fffffffu;
        const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        bits = (rest < 0x00800000u ? bits & 0x80000000u : rest > 0x7f800000u ? bits | 0x400000u : rounded) & 0xffff0000u;
    }
    std::memcpy(&x, t, 64);
    return x;
}
inline void store_bf16(bf16* p, F16 x) {
    const F16 rounded = rounded_to_bf16(x);
    std::uint32_t t[16];
    std::memcpy(t, &rounded, 64);
    for (int i = 0; i < 16; ++i) p[i] = bf16(t[i] >> 16);
}
inline F16 load_bf16(const bf16* p) {
    std::uint32_t t[16];
    for (int i = 0; i < 16; ++i) t[i] = std::uint32_t(p[i]) << 16;
    F16 out;
    std::memcpy(&out, t, 64);
    return out;
}
inline F16 operator+(F16 x, F16 y) { HB_EACH x.q[i] += y.q[i]; return x; }
inline F16 operator-(F16 x, F16 y) { HB_EACH x.q[i] -= y.q[i]; return x; }
inline F16 operator*(F16 x, F16 y) { HB_EACH x.q[i] *= y.q[i]; return x; }
inline F16 operator/(F16 x, F16 y) { HB_EACH x.q[i] /= y.q[i]; return x; }
inline F16 fma(F16 x, F16 y, F16 c) {
#if defined(__ARM_NEON)
    HB_EACH c.q[i] = (F4)vfmaq_f32((float32x4_t)c.q[i], (float32x4_t)x.q[i], (float32x4_t)y.q[i]);
#else
    HB_EACH c.q[i] = x.q[i] * y.q[i] + c.q[i];  // two roundings: a CPU without fma is the slow path anyway
#endif
    return c;
}
inline F16 max(F16 x, F16 y) { HB_EACH x.q[i] = x.q[i] > y.q[i] ? x.q[i] : y.q[i]; return x; }
inline F16 min(F16 x, F16 y) { HB_EACH x.q[i] = x.q[i] < y.q[i] ? x.q[i] : y.q[i]; return x; }
inline F16 abs(F16 x) {
    HB_EACH x.q[i] = (F4)((I4)x.q[i] & 0x7fffffff);
    return x;
}
inline F16 nearest(F16 x) {  // for |x| < 2^22: adding 1.5 * 2^23 leaves no bits behind the point
    HB_EACH x.q[i] = (x.q[i] + 12582912.0f) - 12582912.0f;
    return x;
}
inline F16 scale2(F16 x, F16 n) {
    HB_EACH x.q[i] *= (F4)((__builtin_convertvector(n.q[i], I4) + 127) << 23);
    return x;
}
inline F16 zero_below(F16 y, F16 x, float limit) {
    HB_EACH y.q[i] = (F4)((I4)y.q[i] & ~(x.q[i] < limit));
    return y;
}
inline void store_int8(std::int8_t* p, F16 whole) {
    float t[16];
    store(t, whole);
    for (int i = 0; i < 16; ++i) p[i] = std::int8_t(int(t[i]));
}
#undef HB_EACH

#endif

// The sum and the largest of the lanes, always in the order of a binary tree over their indices.
#if defined(__AVX2__)
inline __m256 low_half(F16 x) {
#if defined(__AVX512F__)
    return _mm512_castps512_ps256(x.v);
#else
    return x.a;
#endif
}
inline __m256 high_half(F16 x) {
#if defined(__AVX512F__)
    return _mm512_extractf32x8_ps(x.v, 1);
#else
    return x.b;
#endif
}
inline float sum(F16 x) {
    const __m256 eight = _mm256_add_ps(low_half(x), high_half(x));
    const __m128 quad = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 pair = _mm_add_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_add_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}
inline float largest(F16 x) {
    const __m256 eight = _mm256_max_ps(low_half(x), high_half(x));
    const __m128 quad = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 pair = _mm_max_ps(quad, _mm_movehl_ps(quad, quad));
    return _mm_cvtss_f32(_mm_max_ss(pair, _mm_shuffle_ps(pair, pair, 1)));
}
#else
template <class F>
inline float tree(F16 x, F&& both) {
    float t[LANES];
    store(t, x);
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) t[i] = both(t[i], t[i + step]);
    return t[0];
}
inline float sum(F16 x) {
    return tree(x, [](float a, float b) { return a + b; });
}
inline float largest(F16 x) {
    return tree(x, [](float a, float b) { return a > b ? a : b; });
}
#endif

// The largest |value| of 32; what is infinite or no number counts as larger than any: as integers, their bits are.
inline float largest_magnitude(F16 x, F16 y) {
    std::int32_t bits;
#if defined(__AVX512F__)
    bits = _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_castps_si512(abs(x).v), _mm512_castps_si512(abs(y).v)));
#else
    std::int32_t a[LANES], b[LANES];
    store((float*)a, abs(x)), store((float*)b, abs(y));
    for (int i = 0; i < LANES; ++i) a[i] = a[i] > b[i] ? a[i] : b[i];
    bits = a[0];
    for (int i = 1; i < LANES; ++i) bits = bits > a[i] ? bits : a[i];
#endif
    float out;
    std::memcpy(&out, &bits, 4);
    return out;
}

// While one lives, what would be subnormal is zero, as matrix registers have it.
class NoSubnormals {
#if defined(__SSE__)
public:
    NoSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
    ~NoSubnormals() { _mm_setcsr(before_); }

private:
    unsigned before_;
#else
public:
    NoSubnormals() {}
    ~NoSubnormals() {}
#endif
};

inline float first(F16 x) {
    float t[LANES];
    store(t, x);
    return t[0];
}

// e^x, within 2 units in the last place; exactly 0 below -87.3 (the smallest normal number) and for -inf; NaN stays.
// Cody-Waite reduction and the degree-6 polynomial of Cephes' expf (Moshier 1989).
inline F16 exp(F16 x) {
    const F16 bounded = max(all(-87.3f), min(all(88.0f), x));  // in this order a NaN comes through
    const F16 n = nearest(bounded * all(1.44269504f));
    const F16 r = fma(n, all(2.12194440e-4f), fma(n, all(-0.693359375f), bounded));
    F16 p = all(1.9875691500e-4f);
    p = fma(p, r, all(1.3981999507e-3f));
    p = fma(p, r, all(8.3334519073e-3f));
    p = fma(p, r, all(4.1665795894e-2f));
    p = fma(p, r, all(1.6666665459e-1f));
    p = fma(p, r, all(5.0000001201e-1f));
    p = fma(p, r * r, r + all(1.0f));
    return zero_below(scale2(p, n), x, -87.3f);
}

}  // namespace hb
