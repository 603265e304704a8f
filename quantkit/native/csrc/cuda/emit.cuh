// Where the device decoders put eight values: from integer codes to floats or bfloat16.
#pragma once

#include "portable.cuh"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#endif

namespace qk {
namespace QK_VARIANT {

struct alignas(16) EightFloats {
    float values[8];
};

// In pairs, the first of a pair in the low half.
struct alignas(16) EightBfloats {
    uint32_t pairs[4];
};

// To nearest even.
QK_HD inline uint32_t bfloat_pair(float first, float second) {
#if defined(__CUDA_ARCH__)
    const __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    uint32_t bits;
    memcpy(&bits, &pair, sizeof bits);
    return bits;
#else
    return float_to_bfloat(first) | uint32_t(float_to_bfloat(second)) << 16;
#endif
}

QK_HD inline void put_pair(float first, float second, int k, EightFloats* out) {
    out->values[2 * k] = first;
    out->values[2 * k + 1] = second;
}

QK_HD inline void put_pair(float first, float second, int k, EightBfloats* out) {
    out->pairs[k] = bfloat_pair(first, second);
}

// scale * (code - zero) for eight unsigned codes.
template <class Values>
QK_HD inline void emit(Eight codes, float zero, float scale, Values* out) {
    QK_UNROLL
    for (int k = 0; k < 4; ++k) {
        const uint32_t word = k < 2 ? codes.low : codes.high;
        put_pair(scale * byte_to_float(word, 2 * k % 4, zero),
                 scale * byte_to_float(word, 2 * k % 4 + 1, zero), k, out);
    }
}

// a * b + c where a * b has no more bits than a float: rounding once or twice is the same.
QK_HD inline float add_exact_product(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return a * b + c;
#endif
}

// scale * code + offset, for codes and scales whose products are exact.
template <class Values>
QK_HD inline void emit_shifted(Eight codes, float scale, float offset, Values* out) {
    QK_UNROLL
    for (int k = 0; k < 4; ++k) {
        const uint32_t word = k < 2 ? codes.low : codes.high;
        const float first = byte_to_float(word, 2 * k % 4, 0.0f);
        const float second = byte_to_float(word, 2 * k % 4 + 1, 0.0f);
        put_pair(add_exact_product(scale, first, offset), add_exact_product(scale, second, offset),
                 k, out);
    }
}

// scale * (code - 1) for codes from 0 to 3.
QK_HD inline void emit_few(Eight codes, float scale, EightFloats* out) {
    emit(codes, 1.0f, scale, out);
}

// So few different results are rounded first, then chosen by the codes.
QK_HD inline void emit_few(Eight codes, float scale, EightBfloats* out) {
    const uint32_t lower = bfloat_pair(-scale, 0.0f * scale);
    const uint32_t upper = bfloat_pair(scale, 2.0f * scale);
    // The two bytes of result c are 2 c and 2 c + 1.
    const uint32_t low = codes.low * 0x22u + 0x10101010u, high = codes.high * 0x22u + 0x10101010u;
    out->pairs[0] = permute(lower, upper, low);
    out->pairs[1] = permute(lower, upper, low >> 16);
    out->pairs[2] = permute(lower, upper, high);
    out->pairs[3] = permute(lower, upper, high >> 16);
}

// scale where the bit is set, else -scale, for the lowest eight bits.
QK_HD inline void emit_signs(uint32_t bits, float scale, EightFloats* out) {
    const Eight ones = spread_bits(bits);
    emit({ones.low << 1, ones.high << 1}, 1.0f, scale, out);
}

QK_HD inline void emit_signs(uint32_t bits, float scale, EightBfloats* out) {
    const uint32_t minus = bfloat_pair(-scale, -scale);
    const uint32_t apart = bits | bits << 15;  // even bits, and odd ones 16 above them
    QK_UNROLL
    for (int k = 0; k < 4; ++k) {
        out->pairs[k] = minus ^ ((apart << (15 - 2 * k)) & 0x80008000u);
    }
}

}  // namespace QK_VARIANT
}  // namespace qk
