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
        const U8x16 packed = load_bytes(block + 2);
        emit(centred(packed & 15, 8), d, out);
        emit(centred(packed >> 4, 8), d, out + 16);
        return half_is_special(block);
    }
};

// half d | half m | nibbles as in Q4_0. code d + m.
struct Q4_1 {
    static constexpr int kId = 3, kElements = 32, kBytes = 20;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const float m = load_half(block + 2);
        const U8x16 packed = load_bytes(block + 4);
        emit(packed & 15, d, m, out);
        emit(packed >> 4, d, m, out + 16);
        return half_is_special(block) | half_is_special(block + 2);
    }
};

// half d | 4 bytes of fifth bits, element 0 lowest | nibbles. (code - 16) d.
struct Q5_0 {
    static constexpr int kId = 6, kElements = 32, kBytes = 22;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const U8x16 packed = load_bytes(block + 6);
        const U8x16 first = (packed & 15) | (mask_of_bits(block[2], block[3]) & 16);
        const U8x16 second = (packed >> 4) | (mask_of_bits(block[4], block[5]) & 16);
        emit(centred(first, 16), d, out);
        emit(centred(second, 16), d, out + 16);
        return half_is_special(block);
    }
};

// half d | half m | fifth bits | nibbles. code d + m.
struct Q5_1 {
    static constexpr int kId = 7, kElements = 32, kBytes = 24;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        const float m = load_half(block + 2);
        const U8x16 packed = load_bytes(block + 8);
        emit((packed & 15) | (mask_of_bits(block[4], block[5]) & 16), d, m, out);
        emit((packed >> 4) | (mask_of_bits(block[6], block[7]) & 16), d, m, out + 16);
        return half_is_special(block) | half_is_special(block + 2);
    }
};

// half d | 32 int8.
struct Q8_0 {
    static constexpr int kId = 8, kElements = 32, kBytes = 34;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        emit(S8x16(load_bytes(block + 2)), d, out);
        emit(S8x16(load_bytes(block + 18)), d, out + 16);
        return half_is_special(block);
    }
};

// half d | 128 bits, element 0 lowest. d where set, else -d.
struct Q1_0 {
    static constexpr int kId = 41, kElements = 128, kBytes = 18;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        for (int g = 0; g < 8; ++g) {
            const U8x16 set = mask_of_bits(block[2 + 2 * g], block[3 + 2 * g]);
            emit(centred(set & 2, 1), d, out + 16 * g);
        }
        return half_is_special(block);
    }
};

// half d | 2-bit codes, four consecutive elements to a byte, the first lowest. (code - 1) d.
struct Q2_0 {
    static constexpr int kId = 42, kElements = 64, kBytes = 18;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block);
        for (int g = 0; g < 4; ++g) {
            const uint32_t sixteen = load32(block + 2 + 4 * g);
            for (int j = 0; j < 16; ++j) {
                out[16 * g + j] = d * float(int32_t((sixteen >> (2 * j)) & 3) - 1);
            }
        }
        return half_is_special(block);
    }
};

// The leading base-3 digit, less one, of bytes that are fractions of 256.
inline S8x16 leading_ternary(U8x16 fractions) {
    constexpr uint8_t kOneThird = 86;  // the first byte whose triple reaches 256
    constexpr uint8_t kTwoThirds = 171;
    const S8x16 at_least_one = S8x16(fractions >= kOneThird);
    const S8x16 at_least_two = S8x16(fractions >= kTwoThirds);
    return S8x16(~at_least_one + (-at_least_two));
}

// n_digits of each of 16 bytes, every digit `stride` elements after the one before.
inline void emit_ternary(U8x16 fractions, int n_digits, int stride, float d, float* out) {
    for (int digit = 0; digit < n_digits; ++digit) {
        emit(leading_ternary(fractions), d, out + stride * digit);
        fractions = fractions + fractions + fractions;
    }
}

// 32 and 16 bytes of five digits each, then 4 bytes of four | half d. (digit - 1) d.
struct TQ1_0 {
    static constexpr int kId = 34, kElements = kSuper, kBytes = 54;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block + 52);
        emit_ternary(load_bytes(block), 5, 32, d, out);
        emit_ternary(load_bytes(block + 16), 5, 32, d, out + 16);
        emit_ternary(load_bytes(block + 32), 5, 16, d, out + 160);
        // The last 16 elements at once: digit n of byte j is element 4 n + j.
        const uint32_t last = load32(block + 48);
        const U8x16 four = join_words(uint64_t(last) << 32 | last, uint64_t(last) << 32 | last);
        const U8x16 powers = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
        emit(leading_ternary(four * powers), d, out + 240);
        return half_is_special(block + 52);
    }
};

// Two bits of 32 bytes at a time: the bytes' lowest pairs are the first 32 elements | half d.
struct TQ2_0 {
    static constexpr int kId = 35, kElements = kSuper, kBytes = 66;
    static uint32_t decode(const uint8_t* __restrict block, float* __restrict out) {
        const float d = load_half(block + 64);
        for (int g = 0; g < 4; ++g) {
            const U8x16 packed = load_bytes(block + 16 * g);
            float* to = out + 128 * (g / 2) + 16 * (g % 2);
            for (int pair = 0; pair < 4; ++pair) {
                emit(centred((packed >> (2 * pair)) & 3, 1), d, to + 32 * pair);
            }
        }
        return half_is_special(block + 64);
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
