// Device decoders of the types whose codes index a grid: IQ1, IQ2, IQ3. See unpack.cuh.
#pragma once

#include "emit.cuh"

#include "../formats/grids.h"

namespace qk {
namespace QK_VARIANT {

// A type's grid travels with its blocks: `rows` is a copy of kGrid's.
template <class Row, int kPoints>
struct GridRows {
    static constexpr int kGridBytes = kPoints * int(sizeof(Row));
    QK_HD static Row row(const void* rows, uint32_t index) {
        return static_cast<const Row*>(rows)[index];
    }
};

QK_HD inline Eight eight_of(uint64_t row) {
    return {uint32_t(row), uint32_t(row >> 32)};
}

// Levels from 1 to 127 with their signs, bit k negative, as unsigned codes of zero 128.
QK_HD inline Eight negate(Eight levels, uint32_t signs) {
    const Eight ones = spread_bits(signs);
    // 128 - level is ~(level + 127) in a byte, 128 + level is level | 128.
    return {((levels.low ^ (ones.low * 0xFFu)) + ones.low) ^ kSignBits,
            ((levels.high ^ (ones.high * 0xFFu)) + ones.high) ^ kSignBits};
}

// Seven stored sign bits; the eighth makes the number of negative signs even.
QK_HD inline uint32_t even_signs(uint32_t seven) {
#if defined(__CUDA_ARCH__)
    return seven | uint32_t(__popc(seven) & 1) << 7;
#else
    return seven | uint32_t(__builtin_popcount(seven) & 1) << 7;
#endif
}

struct IQ2_XXS : GridRows<uint64_t, 256> {
    static constexpr int kId = 16, kElements = 256, kBytes = 66;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void* grid, int p, Values* out) {
        const uint8_t* group = block + 2 + 8 * (p / 4);
        const uint32_t packed = word_at<2>(group + 4);
        const float scale = half_at(block) * (0.5f + float(packed >> 28)) * 0.25f;
        const uint32_t signs = even_signs((packed >> (7 * (p % 4))) & 127);
        emit(negate(eight_of(row(grid, group[p % 4])), signs), 128.0f, scale, out);
    }
};

struct IQ2_XS : GridRows<uint64_t, 512> {
    static constexpr int kId = 17, kElements = 256, kBytes = 74;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void* grid, int p, Values* out) {
        const uint32_t packed = word16_at(block + 2 + 2 * p);
        const uint32_t nibble = (block[66 + p / 4] >> (4 * (p / 2 % 2))) & 15;
        const float scale = half_at(block) * (0.5f + float(nibble)) * 0.25f;
        emit(negate(eight_of(row(grid, packed & 511)), even_signs(packed >> 9)), 128.0f, scale,
             out);
    }
};

struct IQ2_S : GridRows<uint64_t, 1024> {
    static constexpr int kId = 22, kElements = 256, kBytes = 82;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void* grid, int p, Values* out) {
        const uint32_t high = (block[66 + p / 4] >> (2 * (p % 4))) & 3;
        const uint32_t nibble = (block[74 + p / 4] >> (4 * (p / 2 % 2))) & 15;
        const float scale = half_at(block) * (0.5f + float(nibble)) * 0.25f;
        const Eight levels = eight_of(row(grid, block[2 + p] | high << 8));
        emit(negate(levels, block[34 + p]), 128.0f, scale, out);
    }
};

struct IQ3_XXS : GridRows<uint32_t, 256> {
    static constexpr int kId = 18, kElements = 256, kBytes = 98;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void* grid, int p, Values* out) {
        const uint32_t packed = word_at<2>(block + 66 + 4 * (p / 4));
        const float scale = half_at(block) * (0.5f + float(packed >> 28)) * 0.5f;
        const Eight levels = {row(grid, block[2 + 2 * p]), row(grid, block[3 + 2 * p])};
        emit(negate(levels, even_signs((packed >> (7 * (p % 4))) & 127)), 128.0f, scale, out);
    }
};

struct IQ3_S : GridRows<uint32_t, 512> {
    static constexpr int kId = 21, kElements = 256, kBytes = 110;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void* grid, int p, Values* out) {
        const int g = p / 4;
        const uint32_t scale = (block[106 + g / 2] >> (4 * (g % 2))) & 15;
        const uint32_t ninth = uint32_t(block[66 + g]) >> (2 * (p % 4));
        const Eight levels = {row(grid, block[2 + 2 * p] | (ninth & 1) << 8),
                              row(grid, block[3 + 2 * p] | (ninth & 2) << 7)};
        emit(negate(levels, block[74 + p]), 128.0f, half_at(block) * float(2 * int(scale) + 1),
             out);
    }
};

// The levels of IQ1, eighths from -8 to 8, moved by one eighth, as unsigned codes of zero 128.
QK_HD inline Eight move_eighth(Eight levels, bool down) {
    const uint32_t step = down ? 0xFEFEFEFFu : 0x01010101u;  // its sum borrows from no byte
    return {(levels.low ^ kSignBits) + step, (levels.high ^ kSignBits) + step};
}

struct IQ1_S : GridRows<uint64_t, 2048> {
    static constexpr int kId = 19, kElements = 256, kBytes = 50;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void* grid, int p, Values* out) {
        const uint32_t packed = word16_at(block + 34 + 2 * (p / 4));
        const float scale =
            half_at(block) * float(2 * int((packed >> 12) & 7) + 1) * 0.125f;
        const uint32_t high = (packed >> (3 * (p % 4))) & 7;
        const Eight levels = eight_of(row(grid, block[2 + p] | high << 8));
        emit(move_eighth(levels, packed & 0x8000), 128.0f, scale, out);
    }
};

struct IQ1_M : GridRows<uint64_t, 2048> {
    static constexpr int kId = 29, kElements = 256, kBytes = 56;
    template <class Values>
    QK_HD static void eight(const uint8_t* block, const void* grid, int p, Values* out) {
        const uint32_t low = word_at<4>(block + 48), high = word_at<4>(block + 52);
        const uint32_t half = ((low >> 12) & 0xF) | ((low >> 24) & 0xF0) |
                              ((high >> 4) & 0xF00) | ((high >> 16) & 0xF000);
        const int g = p / 2;
        const uint32_t scales = (g < 8 ? low : high) >> (16 * (g / 4 % 2));
        const uint32_t code = (scales >> (3 * (g % 4))) & 7;
        const float scale = half_bits_to_float(uint16_t(half)) * float(2 * int(code) + 1) * 0.125f;
        const uint32_t nibble = (block[32 + p / 2] >> (4 * (p % 2))) & 15;
        const Eight levels = eight_of(row(grid, block[p] | (nibble & 7) << 8));
        emit(move_eighth(levels, nibble & 8), 128.0f, scale, out);
    }
};

}  // namespace QK_VARIANT
}  // namespace qk
