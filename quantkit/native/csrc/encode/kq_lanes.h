// Lanes for the K-quant search: lane s of a vector is sub-block s of a super-block.
//
// Lanes never mix, so the width (4, 8 or 16) changes the speed and not one bit of the result.
#pragma once

#include <cstdint>
#include <cstring>

#include "../formats/numbers.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#if defined(QK_ONE_LANE)
#include "../cuda/lane.cuh"
#endif

namespace qk {
namespace QK_VARIANT {
namespace kq {

// With QK_ONE_LANE, for the GPU, a vector has one lane, and the lanes that share a super-block are
// threads: what combines lanes then goes through exchange().
#if defined(QK_ONE_LANE)
constexpr int kMaxLanes = 1;
template <int kLanes>
using FloatLanes = OneFloat;
template <int kLanes>
using IntLanes = OneInt;
template <int kGroups>
constexpr int kHeld = 1;
#else
#if defined(__AVX512F__)
constexpr int kMaxLanes = 16;
#elif defined(__AVX2__)
constexpr int kMaxLanes = 8;
#else
constexpr int kMaxLanes = 4;
#endif
template <int kLanes>
struct Vectors {
    typedef float F __attribute__((vector_size(4 * kLanes)));
    typedef int32_t I __attribute__((vector_size(4 * kLanes)));
};
template <int kLanes>
using FloatLanes = typename Vectors<kLanes>::F;
template <int kLanes>
using IntLanes = typename Vectors<kLanes>::I;
// Of the groups of a super-block, how many this thread holds.
template <int kGroups>
constexpr int kHeld = kGroups;
#endif

template <int kLanes>
struct Lanes {
    typedef FloatLanes<kLanes> F;
};

template <class F>
QK_HD inline F load(const float* p) {
    F v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

template <class F>
QK_HD inline void store(float* p, F v) {
    std::memcpy(p, &v, sizeof v);
}

template <class F>
QK_HD inline F splat(float v) {
    return v - F{};
}

// Weights that are all 1, and cost nothing.
struct One {
    template <class F>
    QK_HD friend F operator*(One, F v) {
        return v;
    }
};

// a < b ? a : b, and with >. The instructions are named since a comparison and a choice is what
// compilers make of the operators; b where either is NaN, in all of them.
template <class F>
QK_HD inline F lower(F a, F b) {
#if defined(__AVX512F__) && !defined(QK_ONE_LANE)
    if constexpr (sizeof(F) == 64) return (F)_mm512_min_ps((__m512)a, (__m512)b);
#endif
#if defined(__AVX__) && !defined(QK_ONE_LANE)
    if constexpr (sizeof(F) == 32) return (F)_mm256_min_ps((__m256)a, (__m256)b);
#endif
#if defined(__SSE2__) && !defined(QK_ONE_LANE)
    if constexpr (sizeof(F) == 16) return (F)_mm_min_ps((__m128)a, (__m128)b);
#endif
    return a < b ? a : b;
}

template <class F>
QK_HD inline F higher(F a, F b) {
#if defined(__AVX512F__) && !defined(QK_ONE_LANE)
    if constexpr (sizeof(F) == 64) return (F)_mm512_max_ps((__m512)a, (__m512)b);
#endif
#if defined(__AVX__) && !defined(QK_ONE_LANE)
    if constexpr (sizeof(F) == 32) return (F)_mm256_max_ps((__m256)a, (__m256)b);
#endif
#if defined(__SSE2__) && !defined(QK_ONE_LANE)
    if constexpr (sizeof(F) == 16) return (F)_mm_max_ps((__m128)a, (__m128)b);
#endif
    return a > b ? a : b;
}

// Nearest integer (ties to even) of |v| < 2^22: the sum's last place is 1.
template <class F>
QK_HD inline F nearest(F v) {
    return (v + 12582912.0f) - 12582912.0f;
}

template <class F>
QK_HD inline F nearest_in(F v, F lo, F hi) {
    return nearest<F>(lower<F>(higher<F>(v, lo), hi));
}

// 1 / v, and 0 where v is 0: a sub-block of scale 0 has all codes 0.
template <class F>
QK_HD inline F inverse(F v) {
    const F zero = splat<F>(0.0f);
    const F one = splat<F>(1.0f);
    return v == zero ? zero : one / (v == zero ? one : v);
}

}  // namespace kq
}  // namespace QK_VARIANT
}  // namespace qk
