// Tiles: several blocks side by side, lane b of every vector belonging to block b.
//
// A sum over a block is then one lane's sum in the order of the elements, so neither the width of
// the vectors nor the number of blocks in a tile changes a bit of the result.
#pragma once

#include <type_traits>

#include "../formats/numbers.h"
#include "kq_lanes.h"

namespace qk {
namespace QK_VARIANT {

using kq::higher;
using kq::inverse;
using kq::load;
using kq::lower;
using kq::One;
using kq::splat;
using kq::store;

template <int kLanes>
struct Wide {
    typedef kq::FloatLanes<kLanes> F;
    typedef kq::IntLanes<kLanes> I;
};

// kElements values of each of kLanes blocks, and their weights.
template <int kElements_, int kLanes_>
struct Tile {
    static constexpr int kElements = kElements_, kLanes = kLanes_;
    static constexpr bool kWeighted = true;
    using F = typename Wide<kLanes>::F;
    using I = typename Wide<kLanes>::I;
    alignas(64) float x[kElements * kLanes];
    alignas(64) float w[kElements * kLanes];
    QK_HD F values(int i) const { return load<F>(x + i * kLanes); }
    QK_HD F weights(int i) const { return load<F>(w + i * kLanes); }
};

// A tile without importance.
template <int kElements_, int kLanes_>
struct PlainTile {
    static constexpr int kElements = kElements_, kLanes = kLanes_;
    static constexpr bool kWeighted = false;
    using F = typename Wide<kLanes>::F;
    using I = typename Wide<kLanes>::I;
    alignas(64) float x[kElements * kLanes];
    QK_HD F values(int i) const { return load<F>(x + i * kLanes); }
    QK_HD One weights(int) const { return {}; }
};

// Nearest integer, ties to even, of |v| < 2^22; one instruction where there is one.
template <class F>
QK_HD inline F rounded(F v) {
#if defined(__AVX512F__) && !defined(QK_ONE_LANE)
    if constexpr (sizeof(F) == 64) {
        return (F)_mm512_mask_roundscale_ps((__m512)v, 0xFFFF, (__m512)v, 8);
    }
#endif
#if defined(__AVX2__) && !defined(QK_ONE_LANE)
    if constexpr (sizeof(F) == 32) return (F)_mm256_round_ps((__m256)v, 8);
    if constexpr (sizeof(F) == 16) return (F)_mm_round_ps((__m128)v, 8);
#endif
    return kq::nearest<F>(v);
}

template <class F, class I>
QK_HD inline F magnitude(F v) {
    return (F)((I)v & 0x7FFFFFFF);
}

// 2^-e for the exponent e of v >= 0, kept where both powers are normal.
template <class F, class I>
QK_HD inline F inverse_power(F v) {
    I exponent = (I)v & 0x7F800000;
    exponent = exponent < (1 << 23) ? (I{} + (1 << 23)) : exponent;
    exponent = exponent > (253 << 23) ? (I{} + (253 << 23)) : exponent;
    return (F)((254 << 23) - exponent);
}

// Rounded to what binary16 holds: nearest even, subnormals kept, saturated at 65504.
template <class F, class I>
QK_HD inline F round_to_half(F v) {
    const I sign = (I)v & (int32_t)0x80000000;
    F mag = lower<F>(magnitude<F, I>(v), splat<F>(65504.0f));
    // Adding 2^(e+13) leaves the 11 bits that a normal binary16 keeps, and fewer below 2^-14.
    const F least = splat<F>(6.103515625e-5f);
    const F round = (F)(((I)higher<F>(mag, least) & 0x7F800000) + (13 << 23));
    mag = (mag + round) - round;
    return (F)((I)mag | sign);
}

// The bits of a float that binary16 holds exactly.
QK_HD inline uint16_t half_bits(float v) {
    const uint32_t bits = bits_of_float(v);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t mag = bits & 0x7FFFFFFFu;
    if (mag < 0x38800000u) return uint16_t(sign | uint32_t(float_of_bits(mag) * 16777216.0f));
    return uint16_t(sign | ((mag >> 13) - (112u << 10)));
}

QK_HD inline void put_half(uint8_t* out, float v) {
    const uint16_t bits = half_bits(v);
    out[0] = uint8_t(bits);
    out[1] = uint8_t(bits >> 8);
}

// Weights below this share of the block's largest count as this share: what such values cost
// weighs nothing, and they are still stored as well as the others allow.
constexpr float kLeastWeight = 0x1p-24f;

// Elements below this share do not set a scale: channels that were never active, which callers
// give a millionth of the mean.
constexpr float kWeightless = 0x1p-17f;

// Row r, lane c becomes row c, lane r: bit by bit of r and c.
template <int kLanes, int kBit = 1>
QK_HD inline void transpose(typename Wide<kLanes>::F (&rows)[kLanes]) {
    using F = typename Wide<kLanes>::F;
    if constexpr (kBit < kLanes) {
#if defined(__GNUC__) && !defined(__clang__)
        typename Wide<kLanes>::I low, high;
        for (int lane = 0; lane < kLanes; ++lane) {
            low[lane] = lane & kBit ? kLanes + lane - kBit : lane;
            high[lane] = lane & kBit ? kLanes + lane : lane + kBit;
        }
#endif
        for (int r = 0; r < kLanes; ++r) {
            if (r & kBit) continue;
            const F a = rows[r], b = rows[r + kBit];
#if defined(__GNUC__) && !defined(__clang__)
            rows[r] = __builtin_shuffle(a, b, low);
            rows[r + kBit] = __builtin_shuffle(a, b, high);
#else
            for (int lane = 0; lane < kLanes; ++lane) {
                rows[r][lane] = lane & kBit ? b[lane - kBit] : a[lane];
                rows[r + kBit][lane] = lane & kBit ? b[lane] : a[lane + kBit];
            }
#endif
        }
        transpose<kLanes, 2 * kBit>(rows);
    }
}

// n_blocks <= kLanes consecutive blocks, element by element; lanes without one repeat the first.
template <class T>
QK_HD inline void interleave(const float* from, int n_blocks, float* to) {
    using F = typename T::F;
    QK_UNROLL
    for (int i = 0; i < T::kElements; i += T::kLanes) {
        F rows[T::kLanes];
        for (int b = 0; b < T::kLanes; ++b) {
            rows[b] = load<F>(from + (b < n_blocks ? b : 0) * T::kElements + i);
        }
        transpose<T::kLanes>(rows);
        for (int b = 0; b < T::kLanes; ++b) store<F>(to + (i + b) * T::kLanes, rows[b]);
    }
}

template <class T>
QK_HD inline void load_tile(const float* x, const float* w, int n_blocks, T& tile) {
    interleave<T>(x, n_blocks, tile.x);
    interleave<T>(w, n_blocks, tile.w);
}

template <class T>
QK_HD inline typename T::F largest_weight(const T& tile) {
    typename T::F top = {};
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) top = higher(top, tile.weights(i));
    return top;
}

// Scales the weights by a power of two so that the largest is in [1, 2) and no sum overflows; all
// zero, they become ones.
template <class T>
QK_HD inline void scale_weights(T& tile, typename T::F largest) {
    using F = typename T::F;
    const F scale = inverse_power<F, typename T::I>(largest);
    const auto empty = largest == splat<F>(0.0f);
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        const F scaled = higher<F>(tile.weights(i) * scale, splat<F>(kLeastWeight));
        store<F>(tile.w + i * T::kLanes, empty ? splat<F>(1.0f) : scaled);
    }
}

