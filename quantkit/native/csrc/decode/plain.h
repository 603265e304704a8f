// "Decoders" of the plain floats, in runs of 32 elements.
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

struct BF16 {
    static constexpr int kId = 30, kElements = 1, kBytes = 2;
    static uint32_t decode(const uint8_t* __restrict src, float* __restrict out) {
        *out = bfloat_to_float(load16(src));
        return 0;
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
