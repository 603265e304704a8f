// Decoders of the types whose codes index a grid of eight (or four) levels: IQ1, IQ2, IQ3.
//
// Two grid rows make one vector of sixteen codes.
#pragma once

#include "../formats/grids.h"
#include "emit.h"

namespace qk {
namespace QK_VARIANT {

// Levels negated where the mask is 0xFF.
inline S8x16 negated(U8x16 levels, U8x16 mask) {
    return S8x16((levels ^ mask) - mask);
}

inline U8x16 even_signs(uint32_t first, uint32_t second) {
    return mask_of_bits(kEvenSigns.of_seven[first & 127], kEvenSigns.of_seven[second & 127]);
}

// half d | per 32 elements: 4 grid indices, then 4 times 7 sign bits below a 4-bit scale.
struct IQ2_XXS {
    static constexpr int kId = 16, kElements = kSuper, kBytes = 66;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        for (int g = 0; g < 8; ++g) {
            const uint8_t* indices = block + 2 + 8 * g;
            const uint32_t packed = load32(indices + 4);
            const float scale = d * (0.5f + float(packed >> 28)) * 0.25f;
            for (int k = 0; k < 4; k += 2) {
                const U8x16 levels = join_words(kGridIq2xxs.rows[indices[k]],
                                                kGridIq2xxs.rows[indices[k + 1]]);
                const U8x16 signs = even_signs(packed >> (7 * k), packed >> (7 * k + 7));
                emit(negated(levels, signs), scale, out + 32 * g + 8 * k);
            }
        }
        return half_is_special(block);
    }
};

// The scale of group g of 16 elements in IQ2_XS and IQ2_S: a nibble, the lower first.
inline float nibble_scale(float d, const uint8_t* packed, int g) {
    return d * (0.5f + float((packed[g / 2] >> (4 * (g % 2))) & 15)) * 0.25f;
}

// half d | 32 times 16 bits: a 9-bit grid index below 7 sign bits | 8 bytes of scales.
struct IQ2_XS {
    static constexpr int kId = 17, kElements = kSuper, kBytes = 74;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        for (int g = 0; g < 16; ++g) {
            const uint32_t first = load16(block + 2 + 4 * g);
            const uint32_t second = load16(block + 4 + 4 * g);
            const U8x16 levels =
                join_words(kGridIq2xs.rows[first & 511], kGridIq2xs.rows[second & 511]);
            const U8x16 signs = even_signs(first >> 9, second >> 9);
            emit(negated(levels, signs), nibble_scale(d, block + 66, g), out + 16 * g);
        }
        return half_is_special(block);
    }
};

// half d | 32 lower index bytes | 32 sign bytes | 8 bytes of upper index bit pairs | scales.
struct IQ2_S {
    static constexpr int kId = 22, kElements = kSuper, kBytes = 82;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const uint8_t* lower = block + 2;
        const uint8_t* signs = block + 34;
        const uint8_t* upper = block + 66;
        for (int g = 0; g < 16; ++g) {
            const uint32_t high = uint32_t(upper[g / 2]) >> (4 * (g % 2));
            const uint32_t first = lower[2 * g] | ((high & 3) << 8);
            const uint32_t second = lower[2 * g + 1] | ((high & 12) << 6);
            const U8x16 levels = join_words(kGridIq2s.rows[first], kGridIq2s.rows[second]);
            const U8x16 mask = mask_of_bits(signs[2 * g], signs[2 * g + 1]);
            emit(negated(levels, mask), nibble_scale(d, block + 74, g), out + 16 * g);
        }
        return half_is_special(block);
    }
};

// Four rows of four levels.
inline U8x16 join_rows(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return join_words(uint64_t(b) << 32 | a, uint64_t(d) << 32 | c);
}

// half d | 64 grid indices of four levels | per 32 elements 4 times 7 sign bits, 4-bit scale.
struct IQ3_XXS {
    static constexpr int kId = 18, kElements = kSuper, kBytes = 98;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const auto& rows = kGridIq3xxs.rows;
        for (int g = 0; g < 8; ++g) {
            const uint32_t packed = load32(block + 66 + 4 * g);
            const float scale = d * (0.5f + float(packed >> 28)) * 0.5f;
            for (int k = 0; k < 4; k += 2) {
                const uint8_t* i = block + 2 + 8 * g + 2 * k;
                const U8x16 levels = join_rows(rows[i[0]], rows[i[1]], rows[i[2]], rows[i[3]]);
                const U8x16 signs = even_signs(packed >> (7 * k), packed >> (7 * k + 7));
                emit(negated(levels, signs), scale, out + 32 * g + 8 * k);
            }
        }
        return half_is_special(block);
    }
};

