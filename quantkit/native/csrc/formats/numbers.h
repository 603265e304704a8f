// Number formats of block scales: binary16, bfloat16, e8m0, e4m3.
//
// Everything here is exact integer arithmetic on bit patterns, so host, device and every SIMD
// variant agree. Each variant has copies of its own: were they shared, the linker could keep the
// one compiled for instructions that the processor lacks.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#if defined(__CUDACC__)
#define QK_HD __host__ __device__
#define QK_UNROLL _Pragma("unroll")
#define QK_ROLLED _Pragma("unroll 1")
#else
#define QK_HD
#define QK_UNROLL
#define QK_ROLLED
#endif

#ifndef QK_VARIANT
#error "QK_VARIANT names the namespace of this compilation"
#endif

namespace qk {
namespace QK_VARIANT {

QK_HD inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

QK_HD inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Little-endian fields at any address.
QK_HD inline uint16_t load16(const uint8_t* p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

QK_HD inline uint32_t load32(const uint8_t* p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

QK_HD inline uint64_t load64(const uint8_t* p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

// binary16 to binary32, exact; NaN becomes quiet and keeps its payload.
QK_HD inline float half_bits_to_float(uint16_t half) {
#if defined(__F16C__) && !defined(__CUDA_ARCH__)
    return _cvtsh_ss(half);
#else
    const uint32_t sign = uint32_t(half & 0x8000u) << 16;
    const uint32_t rest = uint32_t(half & 0x7FFFu) << 13;
    // A shifted half has its exponent 112 too low: multiplying by 2^112 corrects it, and
    // normalises subnormals on the way. Infinity and NaN have to be told apart.
    const float scaled = float_of_bits(rest) * float_of_bits((127u + 112u) << 23);
    const uint32_t special = rest | 0x7F800000u | (rest & 0x007FFFFFu ? 0x00400000u : 0u);
    const uint32_t bits = rest >= 0x0F800000u ? special : bits_of_float(scaled);
    return float_of_bits(sign | bits);
#endif
}

QK_HD inline float load_half(const uint8_t* p) {
    return half_bits_to_float(load16(p));
}

// 1 where the binary16 at p is infinite or NaN.
QK_HD inline uint32_t half_is_special(const uint8_t* p) {
    return (load16(p) & 0x7C00u) == 0x7C00u;
}

// binary32 to bfloat16, to nearest even; NaN stays NaN.
QK_HD inline uint16_t float_to_bfloat(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40u;
    return uint16_t((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

QK_HD inline float bfloat_to_float(uint16_t bits) {
    return float_of_bits(uint32_t(bits) << 16);
}

// Half of 2^(e - 127): the levels of e2m1 are stored doubled. 0xFF is NaN.
QK_HD inline float e8m0_half(uint8_t e) {
    if (e == 0xFF) return float_of_bits(0x7FC00000u);
    return float_of_bits(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23);
}

// Half of an unsigned e4m3 number, top bit ignored; 0x7F, NaN by the standard, reads as 0 (ggml).
QK_HD inline float e4m3_half(uint8_t code) {
    if (code == 0x7F) return 0.0f;
    const uint32_t exponent = (code >> 3) & 15u;
    const uint32_t mantissa = code & 7u;
    const float subnormal = float(mantissa) * float_of_bits((127u - 10u) << 23);
    const float normal = float_of_bits(((exponent + 127u - 8u) << 23) | (mantissa << 20));
    return exponent == 0 ? subnormal : normal;
}

}  // namespace QK_VARIANT
}  // namespace qk
