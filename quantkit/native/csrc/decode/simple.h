// Decoders of the 32-element types with whole-block scales, of Q1_0, Q2_0 and the ternary types.
//
// A decoder is a struct: ggml id, elements and bytes of a block, and decode(), which writes the
// block's values and returns 1 when the block's scale is not finite. Halves are little-endian.
#pragma once

#include "emit.h"

namespace qk {
namespace QK_VARIANT {

// half d | 16 bytes of nibbles; byte j: elements j, j + 16. (code - 8) d.
struct Q4_0 {
    static constexpr int kId = 2, kElements = 32, kBytes = 18;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const uint8_t* packed = block + 2;
        int8_t codes[32];
        for (int j = 0; j < 16; ++j) {
            codes[j] = int8_t((packed[j] & 15) - 8);
            codes[16 + j] = int8_t((packed[j] >> 4) - 8);
        }
        scale_codes<32>(codes, &d, 1, out);
        return half_is_special(block);
    }
};

// half d | half m | nibbles as in Q4_0. code d + m.
struct Q4_1 {
    static constexpr int kId = 3, kElements = 32, kBytes = 20;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const float m = load_half(block + 2);
        uint8_t codes[32];
        split_nibbles<16>(block + 4, codes);
        scale_and_shift_codes<32>(codes, &d, &m, 1, out);
        return half_is_special(block) | half_is_special(block + 2);
    }
};

// 16 where bit j of the word is set, for 32 elements.
inline void spread_fifth_bits(const uint8_t* word, uint8_t* __restrict sixteens) {
    for (int j = 0; j < 32; ++j) {
        sixteens[j] = (word[j / 8] & (1u << (j % 8))) ? 16 : 0;
    }
}

// half d | 4 bytes of fifth bits, element 0 lowest | nibbles. (code - 16) d.
struct Q5_0 {
    static constexpr int kId = 6, kElements = 32, kBytes = 22;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        uint8_t nibbles[32];
        uint8_t fifth[32];
        int8_t codes[32];
        spread_fifth_bits(block + 2, fifth);
        split_nibbles<16>(block + 6, nibbles);
        for (int j = 0; j < 32; ++j) codes[j] = int8_t((nibbles[j] | fifth[j]) - 16);
        scale_codes<32>(codes, &d, 1, out);
        return half_is_special(block);
    }
};

// half d | half m | fifth bits | nibbles. code d + m.
struct Q5_1 {
    static constexpr int kId = 7, kElements = 32, kBytes = 24;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const float m = load_half(block + 2);
        uint8_t codes[32];
        uint8_t fifth[32];
        spread_fifth_bits(block + 4, fifth);
        split_nibbles<16>(block + 8, codes);
        for (int j = 0; j < 32; ++j) codes[j] |= fifth[j];
        scale_and_shift_codes<32>(codes, &d, &m, 1, out);
        return half_is_special(block) | half_is_special(block + 2);
    }
};

// half d | 32 int8.
struct Q8_0 {
    static constexpr int kId = 8, kElements = 32, kBytes = 34;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        scale_codes<32>(reinterpret_cast<const int8_t*>(block + 2), &d, 1, out);
        return half_is_special(block);
    }
};

// half d | 128 bits, element 0 lowest. d where set, else -d.
struct Q1_0 {
    static constexpr int kId = 41, kElements = 128, kBytes = 18;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const uint32_t d = bits_of_float(load_half(block));
        // A clear bit flips the sign.
        for (int byte = 0; byte < 16; ++byte) {
            const uint32_t clear = ~uint32_t(block[2 + byte]);
            for (int j = 0; j < 8; ++j) {
                out[8 * byte + j] = float_of_bits(d ^ ((clear << (31 - j)) & 0x80000000u));
            }
        }
        return half_is_special(block);
    }
};

// half d | 2-bit codes, four consecutive elements to a byte, the first lowest. (code - 1) d.
struct Q2_0 {
    static constexpr int kId = 42, kElements = 64, kBytes = 18;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        int8_t codes[64];
        for (int byte = 0; byte < 16; ++byte) {
            const uint32_t four = block[2 + byte];
            for (int j = 0; j < 4; ++j) codes[4 * byte + j] = int8_t(((four >> (2 * j)) & 3) - 1);
        }
        scale_codes<64>(codes, &d, 1, out);
        return half_is_special(block);
    }
};

// Digit n of kBytes bytes that hold base-3 fractions: the top digit of byte * 3^n modulo 256.
template <int kBytes>
inline void ternary_digits(const uint8_t* __restrict bytes, int n_digits,
                           int8_t* __restrict codes) {
    uint32_t power = 1;
    for (int n = 0; n < n_digits; ++n, power *= 3) {
        for (int j = 0; j < kBytes; ++j) {
            const uint16_t shifted = uint16_t((bytes[j] * power) & 0xFF);
            codes[n * kBytes + j] = int8_t(int(uint16_t(shifted * 3) >> 8) - 1);
        }
    }
}

// 32 and 16 bytes of five digits each, then 4 bytes of four | half d. (digit - 1) d.
struct TQ1_0 {
    static constexpr int kId = 34, kElements = kSuper, kBytes = 54;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block + 52);
        int8_t codes[kSuper];
        ternary_digits<32>(block, 5, codes);
        ternary_digits<16>(block + 32, 5, codes + 160);
        ternary_digits<4>(block + 48, 4, codes + 240);
        scale_codes<kSuper>(codes, &d, 1, out);
        return half_is_special(block + 52);
    }
};

// Two bits of 32 bytes at a time: the bytes' lowest pairs are the first 32 elements | half d.
struct TQ2_0 {
    static constexpr int kId = 35, kElements = kSuper, kBytes = 66;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block + 64);
        int8_t codes[kSuper];
        for (int half = 0; half < 2; ++half) {
            for (int pair = 0; pair < 4; ++pair) {
                for (int j = 0; j < 32; ++j) {
                    const int code = (block[32 * half + j] >> (2 * pair)) & 3;
                    codes[128 * half + 32 * pair + j] = int8_t(code - 1);
                }
            }
        }
        scale_codes<kSuper>(codes, &d, 1, out);
        return half_is_special(block + 64);
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