// half d | 64 lower index bytes | 8 bytes of ninth index bits | 32 sign bytes | 4 bytes of scales.
// Group scales are d (2 scale + 1).
struct IQ3_S {
    static constexpr int kId = 21, kElements = kSuper, kBytes = 110;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const uint8_t* ninth = block + 66;
        const uint8_t* signs = block + 74;
        const auto& rows = kGridIq3s.rows;
        for (int g = 0; g < 16; ++g) {
            const int code = (block[106 + g / 4] >> (g / 2 % 2 * 4)) & 15;
            const float scale = d * float(2 * code + 1);
            const uint8_t* i = block + 2 + 4 * g;
            const uint32_t high = uint32_t(ninth[g / 2]) << (g % 2 ? 4 : 8);  // bit 8: the first
            const U8x16 levels =
                join_rows(rows[i[0] | (high & 256)], rows[i[1] | ((high >> 1) & 256)],
                          rows[i[2] | ((high >> 2) & 256)], rows[i[3] | ((high >> 3) & 256)]);
            const U8x16 mask = mask_of_bits(signs[2 * g], signs[2 * g + 1]);
            emit(negated(levels, mask), scale, out + 16 * g);
        }
        return half_is_special(block);
    }
};

// Eighths: the grids of IQ1 hold -8, 0, 8, and every level is shifted by one eighth up or down.
constexpr float kEighth = 0.125f;
constexpr uint64_t kUp = 0x0101010101010101u;
constexpr uint64_t kDown = 0xFFFFFFFFFFFFFFFFu;

inline S8x16 shifted_levels(uint32_t first, uint64_t first_shift, uint32_t second,
                            uint64_t second_shift) {
    const U8x16 levels = join_words(kGridIq1.rows[first], kGridIq1.rows[second]);
    return S8x16(levels + join_words(first_shift, second_shift));
}

// half d | 32 lower index bytes | per 32 elements 16 bits: 4 times 3 upper index bits, 3-bit
// scale, shift down. Group scales are d (2 scale + 1).
struct IQ1_S {
    static constexpr int kId = 19, kElements = kSuper, kBytes = 50;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        for (int g = 0; g < 8; ++g) {
            const uint8_t* lower = block + 2 + 4 * g;
            const uint32_t packed = load16(block + 34 + 2 * g);
            const float scale = d * float(2 * ((packed >> 12) & 7) + 1) * kEighth;
            const uint64_t shift = packed & 0x8000 ? kDown : kUp;
            for (int k = 0; k < 4; k += 2) {
                const uint32_t first = lower[k] | (((packed >> (3 * k)) & 7) << 8);
                const uint32_t second = lower[k + 1] | (((packed >> (3 * k + 3)) & 7) << 8);
                emit(shifted_levels(first, shift, second, shift), scale, out + 32 * g + 8 * k);
            }
        }
        return half_is_special(block);
    }
};

// 32 lower index bytes | 32 nibbles: 3 upper index bits, shift down | four times 16 bits: four
// 3-bit scales, each for 16 elements, below a nibble of the half d. Group scales as in IQ1_S.
struct IQ1_M {
    static constexpr int kId = 29, kElements = kSuper, kBytes = 56;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        uint32_t half = 0;
        for (int w = 0; w < 4; ++w) half |= uint32_t(load16(block + 48 + 2 * w) >> 12) << (4 * w);
        const float d = half_bits_to_float(uint16_t(half));
        for (int g = 0; g < 16; ++g) {
            const uint32_t code = (load16(block + 48 + 2 * (g / 4)) >> (3 * (g % 4))) & 7;
            const float scale = d * float(2 * code + 1) * kEighth;
            const uint32_t upper = block[32 + g];
            const uint32_t first = block[2 * g] | ((upper & 7) << 8);
            const uint32_t second = block[2 * g + 1] | ((upper & 0x70) << 4);
            const S8x16 levels = shifted_levels(first, upper & 8 ? kDown : kUp, second,
                                                upper & 0x80 ? kDown : kUp);
            emit(levels, scale, out + 16 * g);
        }
        return (half & 0x7C00u) == 0x7C00u;
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
