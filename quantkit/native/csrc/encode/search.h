// The search for a block's scale, over level sets and lists of first guesses.
//
// For a given scale the best codes are the nearest levels, and for given codes the best scale is
// a quotient of two sums. The error between is rugged, so a list of first guesses is tried: guess
// l stores the block's largest element at level l; negative l turn the level set round.
#pragma once

#include "../formats/levels.h"
#include "pack.h"

namespace qk {
namespace QK_VARIANT {

// Consecutive integers; the code is the level as a two's complement byte, plus kZero.
template <int kLo, int kHi, int kZero_>
struct Integers {
    static constexpr int kZero = kZero_;
    static constexpr float kLast = kHi;
    template <class F>
    QK_HD static F clip(F t) {
        return lower<F>(higher<F>(t, splat<F>(kLo)), splat<F>(kHi));
    }
    template <class F, class I>
    QK_HD static F nearest(F t) {
        return rounded<F>(clip<F>(t));
    }
    template <class F, class I>
    QK_HD static I codes(F t) {
        // The sum's low byte is the integer.
        return ((I)(clip<F>(t) + 12582912.0f) + kZero) & 0xFF;
    }
};

// Tables of 16 floats for vectors of 8 and 16 lanes: one or two permutations.
#if defined(__AVX2__) && defined(__GNUC__) && !defined(__clang__)
#define QK_LOOK_UP(kLanes) (kLanes >= 8)
template <class F, class I>
QK_HD inline F look_up(const float* table, I index) {
    if constexpr (sizeof(F) == 64) {
        return __builtin_shuffle(load<F>(table), index);
    } else {
        return __builtin_shuffle(load<F>(table), load<F>(table + 8), index);
    }
}
#else
#define QK_LOOK_UP(kLanes) false
template <class F, class I>
QK_HD inline F look_up(const float* table, I index);
#endif

struct Iq4Tables {
    float levels[16], midpoints[16];  // midpoint k lies between levels k and k + 1
};

QK_HD constexpr Iq4Tables iq4_tables() {
    Iq4Tables tables = {};
    QK_UNROLL
    for (int k = 0; k < 16; ++k) tables.levels[k] = kLevelsIq4[k];
    QK_UNROLL
    for (int k = 0; k < 15; ++k) {
        tables.midpoints[k] = 0.5f * (tables.levels[k] + tables.levels[k + 1]);
    }
    tables.midpoints[15] = 3e38f;
    return tables;
}

static constexpr Iq4Tables kIq4 = iq4_tables();

// The 16 levels of IQ4_NL and IQ4_XS. A value at a midpoint gets the lower level.
struct Iq4Levels {
    // The k for which the code of t is k or k + 1. A parabola through 0 spaces the midpoints
    // evenly, within 0.06 of a step.
    template <class F, class I>
    QK_HD static I lower_code(F t) {
        t = lower<F>(higher<F>(t, splat<F>(-127.0f)), splat<F>(112.0f));
        const F place = t * (0.0900901f - 0.000234234f * magnitude<F, I>(t)) + 7.3406f;
        return (I)(place + 12582912.0f) & 15;
    }

    template <class F, class I>
    QK_HD static F nearest(F t) {
        if constexpr (QK_LOOK_UP(sizeof(F) / 4)) {
            static constexpr Iq4Tables kIq4 = iq4_tables();
            return look_up<F, I>(kIq4.levels, codes<F, I>(t));
        } else {
            constexpr Iq4Tables kIq4 = iq4_tables();  // device code reads no other constants
            F level = splat<F>(kIq4.levels[0]);
            QK_UNROLL
            for (int k = 0; k < 15; ++k) {
                const float gap = kIq4.levels[k + 1] - kIq4.levels[k];
                level = t > splat<F>(kIq4.midpoints[k]) ? level + gap : level;
            }
            return level;
        }
    }

