// Decoders of the types whose codes index a grid of eight (or four) levels: IQ1, IQ2, IQ3.
//
// Grid rows are moved as one integer each; signs and offsets are then applied to all 256 bytes.
#pragma once

#include "../formats/grids.h"
#include "emit.h"

namespace qk {
namespace QK_VARIANT {

// Levels of a super-block, and for each a byte that is 0xFF where the level is negated.
struct SignedLevels {
    uint64_t levels[32];
    uint64_t negated[32];

    void apply(int8_t* __restrict codes) const {
        int8_t level[kSuper];
        int8_t mask[kSuper];
        memcpy(level, levels, kSuper);
        memcpy(mask, negated, kSuper);
        for (int j = 0; j < kSuper; ++j) codes[j] = int8_t((level[j] ^ mask[j]) - mask[j]);
    }
};

// half d | per 32 elements: 4 grid indices, then 4 times 7 sign bits below a 4-bit scale.
struct IQ2_XXS {
    static constexpr int kId = 16, kElements = kSuper, kBytes = 66;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        SignedLevels unpacked;
        int8_t codes[kSuper];
        float scales[8];
        for (int g = 0; g < 8; ++g) {
            const uint8_t* group = block + 2 + 8 * g;
            const uint32_t packed = load32(group + 4);
            scales[g] = d * (0.5f + float(packed >> 28)) * 0.25f;
            for (int k = 0; k < 4; ++k) {
                unpacked.levels[4 * g + k] = kGridIq2xxs.rows[group[k]];
                unpacked.negated[4 * g + k] = kSigns.of_seven((packed >> (7 * k)) & 127);
            }
        }
        unpacked.apply(codes);
        scale_codes<32>(codes, scales, 8, out);
        return half_is_special(block);
    }
};

// The scales of IQ2_XS and IQ2_S: one nibble per 16 elements, the lower first.
inline void nibble_scales(float d, const uint8_t* packed, float* scales) {
    for (int g = 0; g < 8; ++g) {
        scales[2 * g] = d * (0.5f + float(packed[g] & 15)) * 0.25f;
        scales[2 * g + 1] = d * (0.5f + float(packed[g] >> 4)) * 0.25f;
    }
}

// half d | 32 times 16 bits: a 9-bit grid index below 7 sign bits | 8 bytes of scales.
struct IQ2_XS {
    static constexpr int kId = 17, kElements = kSuper, kBytes = 74;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        SignedLevels unpacked;
        int8_t codes[kSuper];
        float scales[16];
        nibble_scales(load_half(block), block + 66, scales);
        for (int k = 0; k < 32; ++k) {
            const uint32_t packed = load16(block + 2 + 2 * k);
            unpacked.levels[k] = kGridIq2xs.rows[packed & 511];
            unpacked.negated[k] = kSigns.of_seven(packed >> 9);
        }
        unpacked.apply(codes);
        scale_codes<16>(codes, scales, 16, out);
        return half_is_special(block);
    }
};

// half d | 32 lower index bytes | 32 sign bytes | 8 bytes of upper index bit pairs | scales.
struct IQ2_S {
    static constexpr int kId = 22, kElements = kSuper, kBytes = 82;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const uint8_t* lower = block + 2;
        const uint8_t* signs = block + 34;
        const uint8_t* upper = block + 66;
        SignedLevels unpacked;
        int8_t codes[kSuper];
        float scales[16];
        nibble_scales(load_half(block), block + 74, scales);
        for (int k = 0; k < 32; ++k) {
            const uint32_t high = (upper[k / 4] >> (2 * (k % 4))) & 3;
            unpacked.levels[k] = kGridIq2s.rows[lower[k] | (high << 8)];
            unpacked.negated[k] = kSigns.of_eight(signs[k]);
        }
        unpacked.apply(codes);
        scale_codes<16>(codes, scales, 16, out);
        return half_is_special(block);
    }
};

inline uint64_t join(uint32_t low, uint32_t high) {
    return uint64_t(low) | (uint64_t(high) << 32);
}

// half d | 64 grid indices of four levels | per 32 elements 4 times 7 sign bits, 4-bit scale.
struct IQ3_XXS {
    static constexpr int kId = 18, kElements = kSuper, kBytes = 98;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const uint8_t* indices = block + 2;
        SignedLevels unpacked;
        int8_t codes[kSuper];
        float scales[8];
        for (int g = 0; g < 8; ++g) {
            const uint32_t packed = load32(block + 66 + 4 * g);
            scales[g] = d * (0.5f + float(packed >> 28)) * 0.5f;
            for (int k = 0; k < 4; ++k) {
                unpacked.negated[4 * g + k] = kSigns.of_seven((packed >> (7 * k)) & 127);
            }
        }
        for (int k = 0; k < 32; ++k) {
            unpacked.levels[k] = join(kGridIq3xxs.rows[indices[2 * k]],
                                      kGridIq3xxs.rows[indices[2 * k + 1]]);
        }
        unpacked.apply(codes);
        scale_codes<32>(codes, scales, 8, out);
        return half_is_special(block);
    }
};

