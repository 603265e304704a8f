// Row encoders for Q8_0, Q4_0, Q5_0, Q4_1 and Q5_1: 32 elements, one binary16 scale, and a
// binary16 offset in the last two. Layouts: ggml-common.h of llama.cpp.
#pragma once

#include <cmath>

#include "affine.h"

namespace qk {
namespace QK_VARIANT {
namespace simple {

// A type that is searched by few guesses where there is no importance.
template <class Type>
struct Scaled : Fitted<Type> {
    static constexpr bool kAffine = false;
    template <class T>
    QK_HD static typename T::F scale(const T& tile, typename T::F extreme) {
        if constexpr (T::kWeighted) {
            return Fitted<Type>::scale(tile, extreme);
        } else {
            return plain::find_scale<Type>(tile, extreme);
        }
    }
};

template <int kNumber>
struct LevelList {
    float of[kNumber];
};

template <int kNumber>
struct CutList {
    plain::Cut of[kNumber];
};

struct Q4_0 : Scaled<Q4_0> {
    using Levels = Integers<-8, 7, 8>;
    static constexpr int kElements = 32, kBytes = 18, kWords = 4, kTurns = 1;
    static constexpr Guesses<40> kGuesses{8.0f, 6.5f, 1.035f, 1.004f};
    static constexpr LevelList<5> kPlainGuesses = {{-8.45f, -7.2f, -7.7f, -8.2f, -6.8f}};
    template <class I>
    QK_HD static void pack(const I* codes, I* words) {
        nibble_words(codes, words);
    }
};

struct Q5_0 : Scaled<Q5_0> {
    using Levels = Integers<-16, 15, 16>;
    static constexpr int kElements = 32, kBytes = 22, kWords = 5, kTurns = 1;
    static constexpr Guesses<48> kGuesses{16.0f, 13.0f, 1.02f, 1.003f};
    static constexpr LevelList<5> kPlainGuesses = {{-15.0f, -16.4f, -14.0f, -15.6f, -15.2f}};
    template <class I>
    QK_HD static void pack(const I* codes, I* words) {
        five_bit_words(codes, words);
    }
};

// Q8_0: with 255 levels a scale's rounding matters, so every guess is scored as stored. Clipping
// does not pay: a scale is taken only if it reaches the extreme, and values need no clipping.
struct Q8_0 {
    using Levels = Integers<-127, 127, 0>;
    static constexpr int kElements = 32, kBytes = 34, kWords = 8;
    // Every whole level that one of these scales may give the extreme is among them, so that what
    // was decoded encodes to itself.
    static constexpr int kGuesses = 21, kCount = 3;
    static constexpr float kTop = 127.0f, kStep = 0.5f;
    template <class I>
    QK_HD static void pack(const I* codes, I* words) {
        QK_UNROLL
        for (int k = 0; k < kWords; ++k) words[k] = byte_word(codes + 4 * k);
    }

    template <class F>
    struct Best {
        F scale, error, top;

        QK_HD void offer(F other, F other_error) {
            const auto take = (other_error < error) & (other * 127.5f >= top);
            scale = take ? other : scale;
            error = take ? other_error : error;
        }
    };

    template <int kScales, class T>
    QK_HD static void offer(const T& tile, const typename T::F (&scales)[kScales],
                            Best<typename T::F>& best) {
        using F = typename T::F;
        F per_scale[kScales], error[kScales] = {};
        for (int k = 0; k < kScales; ++k) per_scale[k] = inverse<F>(scales[k]);
        QK_UNROLL
        for (int i = 0; i < kElements; ++i) {
            const F x = tile.values(i);
            const auto w = tile.weights(i);
            QK_UNROLL
            for (int k = 0; k < kScales; ++k) {
                const F t = x * per_scale[k], miss = t - rounded<F>(t);
                error[k] += w * miss * miss;
            }
        }
        for (int k = 0; k < kScales; ++k) best.offer(scales[k], error[k] * scales[k] * scales[k]);
    }