    template <class F, class I>
    QK_HD static I codes(F t) {
        if constexpr (QK_LOOK_UP(sizeof(F) / 4)) {
            static constexpr Iq4Tables kIq4 = iq4_tables();
            const I code = lower_code<F, I>(t);
            return code - (I)(t > look_up<F, I>(kIq4.midpoints, code));
        } else {
            constexpr Iq4Tables kIq4 = iq4_tables();
            I code = {};
            QK_UNROLL
            for (int k = 0; k < 15; ++k) code -= (I)(t > splat<F>(kIq4.midpoints[k]));
            return code;
        }
    }
};

// The doubled magnitudes of e2m1, for t >= 0: 0, 1, 2, 3, 4, 6, 8, 12. Ties go to even codes.
struct E2m1Levels {
    template <class F>
    QK_HD static F spacing(F t) {
        const F coarse = t >= splat<F>(8.0f) ? splat<F>(4.0f) : splat<F>(2.0f);
        return t >= splat<F>(4.0f) ? coarse : splat<F>(1.0f);
    }
    template <class F, class I>
    QK_HD static F nearest(F t) {
        t = lower<F>(t, splat<F>(12.0f));
        const F round = spacing<F>(t) * 12582912.0f;
        return (t + round) - round;
    }
    template <class F, class I>
    QK_HD static I codes(F t) {
        const F level = nearest<F, I>(t);
        const F step = spacing<F>(level);
        const F code = step == splat<F>(4.0f)   ? level * 0.25f + 4.0f
                       : step == splat<F>(2.0f) ? level * 0.5f + 2.0f
                                                : level;
        return (I)(code + 12582912.0f) & 0xFF;
    }
};

// First guesses of both signs: the end of the range as plain rounding would have it, then
// magnitudes in ratios that grow from guess to guess: dense where blocks are rarely clipped, and
// reaching far where an outlier matters little.
template <int kCount>
struct Guesses {
    float levels[kCount];
    constexpr Guesses(float end, float first, float ratio, float growth) : levels() {
        levels[0] = end;
        levels[1] = -end;
        for (int i = 2; i < kCount; i += 2) {
            levels[i] = first;
            levels[i + 1] = -first;
            first *= ratio;
            ratio *= growth;
        }
    }
    QK_HD static constexpr int size() { return kCount; }
    QK_HD constexpr float plain() const { return levels[1]; }
};

template <class F>
struct Fit {
    F scale, gain;  // gain: by how much the scale lowers sum w x^2
    F curve;        // sum w level^2, half the second derivative of the error
};

// Codes at 1 / scale, then the least-squares scale through them; kCount guesses side by side.
template <class Levels, int kCount, class T>
QK_HD inline void fit_scales(const T& tile, const typename T::F (&inverse_scale)[kCount],
                       Fit<typename T::F> (&fits)[kCount]) {
    using F = typename T::F;
    F xq[kCount] = {}, qq[kCount] = {};
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        const F x = tile.values(i);
        const auto w = tile.weights(i);
        QK_UNROLL
        for (int k = 0; k < kCount; ++k) {
            const F q = Levels::template nearest<F, typename T::I>(x * inverse_scale[k]);
            const F wq = w * q;
            qq[k] += wq * q;
            xq[k] += wq * x;
        }
    }
    QK_UNROLL
    for (int k = 0; k < kCount; ++k) {
        fits[k].scale = xq[k] * inverse<F>(qq[k]);
        fits[k].gain = fits[k].scale * xq[k];
        fits[k].curve = qq[k];
    }
}

template <class Levels, class T>
QK_HD inline Fit<typename T::F> fit_scale(const T& tile, typename T::F inverse_scale) {
    Fit<typename T::F> fit[1];
    fit_scales<Levels, 1>(tile, {inverse_scale}, fit);
    return fit[0];
}

template <class F>
QK_HD inline void keep_better(Fit<F>& best, const Fit<F>& other) {
    const auto take = other.gain > best.gain;
    best.scale = take ? other.scale : best.scale;
    best.gain = take ? other.gain : best.gain;
    best.curve = take ? other.curve : best.curve;
}

// The best real-valued scale of each block: every guess, then turns of codes and scale.
template <class Type, class T>
QK_HD inline Fit<typename T::F> search_fit(const T& tile, typename T::F extreme) {
    using F = typename T::F;
    using Levels = typename Type::Levels;
    constexpr int kCount = 2;
    constexpr auto guesses = Type::kGuesses;  // device code reads no other constants
    const F per_extreme = inverse<F>(extreme);
    Fit<F> best = {}, fits[kCount];
    QK_ROLLED
    for (int guess = 0; guess < guesses.size(); guess += kCount) {
        const float* levels = guesses.levels + guess;
        fit_scales<Levels, kCount>(tile, {per_extreme * levels[0], per_extreme * levels[1]},
                                   fits);
        for (const Fit<F>& fit : fits) keep_better<F>(best, fit);
    }
    for (int turn = 0; turn < Type::kTurns; ++turn) {
        keep_better<F>(best, fit_scale<Levels>(tile, inverse<F>(best.scale)));
    }
    return best;
}

// sum w (x - scale * nearest level)^2.
template <class Levels, class T>
QK_HD inline typename T::F error_at(const T& tile, typename T::F scale) {
    using F = typename T::F;
    const F inverse_scale = inverse<F>(scale);
    F error = {};
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        const F x = tile.values(i);
        const F miss = x - scale * Levels::template nearest<F, typename T::I>(x * inverse_scale);
        error += tile.weights(i) * miss * miss;
    }
    return error;
}

