// Decoders of the K-quants: super-blocks of 256 elements with quantized scales of 16 or 32.
#pragma once

#include "emit.h"

namespace qk {
namespace QK_VARIANT {

// Which group of 16 elements has its codes in bit pair `pair` of the 16 bytes from 16 `from`:
// each half of a super-block is 32 bytes, whose lowest pairs are its first 32 elements.
constexpr int group_of_pair(int from, int pair) {
    return 8 * (from / 2) + 2 * pair + from % 2;
}

// 16 bytes: scale in the low, offset in the high nibble | 64 bytes of bit pairs | half d | half
// dmin. (d scale) code - dmin offset.
struct Q2_K {
    static constexpr int kId = 10, kElements = kSuper, kBytes = 84;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block + 80);
        const float dmin = load_half(block + 82);
        for (int from = 0; from < 4; ++from) {
            const U8x16 packed = load_bytes(block + 16 + 16 * from);
            for (int pair = 0; pair < 4; ++pair) {
                const int g = group_of_pair(from, pair);
                const float scale = d * float(block[g] & 15);
                const float offset = -(dmin * float(block[g] >> 4));
                emit((packed >> (2 * pair)) & 3, scale, offset, out + 16 * g);
            }
        }
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
        for (int from = 0; from < 4; ++from) {
            const U8x16 packed = load_bytes(block + 32 + 16 * from);
            const U8x16 thirds = load_bytes(block + 16 * (from % 2)) >> (4 * (from / 2));
            for (int pair = 0; pair < 4; ++pair) {
                const int g = group_of_pair(from, pair);
                const int low = (packed_scales[g % 8] >> (4 * (g / 8))) & 15;
                const int high = (packed_scales[8 + g % 4] >> (2 * (g / 4))) & 3;
                const float scale = d * float((low | (high << 4)) - 32);
                const U8x16 third = ((thirds >> pair) & 1) << 2;
                emit(centred(((packed >> (2 * pair)) & 3) | third, 4), scale, out + 16 * g);
            }
        }
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
        for (int from = 0; from < 8; ++from) {
            const U8x16 packed = load_bytes(block + 16 + 16 * from);
            const int g = from / 2 * 2;
            float* to = out + 32 * g + 16 * (from % 2);
            emit(packed & 15, head.scales[g], head.offsets[g], to);
            emit(packed >> 4, head.scales[g + 1], head.offsets[g + 1], to + 32);
        }
        return head.special;
    }
};

// Scales | 32 bytes of fifth bits: bit k of byte j belongs to element 32 k + j | nibbles as above.
struct Q5_K {
    static constexpr int kId = 13, kElements = kSuper, kBytes = 176;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const SixBitScales head(block);
        const U8x16 fifths[2] = {load_bytes(block + 16), load_bytes(block + 32)};
        for (int from = 0; from < 8; ++from) {
            const U8x16 packed = load_bytes(block + 48 + 16 * from);
            const int g = from / 2 * 2;
            const U8x16 fifth = fifths[from % 2] >> g;
            float* to = out + 32 * g + 16 * (from % 2);
            emit((packed & 15) | ((fifth & 1) << 4), head.scales[g], head.offsets[g], to);
            emit((packed >> 4) | ((fifth & 2) << 3), head.scales[g + 1], head.offsets[g + 1],
                 to + 32);
        }
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
        for (int half = 0; half < 2; ++half) {
            for (int from = 0; from < 4; ++from) {
                const U8x16 nibbles = load_bytes(block + 64 * half + 16 * from);
                const U8x16 pairs = load_bytes(block + 128 + 32 * half + 16 * (from % 2));
                const int shift = from / 2 * 2;
                const U8x16 low = (nibbles & 15) | (((pairs >> shift) & 3) << 4);
                const U8x16 high = (nibbles >> 4) | (((pairs >> (shift + 4)) & 3) << 4);
                const int g = 8 * half + from;
                emit(centred(low, 32), d * float(packed_scales[g]), out + 16 * g);
                emit(centred(high, 32), d * float(packed_scales[g + 4]), out + 16 * (g + 4));
            }
        }
        return half_is_special(block + 208);
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