    // The least-squares scale through the codes of another.
    template <class T>
    QK_HD static typename T::F refit(const T& tile, typename T::F scale) {
        using F = typename T::F;
        const F per_scale = inverse<F>(scale);
        F xq = {}, qq = {};
        QK_UNROLL
        for (int i = 0; i < kElements; ++i) {
            const F x = tile.values(i), q = rounded<F>(x * per_scale);
            const F wq = tile.weights(i) * q;
            qq += wq * q;
            xq += wq * x;
        }
        return round_to_half<F, typename T::I>(xq * inverse<F>(qq));
    }

    template <class T>
    QK_HD static typename T::F scale(const T& tile, typename T::F extreme) {
        using F = typename T::F;
        using I = typename T::I;
        const F top = magnitude<F, I>(extreme);
        Best<F> best = {round_to_half<F, I>(top * (1.0f / 127.0f) + 0x1p-25f),
                        splat<F>(INFINITY), top};
        for (int guess = 0; guess < kGuesses; guess += kCount) {
            F scales[kCount];
            for (int k = 0; k < kCount; ++k) {
                const float level = kTop - kStep * float(guess + k);
                scales[k] = round_to_half<F, I>(top * (1.0f / level));
            }
            offer<kCount>(tile, scales, best);
        }
        offer<1>(tile, {refit(tile, best.scale)}, best);
        return best.scale;
    }
};

struct Q4_1 {
    using Levels = Integers<0, 15, 0>;
    static constexpr int kBytes = 20, kWords = 4, kTurns = 3;
    static constexpr float kTop = 15.0f;
    static constexpr affine::Cuts kCuts = {
        {-0.03f, -0.01f, 0.01f, 0.03f, 0.05f, 0.07f, 0.09f, 0.12f, 0.16f, 0.22f}};
    static constexpr bool kAffine = true;
    static constexpr CutList<3> kPlainGuesses = {
        {{-0.01f, 0.029f}, {0.02f, 0.02f}, {0.029f, -0.01f}}};
    template <class I>
    QK_HD static void pack(const I* codes, I* words) {
        nibble_words(codes, words);
    }
};

struct Q5_1 {
    using Levels = Integers<0, 31, 0>;
    static constexpr int kBytes = 24, kWords = 5, kTurns = 3;
    static constexpr float kTop = 31.0f;
    static constexpr affine::Cuts kCuts = {
        {-0.015f, -0.005f, 0.005f, 0.015f, 0.025f, 0.035f, 0.05f, 0.07f, 0.1f, 0.15f}};
    static constexpr bool kAffine = true;
    static constexpr CutList<5> kPlainGuesses = {
        {{-0.02f, 0.006f}, {0.006f, -0.006f}, {-0.006f, 0.006f}, {0.006f, -0.02f},
         {0.006f, 0.006f}}};
    template <class I>
    QK_HD static void pack(const I* codes, I* words) {
        five_bit_words(codes, words);
    }
};

}  // namespace simple

template <bool kWeighted>
QK_HD inline void encode_row_q8_0(const float* x, const float* w, uint8_t* out, int64_t n) {
    encode_scaled<simple::Q8_0, kWeighted>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_q4_0(const float* x, const float* w, uint8_t* out, int64_t n) {
    encode_scaled<simple::Q4_0, kWeighted>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_q5_0(const float* x, const float* w, uint8_t* out, int64_t n) {
    encode_scaled<simple::Q5_0, kWeighted>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_q4_1(const float* x, const float* w, uint8_t* out, int64_t n) {
    affine::encode<simple::Q4_1, kWeighted>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_q5_1(const float* x, const float* w, uint8_t* out, int64_t n) {
    affine::encode<simple::Q5_1, kWeighted>(x, w, out, n);
}

}  // namespace QK_VARIANT
}  // namespace qk
