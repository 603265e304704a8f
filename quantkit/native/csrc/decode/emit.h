// From integer codes to floats: the last step of every block decoder.
//
// A decoder first unpacks its block to one byte per element, which vectorises whatever the packing,
// then calls one of these. The order of the operations is part of the format: scale times code,
// then plus offset, each rounded once.
#pragma once

#include "../formats/numbers.h"

#if defined(__SSSE3__) && !defined(__CUDA_ARCH__)
#include <immintrin.h>
#endif

namespace qk {
namespace QK_VARIANT {

constexpr int kSuper = 256;  // elements of a super-block

// out = scales[g] * code for every group g of kGroup codes.
template <int kGroup, class Code>
inline void scale_codes(const Code* __restrict codes, const float* __restrict scales,
                        int n_groups, float* __restrict out) {
    for (int g = 0; g < n_groups; ++g) {
        const float scale = scales[g];
        for (int j = 0; j < kGroup; ++j) {
            out[g * kGroup + j] = scale * float(int32_t(codes[g * kGroup + j]));
        }
    }
}

// out = scales[g] * code + offsets[g].
template <int kGroup>
inline void scale_and_shift_codes(const uint8_t* __restrict codes, const float* __restrict scales,
                                  const float* __restrict offsets, int n_groups,
                                  float* __restrict out) {
    for (int g = 0; g < n_groups; ++g) {
        const float scale = scales[g];
        const float offset = offsets[g];
        for (int j = 0; j < kGroup; ++j) {
            out[g * kGroup + j] = scale * float(int32_t(codes[g * kGroup + j])) + offset;
        }
    }
}

// Low nibbles of kBytes bytes, then high ones, as codes.
template <int kBytes>
inline void split_nibbles(const uint8_t* __restrict packed, uint8_t* __restrict codes) {
    for (int j = 0; j < kBytes; ++j) {
        codes[j] = packed[j] & 15;
        codes[kBytes + j] = packed[j] >> 4;
    }
}

// The same through a table of 16 levels; kBytes is 8 or 16.
template <int kBytes>
inline void look_up_nibbles(const int8_t* table, const uint8_t* __restrict packed,
                            int8_t* __restrict levels) {
#if defined(__SSSE3__) && !defined(__CUDA_ARCH__)
    const __m128i all = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    const __m128i fifteen = _mm_set1_epi8(15);
    __m128i bytes;
    if (kBytes == 16) {
        bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed));
    } else {
        bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(packed));
    }
    const __m128i low = _mm_shuffle_epi8(all, _mm_and_si128(bytes, fifteen));
    const __m128i high = _mm_shuffle_epi8(all, _mm_and_si128(_mm_srli_epi16(bytes, 4), fifteen));
    if (kBytes == 16) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(levels), low);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(levels + 16), high);
    } else {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(levels), _mm_unpacklo_epi64(low, high));
    }
#else
    for (int j = 0; j < kBytes; ++j) {
        levels[j] = table[packed[j] & 15];
        levels[kBytes + j] = table[packed[j] >> 4];
    }
#endif
}

}  // namespace QK_VARIANT
}  // namespace qk
