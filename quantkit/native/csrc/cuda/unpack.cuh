// Device decoders: eight consecutive values of a block, from its bytes.
//
// A type is a struct: ggml id, elements and bytes of a block, and eight(), which puts the values
// 8 p to 8 p + 7 into EightFloats or EightBfloats. Blocks start at multiples of the largest power
// of two that divides their size (16 at most). Layouts are explained in decode/*.h, whose results
// these equal bit for bit, save that a NaN is any NaN.
#pragma once

#include "emit.cuh"

#include "../formats/levels.h"

namespace qk {
namespace QK_VARIANT {

struct NoGrid {
    static constexpr int kGridBytes = 0;
};

struct Q4_0 : NoGrid {
    static constexpr int kId = 2, kElements = 32, kBytes = 18;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const Eight packed = eight_at<2>(block + 2 + 8 * (p & 1));
        emit(field(packed, 4 * (p >> 1), kNibbles), 8.0f, half_at(block), out);
    }
};

struct Q4_1 : NoGrid {
    static constexpr int kId = 3, kElements = 32, kBytes = 20;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const Eight packed = eight_at<4>(block + 4 + 8 * (p & 1));
        emit_shifted(field(packed, 4 * (p >> 1), kNibbles), half_at(block), half_at(block + 2),
                     out);
    }
};

struct Q5_0 : NoGrid {
    static constexpr int kId = 6, kElements = 32, kBytes = 22;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const Eight packed = eight_at<2>(block + 6 + 8 * (p & 1));
        const Eight fifth = spread_bits(block[2 + p]);
        emit(either(field(packed, 4 * (p >> 1), kNibbles), fifth, 4), 16.0f, half_at(block), out);
    }
};

struct Q5_1 : NoGrid {
    static constexpr int kId = 7, kElements = 32, kBytes = 24;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const Eight packed = eight_at<8>(block + 8 + 8 * (p & 1));
        const Eight fifth = spread_bits(block[4 + p]);
        emit_shifted(either(field(packed, 4 * (p >> 1), kNibbles), fifth, 4), half_at(block),
                     half_at(block + 2), out);
    }
};

// Signed bytes as unsigned ones of zero 128.
QK_HD inline Eight unsigned_of(Eight bytes) {
    return {bytes.low ^ kSignBits, bytes.high ^ kSignBits};
}

struct Q8_0 : NoGrid {
    static constexpr int kId = 8, kElements = 32, kBytes = 34;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        emit(unsigned_of(eight_at<2>(block + 2 + 8 * p)), 128.0f, half_at(block), out);
    }
};

struct Q1_0 : NoGrid {
    static constexpr int kId = 41, kElements = 128, kBytes = 18;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        emit_signs(block[2 + p], half_at(block), out);
    }
};

struct Q2_0 : NoGrid {
    static constexpr int kId = 42, kElements = 64, kBytes = 18;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const uint32_t pairs = word16_at(block + 2 + 2 * p);
        emit_few({spread_pairs(pairs & 0xFF), spread_pairs(pairs >> 8)}, half_at(block), out);
    }
};

// The leading base-3 digit of four bytes, fractions of 256, times `power` modulo 256. The even
// and the odd bytes have 16 bits each for the products, whose upper byte is the digit.
QK_HD inline uint32_t ternary_digits(uint32_t bytes, uint32_t power) {
    constexpr uint32_t kLowBytes = 0x00FF00FFu;
    const uint32_t even = ((permute(bytes, 0, 0x4240u) * power) & kLowBytes) * 3;
    const uint32_t odd = ((permute(bytes, 0, 0x4341u) * power) & kLowBytes) * 3;
    return permute(even, odd, 0x7351u);
}

