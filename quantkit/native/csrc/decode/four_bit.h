// Decoders of the types whose 4-bit codes index a table: IQ4_NL, IQ4_XS, MXFP4, NVFP4.
#pragma once

#include "../formats/levels.h"
#include "emit.h"

namespace qk {
namespace QK_VARIANT {

// half d | 16 bytes of nibbles.
struct IQ4_NL {
    static constexpr int kId = 20, kElements = 32, kBytes = 18;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        int8_t levels[32];
        look_up_nibbles<16>(kLevelsIq4, block + 2, levels);
        scale_codes<32>(levels, &d, 1, out);
        return half_is_special(block);
    }
};

// half d | 16 bits: upper two bits of eight scales | 4 bytes: lower four bits | nibbles.
// Group scales are d (scale - 32).
struct IQ4_XS {
    static constexpr int kId = 23, kElements = kSuper, kBytes = 136;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const uint32_t upper = load16(block + 2);
        const uint32_t lower = load32(block + 4);
        float scales[8];
        int8_t levels[kSuper];
        for (int g = 0; g < 8; ++g) {
            const int scale = int(((lower >> (4 * g)) & 15) | (((upper >> (2 * g)) & 3) << 4));
            scales[g] = d * float(scale - 32);
            look_up_nibbles<16>(kLevelsIq4, block + 8 + 16 * g, levels + 32 * g);
        }
        scale_codes<32>(levels, scales, 8, out);
        return half_is_special(block);
    }
};

// e8m0 scale | 16 bytes of nibbles.
struct MXFP4 {
    static constexpr int kId = 39, kElements = 32, kBytes = 17;
    static constexpr uint8_t kLargestSafe = 252;  // 12 times its scale still fits a float
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = e8m0_half(block[0]);
        int8_t levels[32];
        look_up_nibbles<16>(kLevelsE2m1Doubled, block + 1, levels);
        scale_codes<32>(levels, &d, 1, out);
        return block[0] > kLargestSafe;
    }
};

// Four e4m3 scales | four groups of 8 bytes of nibbles.
struct NVFP4 {
    static constexpr int kId = 40, kElements = 64, kBytes = 36;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        float scales[4];
        int8_t levels[64];
        for (int g = 0; g < 4; ++g) {
            scales[g] = e4m3_half(block[g]);
            look_up_nibbles<8>(kLevelsE2m1Doubled, block + 4 + 8 * g, levels + 16 * g);
        }
        scale_codes<16>(levels, scales, 4, out);
        return 0;
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
