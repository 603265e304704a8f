// From integer codes to floats, sixteen at a time: the last step of every block decoder.
//
// Codes stay in one 16-byte vector between unpacking and here, whatever the variant: through
// memory, narrow stores followed by wide loads would stall the processor. The order of the
// operations is part of the formats: scale times code, then plus offset, each rounded once.
#pragma once

#include "../formats/numbers.h"

#if defined(__SSSE3__)
#include <immintrin.h>
#endif

namespace qk {
namespace QK_VARIANT {

constexpr int kSuper = 256;  // elements of a super-block

typedef uint8_t U8x16 __attribute__((vector_size(16)));
typedef int8_t S8x16 __attribute__((vector_size(16)));
typedef uint64_t U64x2 __attribute__((vector_size(16)));

inline U8x16 load_bytes(const uint8_t* p) {
    U8x16 bytes;
    memcpy(&bytes, p, sizeof bytes);
    return bytes;
}

// Eight bytes each.
inline U8x16 join_words(uint64_t low, uint64_t high) {
    return U8x16(U64x2{low, high});
}

// Unsigned bytes minus a constant, as signed ones.
inline S8x16 centred(U8x16 codes, int zero) {
    return S8x16(codes - uint8_t(zero));
}

// 0xFF in the lanes whose bit is set: bit e of the first byte is lane e, of the second lane 8 + e.
inline U8x16 mask_of_bits(uint32_t first, uint32_t second) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    return U8x16(_mm_movm_epi8(__mmask16(first | (second << 8))));
#else
    constexpr uint64_t kEverywhere = 0x0101010101010101u;
    constexpr uint64_t kOwnBit = 0x8040201008040201u;
    const U8x16 own = join_words(kOwnBit, kOwnBit);
    return U8x16((join_words(first * kEverywhere, second * kEverywhere) & own) == own);
#endif
}

// scale * code.
inline void emit(S8x16 codes, float scale, float* __restrict out) {
#if defined(__AVX512F__)
    const __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(__m128i(codes)));
    _mm512_storeu_ps(out, _mm512_mul_ps(values, _mm512_set1_ps(scale)));
#elif defined(__AVX2__)
    const __m128i all = __m128i(codes);
    const __m256 factor = _mm256_set1_ps(scale);
    const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(all));
    const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(all, 8)));
    _mm256_storeu_ps(out, _mm256_mul_ps(low, factor));
    _mm256_storeu_ps(out + 8, _mm256_mul_ps(high, factor));
#else
    int8_t lanes[16];
    memcpy(lanes, &codes, sizeof lanes);
    for (int j = 0; j < 16; ++j) out[j] = scale * float(int32_t(lanes[j]));
#endif
}

// scale * code + offset.
inline void emit(U8x16 codes, float scale, float offset, float* __restrict out) {
#if defined(__AVX512F__)
    const __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(__m128i(codes)));
    const __m512 scaled = _mm512_mul_ps(values, _mm512_set1_ps(scale));
    _mm512_storeu_ps(out, _mm512_add_ps(scaled, _mm512_set1_ps(offset)));
#elif defined(__AVX2__)
    const __m128i all = __m128i(codes);
    const __m256 factor = _mm256_set1_ps(scale);
    const __m256 shift = _mm256_set1_ps(offset);
    const __m256 low = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(all));
    const __m256 high = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(all, 8)));
    _mm256_storeu_ps(out, _mm256_add_ps(_mm256_mul_ps(low, factor), shift));
    _mm256_storeu_ps(out + 8, _mm256_add_ps(_mm256_mul_ps(high, factor), shift));
#else
    uint8_t lanes[16];
    memcpy(lanes, &codes, sizeof lanes);
    for (int j = 0; j < 16; ++j) out[j] = scale * float(int32_t(lanes[j])) + offset;
#endif
}

// table[code] of codes below 16.
inline S8x16 look_up(const int8_t* table, U8x16 codes) {
#if defined(__SSSE3__)
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return S8x16(_mm_shuffle_epi8(levels, __m128i(codes)));
#else
    uint8_t lanes[16];
    int8_t found[16];
    memcpy(lanes, &codes, sizeof lanes);
    for (int j = 0; j < 16; ++j) found[j] = table[lanes[j]];
    S8x16 levels;
    memcpy(&levels, found, sizeof levels);
    return levels;
#endif
}

}  // namespace QK_VARIANT
}  // namespace qk