// Five digits to a byte, a digit of 32, then of 16 bytes for consecutive elements; four bytes of
// four digits each end the block.
struct TQ1_0 : NoGrid {
    static constexpr int kId = 34, kElements = 256, kBytes = 54;
    QK_HD static uint32_t power_of_three(int n) {
        const uint32_t upper = n == 4 ? 81 : 27;
        return n > 2 ? upper : n == 2 ? 9 : n == 1 ? 3 : 1;
    }
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const bool last = p >= 30;  // its first and last four elements share their bytes
        const int from = p < 20 ? 8 * (p % 4) : last ? 48 : 32 + 8 * (p % 2);
        const int digit = p < 20 ? p / 4 : last ? 2 * (p - 30) : (p - 20) / 2;
        const uint32_t first = power_of_three(digit), second = last ? 3 * first : first;
        const Eight bytes = eight_at<2>(block + from);
        emit_few({ternary_digits(bytes.low, first),
                  ternary_digits(last ? bytes.low : bytes.high, second)},
                 half_at(block + 52), out);
    }
};

struct TQ2_0 : NoGrid {
    static constexpr int kId = 35, kElements = 256, kBytes = 66;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const Eight packed = eight_at<2>(block + 32 * (p / 16) + 8 * (p % 4));
        emit_few(field(packed, 2 * (p % 16 / 4), 0x03030303u), half_at(block + 64), out);
    }
};

// Levels of 16 codes as unsigned bytes of zero 128, in four words.
struct LevelTable {
    uint32_t words[4];

    constexpr explicit LevelTable(const int8_t* levels) : words{} {
        for (int k = 0; k < 16; ++k) {
            words[k / 4] |= uint32_t(uint8_t(levels[k] + 128)) << (8 * (k % 4));
        }
    }
};

// The levels of four codes, one in every byte. A selector holds three bits of a code to a nibble,
// so both halves of the table are looked up and the fourth bit chooses between the results.
QK_HD inline uint32_t look_up(uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3,
                              uint32_t codes) {
    const uint32_t selector = permute(codes | codes >> 4, 0, 0x4420u);
    const uint32_t lower = permute(t0, t1, selector & 0x7777u);
    const uint32_t upper = permute(t2, t3, selector & 0x7777u);
    return permute(lower, upper, 0x3210u | ((selector >> 1) & 0x4444u));
}

// Members of a class, because device code cannot read constants of a namespace.
struct LevelTables {
    static constexpr LevelTable iq4 = LevelTable(kLevelsIq4);
    static constexpr LevelTable e2m1 = LevelTable(kLevelsE2m1Doubled);
};

QK_HD inline Eight iq4_levels(Eight codes) {
    constexpr LevelTable t = LevelTables::iq4;
    return {look_up(t.words[0], t.words[1], t.words[2], t.words[3], codes.low),
            look_up(t.words[0], t.words[1], t.words[2], t.words[3], codes.high)};
}

QK_HD inline Eight e2m1_levels(Eight codes) {
    constexpr LevelTable t = LevelTables::e2m1;
    return {look_up(t.words[0], t.words[1], t.words[2], t.words[3], codes.low),
            look_up(t.words[0], t.words[1], t.words[2], t.words[3], codes.high)};
}

struct IQ4_NL : NoGrid {
    static constexpr int kId = 20, kElements = 32, kBytes = 18;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const Eight packed = eight_at<2>(block + 2 + 8 * (p & 1));
        emit(iq4_levels(field(packed, 4 * (p >> 1), kNibbles)), 128.0f, half_at(block), out);
    }
};

struct IQ4_XS : NoGrid {
    static constexpr int kId = 23, kElements = 256, kBytes = 136;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const int g = p / 4;
        const uint32_t lower = word_at<4>(block + 4) >> (4 * g);
        const uint32_t upper = word16_at(block + 2) >> (2 * g);
        const int scale = int((lower & 15) | (upper & 3) << 4) - 32;
        const Eight packed = eight_at<8>(block + 8 + 16 * g + 8 * (p & 1));
        emit(iq4_levels(field(packed, 4 * ((p >> 1) & 1), kNibbles)), 128.0f,
             half_at(block) * float(scale), out);
    }
};

struct MXFP4 : NoGrid {
    static constexpr int kId = 39, kElements = 32, kBytes = 17;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const Eight packed = eight_at<1>(block + 1 + 8 * (p & 1));
        emit(e2m1_levels(field(packed, 4 * (p >> 1), kNibbles)), 128.0f, e8m0_half(block[0]), out);
    }
};

