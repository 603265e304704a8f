// From codes to blocks of halves and 32-bit words. Lane b of every vector is block b's, so words
// are put together in the lanes, and only whole ones leave them.
#pragma once

#include "sums.h"

namespace qk {
namespace QK_VARIANT {

// The bits of values that binary16 holds exactly.
template <class F, class I>
QK_HD inline I bits_of_halves(F v) {
    const F mag = magnitude<F, I>(v);
    const I subnormal = (I)(mag * 16777216.0f + 12582912.0f) & 0x7FF;
    const I normal = ((I)mag >> 13) - (112 << 10);
    return (((I)v >> 16) & 0x8000) | (mag < splat<F>(0x1p-14f) ? subnormal : normal);
}

// The code of every element; place(x) is where x lies among the levels.
template <class Levels, class T, class Place>
QK_HD inline void find_codes(const T& tile, typename T::I (&codes)[T::kElements],
                             const Place& place) {
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        codes[i] = Levels::template codes<typename T::F, typename T::I>(place(tile.values(i)));
    }
}

// Byte j: element j low, element j + 16 high.
template <class I>
QK_HD inline void nibble_words(const I* codes, I* words) {
    QK_UNROLL
    for (int k = 0; k < 4; ++k) {
        words[k] = I{};
        QK_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int j = 4 * k + i;
            words[k] |= ((codes[j] & 15) | ((codes[j + 16] & 15) << 4)) << (8 * i);
        }
    }
}

// Four codes of a byte each.
template <class I>
QK_HD inline I byte_word(const I* codes) {
    return codes[0] | (codes[1] << 8) | (codes[2] << 16) | (codes[3] << 24);
}

// Bit 4 of every code, element 0 lowest, then the nibbles.
template <class I>
QK_HD inline void five_bit_words(const I* codes, I* words) {
    words[0] = I{};
    QK_UNROLL
    for (int j = 0; j < 32; ++j) words[0] |= ((codes[j] >> 4) & 1) << j;
    nibble_words(codes, words + 1);
}

// Blocks of kHalves 16-bit numbers and kWords words, one behind the other.
template <class T, int kHalves, int kWords>
QK_HD inline void put_blocks(const typename T::I (&halves)[kHalves],
                             const typename T::I (&words)[kWords], int n_blocks, uint8_t* out) {
    constexpr int kBytes = 2 * kHalves + 4 * kWords;
    alignas(64) uint32_t head[kHalves][T::kLanes], body[kWords][T::kLanes];
    for (int i = 0; i < kHalves; ++i) std::memcpy(head[i], &halves[i], sizeof head[i]);
    for (int i = 0; i < kWords; ++i) std::memcpy(body[i], &words[i], sizeof body[i]);
    for (int b = 0; b < n_blocks; ++b, out += kBytes) {
        QK_UNROLL
        for (int i = 0; i < kHalves; ++i) {
            const uint16_t half = uint16_t(head[i][b]);
            std::memcpy(out + 2 * i, &half, sizeof half);
        }
        QK_UNROLL
        for (int i = 0; i < kWords; ++i) {
            std::memcpy(out + 2 * kHalves + 4 * i, &body[i][b], sizeof body[i][b]);
        }
    }
}

}  // namespace QK_VARIANT
}  // namespace qk
