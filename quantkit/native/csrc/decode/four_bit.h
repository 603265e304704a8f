// Decoders of the types whose 4-bit codes index a table: IQ4_NL, IQ4_XS, MXFP4, NVFP4.
#pragma once

#include "../formats/levels.h"
#include "emit.h"

namespace qk {
namespace QK_VARIANT {

// 16 low nibbles, then 16 high ones, through a table.
inline void emit_levels(const int8_t* table, U8x16 packed, float scale, float* __restrict out) {
    emit(look_up(table, packed & 15), scale, out);
    emit(look_up(table, packed >> 4), scale, out + 16);
}

// half d | 16 bytes of nibbles.
struct IQ4_NL {
    static constexpr int kId = 20, kElements = 32, kBytes = 18;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        emit_levels(kLevelsIq4, load_bytes(block + 2), d, out);
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
        for (int g = 0; g < 8; ++g) {
            const int code = int(((lower >> (4 * g)) & 15) | (((upper >> (2 * g)) & 3) << 4));
            const float scale = d * float(code - 32);
            emit_levels(kLevelsIq4, load_bytes(block + 8 + 16 * g), scale, out + 32 * g);
        }
        return half_is_special(block);
    }
};

// e8m0 scale | 16 bytes of nibbles.
struct MXFP4 {
    static constexpr int kId = 39, kElements = 32, kBytes = 17;
    static constexpr uint8_t kLargestSafe = 252;  // 12 times its scale still fits a float
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        emit_levels(kLevelsE2m1Doubled, load_bytes(block + 1), e8m0_half(block[0]), out);
        return block[0] > kLargestSafe;
    }
};

// Four e4m3 scales | four groups of 8 bytes of nibbles.
struct NVFP4 {
    static constexpr int kId = 40, kElements = 64, kBytes = 36;
    static constexpr uint64_t kLowNibbles = 0x0F0F0F0F0F0F0F0Fu;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        for (int g = 0; g < 4; ++g) {
            const uint64_t packed = load64(block + 4 + 8 * g);
            const U8x16 codes = join_words(packed & kLowNibbles, (packed >> 4) & kLowNibbles);
            emit(look_up(kLevelsE2m1Doubled, codes), e4m3_half(block[g]), out + 16 * g);
        }
        return 0;
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