struct NVFP4 : NoGrid {
    static constexpr int kId = 40, kElements = 64, kBytes = 36;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const Eight packed = eight_at<4>(block + 4 + 8 * (p >> 1));
        emit(e2m1_levels(field(packed, 4 * (p & 1), kNibbles)), 128.0f, e4m3_half(block[p >> 1]),
             out);
    }
};

struct Q2_K : NoGrid {
    static constexpr int kId = 10, kElements = 256, kBytes = 84;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const uint32_t group = block[p / 2];
        const float scale = half_at(block + 80) * float(group & 15);
        const float offset = -(half_at(block + 82) * float(group >> 4));
        const Eight packed = eight_at<4>(block + 16 + 32 * (p / 16) + 8 * (p % 4));
        emit_shifted(field(packed, 2 * (p % 16 / 4), 0x03030303u), scale, offset, out);
    }
};

struct Q3_K : NoGrid {
    static constexpr int kId = 11, kElements = 256, kBytes = 110;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const int g = p / 2;
        const uint8_t* packed_scales = block + 96;
        const int low = (packed_scales[g % 8] >> (4 * (g / 8))) & 15;
        const int high = (packed_scales[8 + g % 4] >> (2 * (g / 4))) & 3;
        const Eight packed = eight_at<2>(block + 32 + 32 * (p / 16) + 8 * (p % 4));
        const Eight thirds = eight_at<2>(block + 8 * (p % 4));
        const Eight codes = either(field(packed, 2 * (p % 16 / 4), 0x03030303u),
                                   field(thirds, p / 4, 0x01010101u), 2);
        emit(codes, 4.0f, half_at(block + 108) * float((low | high << 4) - 32), out);
    }
};

// Scale and offset of group g of 32 elements of Q4_K and Q5_K.
struct SixBitScale {
    float scale, offset;

    QK_HD SixBitScale(const uint8_t* block, int g) {
        const uint8_t* packed = block + 4;
        const uint32_t last = packed[8 + (g & 3)];
        const uint32_t low_scale = packed[g & 3], low_min = packed[4 + (g & 3)];
        const uint32_t code = g < 4 ? low_scale & 63 : (last & 15) | (low_scale >> 6) << 4;
        const uint32_t min = g < 4 ? low_min & 63 : last >> 4 | (low_min >> 6) << 4;
        scale = half_at(block) * float(code);
        offset = -(half_at(block + 2) * float(min));
    }
};

struct Q4_K : NoGrid {
    static constexpr int kId = 12, kElements = 256, kBytes = 144;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const int g = p / 4;
        const SixBitScale group(block, g);
        const Eight packed = eight_at<8>(block + 16 + 32 * (g / 2) + 8 * (p % 4));
        emit_shifted(field(packed, 4 * (g % 2), kNibbles), group.scale, group.offset, out);
    }
};

struct Q5_K : NoGrid {
    static constexpr int kId = 13, kElements = 256, kBytes = 176;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const int g = p / 4;
        const SixBitScale group(block, g);
        const Eight packed = eight_at<8>(block + 48 + 32 * (g / 2) + 8 * (p % 4));
        const Eight fifths = field(eight_at<8>(block + 16 + 8 * (p % 4)), g, 0x01010101u);
        emit_shifted(either(field(packed, 4 * (g % 2), kNibbles), fifths, 4), group.scale,
                     group.offset, out);
    }
};

struct Q6_K : NoGrid {
    static constexpr int kId = 14, kElements = 256, kBytes = 210;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void*, int p, Values* out) {
        const int half = p / 16, quarter = p % 16 / 4;
        const Eight nibbles = eight_at<2>(block + 64 * half + 32 * (quarter & 1) + 8 * (p % 4));
        const Eight pairs = eight_at<2>(block + 128 + 32 * half + 8 * (p % 4));
        const Eight codes = either(field(nibbles, 4 * (quarter >> 1), kNibbles),
                                   field(pairs, 2 * quarter, 0x03030303u), 4);
        const int scale = int8_t(block[192 + p / 2]);
        emit(codes, 32.0f, half_at(block + 208) * float(scale), out);
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