// half d | 64 lower index bytes | 8 bytes of ninth index bits | 32 sign bytes | 4 bytes of scales.
// Group scales are d (2 scale + 1).
struct IQ3_S {
    static constexpr int kId = 21, kElements = kSuper, kBytes = 110;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const uint8_t* lower = block + 2;
        const uint8_t* ninth = block + 66;
        const uint8_t* signs = block + 74;
        SignedLevels unpacked;
        int8_t codes[kSuper];
        float scales[8];
        for (int g = 0; g < 8; ++g) {
            const int scale = (block[106 + g / 2] >> (4 * (g % 2))) & 15;
            scales[g] = d * float(2 * scale + 1);
        }
        for (int k = 0; k < 32; ++k) {
            const uint32_t bits = uint32_t(ninth[k / 4]) >> (2 * (k % 4));
            const uint32_t first = lower[2 * k] | ((bits & 1) << 8);
            const uint32_t second = lower[2 * k + 1] | ((bits & 2) << 7);
            unpacked.levels[k] = join(kGridIq3s.rows[first], kGridIq3s.rows[second]);
            unpacked.negated[k] = kSigns.of_eight(signs[k]);
        }
        unpacked.apply(codes);
        scale_codes<32>(codes, scales, 8, out);
        return half_is_special(block);
    }
};

// Eighths: the grids of IQ1 hold -8, 0, 8, and every level is shifted by one eighth up or down.
constexpr float kEighth = 0.125f;
constexpr uint64_t kUp = 0x0101010101010101u;
constexpr uint64_t kDown = 0xFFFFFFFFFFFFFFFFu;

struct ShiftedLevels {
    uint64_t levels[32];
    uint64_t shifts[32];

    void set(int k, uint32_t index, bool down) {
        levels[k] = kGridIq1.rows[index];
        shifts[k] = down ? kDown : kUp;
    }

    void apply(int8_t* __restrict codes) const {
        int8_t level[kSuper];
        int8_t shift[kSuper];
        memcpy(level, levels, kSuper);
        memcpy(shift, shifts, kSuper);
        for (int j = 0; j < kSuper; ++j) codes[j] = int8_t(level[j] + shift[j]);
    }
};

// half d | 32 lower index bytes | per 32 elements 16 bits: 4 times 3 upper index bits, 3-bit
// scale, shift down. Group scales are d (2 scale + 1).
struct IQ1_S {
    static constexpr int kId = 19, kElements = kSuper, kBytes = 50;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const uint8_t* lower = block + 2;
        ShiftedLevels unpacked;
        int8_t codes[kSuper];
        float scales[8];
        for (int g = 0; g < 8; ++g) {
            const uint32_t packed = load16(block + 34 + 2 * g);
            scales[g] = d * float(2 * ((packed >> 12) & 7) + 1) * kEighth;
            for (int k = 0; k < 4; ++k) {
                const uint32_t high = (packed >> (3 * k)) & 7;
                unpacked.set(4 * g + k, lower[4 * g + k] | (high << 8), packed & 0x8000);
            }
        }
        unpacked.apply(codes);
        scale_codes<32>(codes, scales, 8, out);
        return half_is_special(block);
    }
};

// 32 lower index bytes | 32 nibbles: 3 upper index bits, shift down | four times 16 bits: four
// 3-bit scales, each for 16 elements, below a nibble of the half d. Group scales as in IQ1_S.
struct IQ1_M {
    static constexpr int kId = 29, kElements = kSuper, kBytes = 56;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        ShiftedLevels unpacked;
        int8_t codes[kSuper];
        float scales[16];
        uint32_t half = 0;
        for (int w = 0; w < 4; ++w) half |= uint32_t(load16(block + 48 + 2 * w) >> 12) << (4 * w);
        const float d = half_bits_to_float(uint16_t(half));
        for (int g = 0; g < 16; ++g) {
            const uint32_t scale = (load16(block + 48 + 2 * (g / 4)) >> (3 * (g % 4))) & 7;
            scales[g] = d * float(2 * scale + 1) * kEighth;
        }
        for (int k = 0; k < 32; ++k) {
            const uint32_t nibble = (block[32 + k / 2] >> (4 * (k % 2))) & 15;
            unpacked.set(k, block[k] | ((nibble & 7) << 8), nibble & 8);
        }
        unpacked.apply(codes);
        scale_codes<16>(codes, scales, 16, out);
        return (half & 0x7C00u) == 0x7C00u;
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