template <class I>
QK_HD inline bool any(I mask) {
    int32_t seen = 0;
    QK_UNROLL
    for (int lane = 0; lane < int(sizeof(I) / 4); ++lane) seen |= mask[lane];
    return seen != 0;
}

// The element of largest magnitude of each block, with its sign; the first of equals. Weightless
// elements do not count, and are clipped to it.
template <class T>
QK_HD inline typename T::F clip_weightless(T& tile) {
    using F = typename T::F;
    using I = typename T::I;
    F best = {}, top = {};
    I light = {};
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        const auto counts = tile.weights(i) > splat<F>(kWeightless);
        const F x = tile.values(i), mag = counts ? magnitude<F, I>(x) : splat<F>(0.0f);
        best = mag > top ? x : best;
        top = higher<F>(mag, top);
        light |= (I)counts + 1;
    }
    if (any(light)) {
        QK_UNROLL
        for (int i = 0; i < T::kElements; ++i) {
            store<F>(tile.x + i * T::kLanes, lower<F>(higher<F>(tile.values(i), -top), top));
        }
    }
    return best;
}

// Without importance every element counts.
template <int kElements, int kLanes>
QK_HD inline typename Wide<kLanes>::F clip_weightless(PlainTile<kElements, kLanes>& tile) {
    using F = typename Wide<kLanes>::F;
    F best = {}, top = {};
    QK_UNROLL
    for (int i = 0; i < kElements; ++i) {
        const F x = tile.values(i), mag = magnitude<F, typename Wide<kLanes>::I>(x);
        best = mag > top ? x : best;
        top = higher<F>(mag, top);
    }
    return best;
}

// Blocks with weights that are fit for sums.
template <int kElements, int kLanes>
QK_HD inline void load_blocks(const float* x, const float* w, int n_blocks,
                              Tile<kElements, kLanes>& tile) {
    load_tile(x, w, n_blocks, tile);
    scale_weights(tile, largest_weight(tile));
}

template <int kElements, int kLanes>
QK_HD inline void load_blocks(const float* x, const float*, int n_blocks,
                              PlainTile<kElements, kLanes>& tile) {
    interleave<PlainTile<kElements, kLanes>>(x, n_blocks, tile.x);
}

template <int kElements, int kLanes, bool kWeighted>
using TileOf =
    std::conditional_t<kWeighted, Tile<kElements, kLanes>, PlainTile<kElements, kLanes>>;

// Calls step.template run<kLanes>(first block, number of blocks) over n_blocks blocks.
template <int kLanes, class Step>
QK_HD inline void for_tiles(int64_t first, int64_t n_blocks, const Step& step) {
    for (; n_blocks - first >= kLanes; first += kLanes) {
        step.template run<kLanes>(first, kLanes);
    }
    const int rest = int(n_blocks - first);
    if (rest == 0) return;
    if constexpr (kLanes > 4) {
        if (rest <= kLanes / 2) return for_tiles<kLanes / 2>(first, n_blocks, step);
    }
    step.template run<kLanes>(first, rest);
}

}  // namespace QK_VARIANT
}  // namespace qk
