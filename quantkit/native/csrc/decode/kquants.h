// Decoders of the K-quants: super-blocks of 256 elements with quantized scales of 16 or 32.
#pragma once

#include "emit.h"

namespace qk {
namespace QK_VARIANT {

// Bits 2p and 2p + 1 of 32 bytes are elements 32 p to 32 p + 31 of a half of the super-block.
inline void split_bit_pairs(const uint8_t* __restrict packed, uint8_t* __restrict codes) {
    for (int half = 0; half < 2; ++half) {
        for (int pair = 0; pair < 4; ++pair) {
            for (int j = 0; j < 32; ++j) {
                codes[128 * half + 32 * pair + j] = (packed[32 * half + j] >> (2 * pair)) & 3;
            }
        }
    }
}

// 16 bytes: scale in the low, offset in the high nibble | 64 bytes of bit pairs | half d | half
// dmin. (d scale) code - dmin offset.
struct Q2_K {
    static constexpr int kId = 10, kElements = kSuper, kBytes = 84;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block + 80);
        const float dmin = load_half(block + 82);
        uint8_t codes[kSuper];
        float scales[16];
        float offsets[16];
        for (int g = 0; g < 16; ++g) {
            scales[g] = d * float(block[g] & 15);
            offsets[g] = -(dmin * float(block[g] >> 4));
        }
        split_bit_pairs(block + 16, codes);
        scale_and_shift_codes<16>(codes, scales, offsets, 16, out);
        return half_is_special(block + 80) | half_is_special(block + 82);
    }
};

// 32 bytes of third bits: bit k of byte j belongs to element 32 k + j | 64 bytes of bit pairs |
// 12 bytes of sixteen 6-bit scales | half d. d (scale - 32) (code - 4).
struct Q3_K {
    static constexpr int kId = 11, kElements = kSuper, kBytes = 110;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block + 108);
        const uint8_t* packed_scales = block + 96;
        uint8_t pairs[kSuper];
        int8_t codes[kSuper];
        float scales[16];
        for (int g = 0; g < 16; ++g) {
            const int low = (packed_scales[g % 8] >> (4 * (g / 8))) & 15;
            const int high = (packed_scales[8 + g % 4] >> (2 * (g / 4))) & 3;
            scales[g] = d * float((low | (high << 4)) - 32);
        }
        split_bit_pairs(block + 32, pairs);
        for (int k = 0; k < 8; ++k) {
            for (int j = 0; j < 32; ++j) {
                const int third = ((block[j] >> k) & 1) << 2;
                codes[32 * k + j] = int8_t((pairs[32 * k + j] | third) - 4);
            }
        }
        scale_codes<16>(codes, scales, 16, out);
        return half_is_special(block + 108);
    }
};

// Eight 6-bit scales and eight 6-bit offsets in 12 bytes: bytes 0 to 3 hold scales 0 to 3 and 4 to
// 7 the offsets in their lower six bits; bytes 8 to 11 the low nibbles of scales (low) and offsets
// (high) 4 to 7, whose upper two bits sit on top of bytes 0 to 7.
inline void unpack_six_bits(const uint8_t* packed, uint8_t* scales, uint8_t* offsets) {
    const uint32_t a = load32(packed);
    const uint32_t b = load32(packed + 4);
    const uint32_t c = load32(packed + 8);
    const uint32_t words[4] = {
        a & 0x3F3F3F3Fu,
        (c & 0x0F0F0F0Fu) | ((a >> 2) & 0x30303030u),
        b & 0x3F3F3F3Fu,
        ((c >> 4) & 0x0F0F0F0Fu) | ((b >> 2) & 0x30303030u),
    };
    memcpy(scales, words, 8);
    memcpy(offsets, words + 2, 8);
}

// half d | half dmin | 12 bytes of scales and offsets, common to Q4_K and Q5_K.
struct SixBitScales {
    float scales[8];
    float offsets[8];
    uint32_t special;

    explicit SixBitScales(const uint8_t* block) {
        const float d = load_half(block);
        const float dmin = load_half(block + 2);
        uint8_t codes[8];
        uint8_t mins[8];
        unpack_six_bits(block + 4, codes, mins);
        for (int g = 0; g < 8; ++g) {
            scales[g] = d * float(codes[g]);
            offsets[g] = -(dmin * float(mins[g]));
        }
        special = half_is_special(block) | half_is_special(block + 2);
    }
};

// Scales | four times 32 bytes of nibbles: 32 low ones, then 32 high ones.
struct Q4_K {
    static constexpr int kId = 12, kElements = kSuper, kBytes = 144;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const SixBitScales head(block);
        uint8_t codes[kSuper];
        for (int c = 0; c < 4; ++c) split_nibbles<32>(block + 16 + 32 * c, codes + 64 * c);
        scale_and_shift_codes<32>(codes, head.scales, head.offsets, 8, out);
        return head.special;
    }
};

// Scales | 32 bytes of fifth bits: bit k of byte j belongs to element 32 k + j | nibbles as above.
struct Q5_K {
    static constexpr int kId = 13, kElements = kSuper, kBytes = 176;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const SixBitScales head(block);
        const uint8_t* fifth = block + 16;
        uint8_t codes[kSuper];
        for (int c = 0; c < 4; ++c) split_nibbles<32>(block + 48 + 32 * c, codes + 64 * c);
        for (int k = 0; k < 8; ++k) {
            for (int j = 0; j < 32; ++j) codes[32 * k + j] |= ((fifth[j] >> k) & 1) << 4;
        }
        scale_and_shift_codes<32>(codes, head.scales, head.offsets, 8, out);
        return head.special;
    }
};

// Two halves of 64 bytes of nibbles (64 low ones, then 64 high ones) | two halves of 32 bytes of
// upper bit pairs | 16 int8 scales | half d. (d scale) (code - 32).
struct Q6_K {
    static constexpr int kId = 14, kElements = kSuper, kBytes = 210;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block + 208);
        const int8_t* packed_scales = reinterpret_cast<const int8_t*>(block + 192);
        uint8_t nibbles[kSuper];
        uint8_t pairs[kSuper];
        int8_t codes[kSuper];
        float scales[16];
        for (int g = 0; g < 16; ++g) scales[g] = d * float(packed_scales[g]);
        for (int half = 0; half < 2; ++half) {
            split_nibbles<64>(block + 64 * half, nibbles + 128 * half);
        }
        split_bit_pairs(block + 128, pairs);
        for (int j = 0; j < kSuper; ++j) {
            codes[j] = int8_t((nibbles[j] | (pairs[j] << 4)) - 32);
        }
        scale_codes<16>(codes, scales, 16, out);
        return half_is_special(block + 208);
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
