// The plain floats: "blocks" of one element, widened many at a time where a loop would not be.
#pragma once

#include "emit.h"

namespace qk {
namespace QK_VARIANT {

struct F32 {
    static constexpr int kId = 0, kElements = 1, kBytes = 4;
    static uint32_t decode(const uint8_t* __restrict src, float* __restrict out) {
        memcpy(out, src, 4);
        return 0;
    }
};

struct F16 {
    static constexpr int kId = 1, kElements = 1, kBytes = 2;
    static uint32_t decode(const uint8_t* __restrict src, float* __restrict out) {
        *out = half_bits_to_float(load16(src));
        return 0;
    }
};

// n halves. The compiler does not vectorise the conversion of a single one by itself.
inline void widen_halves(const uint8_t* __restrict src, int64_t n, float* __restrict out) {
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + 2 * i));
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(halves));
    }
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 2 * i));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
    }
#endif
    for (; i < n; ++i) F16::decode(src + 2 * i, out + i);
}

struct BF16 {
    static constexpr int kId = 30, kElements = 1, kBytes = 2;
    static uint32_t decode(const uint8_t* __restrict src, float* __restrict out) {
        *out = bfloat_to_float(load16(src));
        return 0;
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
