// What the device functions need of the machine, also in C++ so that a host can run and test them.
#pragma once

#ifndef QK_VARIANT
#define QK_VARIANT cuda
#endif

#include "../formats/numbers.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

namespace qk {
namespace QK_VARIANT {

// Eight consecutive bytes, the first lowest.
struct Eight {
    uint32_t low, high;
};

// Byte i of the result is the byte of (high, low) that nibble i of the selector, 0 to 7, names.
QK_HD inline uint32_t permute(uint32_t low, uint32_t high, uint32_t selector) {
#if defined(__CUDA_ARCH__)
    return __byte_perm(low, high, selector);
#else
    const uint64_t bytes = uint64_t(high) << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned from = (selector >> (4 * i)) & 7;
        result |= uint32_t((bytes >> (8 * from)) & 0xFF) << (8 * i);
    }
    return result;
#endif
}

// The half at an even address.
QK_HD inline float half_at(const uint8_t* p) {
#if defined(__CUDA_ARCH__)
    return __half2float(__ushort_as_half(*reinterpret_cast<const uint16_t*>(p)));
#else
    return load_half(p);
#endif
}

QK_HD inline uint32_t word16_at(const uint8_t* p) {
#if defined(__CUDA_ARCH__)
    return *reinterpret_cast<const uint16_t*>(p);
#else
    return load16(p);
#endif
}

// A word whose address is a multiple of kAlign.
template <int kAlign>
QK_HD inline uint32_t word_at(const uint8_t* p) {
#if defined(__CUDA_ARCH__)
    if constexpr (kAlign % 4 == 0) {
        return *reinterpret_cast<const uint32_t*>(p);
    } else {
        static_assert(kAlign == 2, "words are at even addresses");
        return word16_at(p) | word16_at(p + 2) << 16;
    }
#else
    return load32(p);
#endif
}

// Eight bytes at an address that is a multiple of kAlign. Unless that is 4 or 8, up to three bytes
// before and after them are read too; they must exist and do not matter.
template <int kAlign>
QK_HD inline Eight eight_at(const uint8_t* p) {
#if defined(__CUDA_ARCH__)
    if constexpr (kAlign % 4 == 0) {
        const uint32_t* words = reinterpret_cast<const uint32_t*>(p);
        return {words[0], words[1]};
    } else {
        const uintptr_t address = reinterpret_cast<uintptr_t>(p);
        const uint32_t offset = uint32_t(address & 3);
        const uint32_t* words = reinterpret_cast<const uint32_t*>(p - offset);
        const uint32_t middle = words[1];
        return {__funnelshift_r(words[0], middle, 8 * offset),
                __funnelshift_r(middle, words[2], 8 * offset)};
    }
#else
    return {load32(p), load32(p + 4)};
#endif
}

// Byte k of a word, less `zero`, exact: put below 2^23 it is the lowest byte of a mantissa.
QK_HD inline float byte_to_float(uint32_t word, int k, float zero) {
    return float_of_bits(permute(word, 0x4B000000u, 0x7440u | uint32_t(k))) - (8388608.0f + zero);
}

// The bits of `mask` of every byte shifted down by `shift`.
QK_HD inline Eight field(Eight bytes, int shift, uint32_t mask) {
    return {(bytes.low >> shift) & mask, (bytes.high >> shift) & mask};
}

QK_HD inline Eight either(Eight a, Eight b, int shift) {
    return {a.low | b.low << shift, a.high | b.high << shift};
}

// Bit k of the lowest eight to byte k, as 0 or 1.
QK_HD inline Eight spread_bits(uint32_t bits) {
    constexpr uint32_t kSevens = 1u | 1u << 7 | 1u << 14 | 1u << 21;
    return {((bits & 15) * kSevens) & 0x01010101u, (((bits >> 4) & 15) * kSevens) & 0x01010101u};
}

// Two bits to each of four bytes.
QK_HD inline uint32_t spread_pairs(uint32_t byte) {
    byte |= byte << 12;
    return (byte | byte << 6) & 0x03030303u;
}

constexpr uint32_t kNibbles = 0x0F0F0F0Fu;
constexpr uint32_t kSignBits = 0x80808080u;

}  // namespace QK_VARIANT
}  // namespace qk