// The smallest scale of binary16, with the sign of the extreme.
template <class F, class I>
QK_HD inline F least_scale(F extreme) {
    return (F)(((I)extreme & (int32_t)0x80000000) | (I)splat<F>(0x1p-24f));
}

// Whichever of two scales has the smaller error.
template <class Levels, class T>
QK_HD inline typename T::F better_scale(const T& tile, typename T::F a, typename T::F b) {
    return error_at<Levels>(tile, b) < error_at<Levels>(tile, a) ? b : a;
}

// Where rounding to binary16 moves a scale much, the smallest one, or zeros, may be better.
template <class Levels, class T>
QK_HD inline typename T::F settle(const T& tile, typename T::F scale, typename T::F extreme) {
    using F = typename T::F;
    using I = typename T::I;
    const auto coarse = magnitude<F, I>(scale) < splat<F>(0x1p-14f);
    if (!any((I)coarse)) return scale;
    const F small = better_scale<Levels>(tile, scale, least_scale<F, I>(extreme));
    return coarse ? better_scale<Levels>(tile, F{}, small) : scale;
}

// A type whose scale is found by search_fit.
template <class Type>
struct Fitted {
    template <class T>
    QK_HD static typename T::F scale(const T& tile, typename T::F extreme) {
        using F = typename T::F;
        using I = typename T::I;
        using Levels = typename Type::Levels;
        // Rounding to binary16 may favour the scale of plain rounding, exact for lone values.
        const F fitted = round_to_half<F, I>(search_fit<Type>(tile, extreme).scale);
        const F plain = round_to_half<F, I>(extreme * (1.0f / Type::kGuesses.plain()));
        return settle<Levels>(tile, better_scale<Levels>(tile, fitted, plain), extreme);
    }
};

// The code of every element: bytes[block][element].
template <class Levels, class T>
QK_HD inline void write_codes(const T& tile, typename T::F scale, uint8_t* __restrict bytes) {
    using F = typename T::F;
    using I = typename T::I;
    const F inverse_scale = inverse<F>(scale);
    QK_UNROLL
    for (int i = 0; i < T::kElements; i += 4) {
        I four = {};
        for (int k = 0; k < 4; ++k) {
            four |= Levels::template codes<F, I>(tile.values(i + k) * inverse_scale) << (8 * k);
        }
        for (int b = 0; b < T::kLanes; ++b) {
            const uint32_t word = uint32_t(four[b]);
            uint8_t* out = bytes + b * T::kElements + i;
            for (int k = 0; k < 4; ++k) out[k] = uint8_t(word >> (8 * k));
        }
    }
}

// Encodes tiles of blocks with one scale: half, then Type::kWords words of codes.
template <class Type, bool kWeighted>
struct ScaledStep {
    const float* x;
    const float* w;
    uint8_t* out;

    template <int kLanes>
    QK_HD void run(int64_t first, int n_blocks) const {
        using T = TileOf<Type::kElements, kLanes, kWeighted>;
        using F = typename T::F;
        using I = typename T::I;
        T tile;
        load_blocks(x + first * Type::kElements, w + first * Type::kElements, n_blocks, tile);
        const F extreme = clip_weightless(tile);
        const F scale = Type::scale(tile, extreme), inverse_scale = inverse<F>(scale);
        I codes[Type::kElements], words[Type::kWords];
        find_codes<typename Type::Levels>(tile, codes, [&](F v) { return v * inverse_scale; });
        Type::pack(codes, words);
        put_blocks<T, 1, Type::kWords>({bits_of_halves<F, I>(scale)}, words, n_blocks,
                                       out + first * Type::kBytes);
    }
};

template <class Type, bool kWeighted>
QK_HD inline void encode_scaled(const float* x, const float* w, uint8_t* out, int64_t n) {
    for_tiles<kq::kMaxLanes>(0, n / Type::kElements, ScaledStep<Type, kWeighted>{x, w, out});
}

}  // namespace QK_VARIANT
}  // namespace qk
