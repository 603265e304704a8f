// The searches without importance: a handful of first guesses, each turned into codes and then
// into the least-squares scale through them, as the format stores it.
//
// The error of any scale under given codes follows from three sums over them. So neither the
// rounding of a scale to binary16 needs a pass of its own, nor plain rounding, which is the first
// candidate. The lists are the best of their length from a grid of guesses, on normal, heavy-tailed
// and trained weights; Q4_1, where ggml's rounding is the fastest, has the shortest.
#pragma once

#include "search.h"

namespace qk {
namespace QK_VARIANT {
namespace plain {

constexpr int kBatch = 2;  // guesses side by side

// A code is the level nearest to x * inverse_step - start.
template <class F>
struct Guess {
    F inverse_step, start;
};

template <class F>
struct Sums {
    F q, qq, xq;  // sum q, sum q^2, sum x q
};

// The level nearest to t. Guesses leave at most 0.45 of a step beyond the levels, which rounds to
// the last of them: only plain rounding, whose scale is a half, and what lies opposite to an
// extreme at the longer end need clipping.
template <class Type, bool kClip, class F, class I>
QK_HD inline F level_of(F t) {
    if constexpr (kClip) {
        return Type::Levels::template nearest<F, I>(t);
    } else if constexpr (Type::kAffine) {
        return rounded<F>(t);
    } else {
        return lower<F>(rounded<F>(t), splat<F>(Type::Levels::kLast));
    }
}

template <class Type, bool kClip, class T>
QK_HD inline void add_up(const T& tile, const Guess<typename T::F> (&guesses)[kBatch],
                         Sums<typename T::F> (&sums)[kBatch]) {
    using F = typename T::F;
    F sum_q[kBatch] = {}, sum_qq[kBatch] = {}, sum_xq[kBatch] = {};  // these stay in registers
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        const F x = tile.values(i);
        QK_UNROLL
        for (int k = 0; k < kBatch; ++k) {
            F t = x * guesses[k].inverse_step;
            if constexpr (Type::kAffine) t = t - guesses[k].start;
            const F q = level_of<Type, kClip, F, typename T::I>(t);
            if constexpr (Type::kAffine) sum_q[k] += q;
            sum_qq[k] += q * q;
            sum_xq[k] += q * x;
        }
    }
    for (int k = 0; k < kBatch; ++k) sums[k] = {sum_q[k], sum_qq[k], sum_xq[k]};
}

// Calls offer(sums, is_rounding) for plain rounding, then for every guess: Type::kPlainGuesses
// lists them, and make(guess) says where in the block one lies.
template <class Type, class T, class Make, class Offer>
QK_HD inline void for_guesses(const T& tile, const Guess<typename T::F>& rounding,
                              const Make& make, const Offer& offer) {
    using F = typename T::F;
    constexpr auto guesses = Type::kPlainGuesses;  // device code reads no other constants
    constexpr int kNumber = sizeof guesses.of / sizeof guesses.of[0];
    static_assert((1 + kNumber) % kBatch == 0, "whole batches");
    Guess<F> batch[kBatch] = {rounding, make(guesses.of[0])};
    Sums<F> sums[kBatch];
    add_up<Type, true>(tile, batch, sums);
    offer(sums[0], true);
    offer(sums[1], false);
    QK_ROLLED
    for (int first = 1; first < kNumber; first += kBatch) {
        for (int k = 0; k < kBatch; ++k) batch[k] = make(guesses.of[first + k]);
        add_up<Type, false>(tile, batch, sums);
        for (const Sums<F>& sum : sums) offer(sum, false);
    }
}

template <class F>
struct Scale {
    F scale, gain;  // gain: by how much it lowers sum x^2

    QK_HD void offer(F other, const Sums<F>& sums) {
        const F other_gain = other * (sums.xq + sums.xq - other * sums.qq);
        const auto take = other_gain > gain;
        scale = take ? other : scale;
        gain = take ? other_gain : gain;
    }
};

// The scale of a block. Guesses are levels given to its extreme.
template <class Type, class T>
QK_HD inline typename T::F find_scale(const T& tile, typename T::F extreme) {
    using F = typename T::F;
    using I = typename T::I;
    const F rounding = round_to_half<F, I>(extreme * (1.0f / Type::kGuesses.plain()));
    const F per_extreme = inverse<F>(extreme);
    Scale<F> best = {};
    for_guesses<Type>(
        tile, Guess<F>{inverse<F>(rounding), {}},
        [&](float level) { return Guess<F>{per_extreme * level, {}}; },
        [&](const Sums<F>& sums, bool is_rounding) {
            if (is_rounding) best.offer(rounding, sums);
            best.offer(round_to_half<F, I>(sums.xq * inverse<F>(sums.qq)), sums);
        });
    return settle<typename Type::Levels>(tile, best.scale, extreme);
}

// Shares of the range that a guess leaves off at its ends.
struct Cut {
    float below, above;
};

template <class F>
struct Centred {
    F mean, low, high, sum_x;
};

// Takes their means off the blocks of a tile. Even and odd elements are summed apart, since one sum
// would wait for each addition.
template <class T>
QK_HD inline Centred<typename T::F> centre(T& tile) {
    using F = typename T::F;
    F sums[2] = {};
    QK_UNROLL
    for (int i = 0; i < T::kElements; i += 2) {
        sums[0] += tile.values(i);
        sums[1] += tile.values(i + 1);
    }
    const F mean = (sums[0] + sums[1]) * (1.0f / T::kElements);
    F low[2] = {}, high[2] = {};
    sums[0] = sums[1] = F{};
    QK_UNROLL
    for (int i = 0; i < T::kElements; i += 2) {
        QK_UNROLL
        for (int k = 0; k < 2; ++k) {
            const F x = tile.values(i + k) - mean;
            store<F>(tile.x + (i + k) * T::kLanes, x);
            low[k] = lower<F>(low[k], x);
            high[k] = higher<F>(high[k], x);
            sums[k] += x;
        }
    }
    return {mean, lower<F>(low[0], low[1]), higher<F>(high[0], high[1]), sums[0] + sums[1]};
}

// value = step * code + offset; shift is the offset of the centred values.
template <class F>
struct Line {
    F step, offset, shift, gain;

    template <int kElements>
    QK_HD void offer(F other_step, F other_offset, const Sums<F>& sums,
                     const Centred<F>& block) {
        const F other_shift = other_offset - block.mean;
        const F in_step = sums.xq + sums.xq - other_step * sums.qq;
        const F in_shift = block.sum_x - other_step * sums.q;
        const F other_gain = other_step * in_step +
                             other_shift * (in_shift + in_shift - kElements * other_shift);
        const auto take = other_gain > gain;
        step = take ? other_step : step;
        offset = take ? other_offset : offset;
        shift = take ? other_shift : shift;
        gain = take ? other_gain : gain;
    }
};

// The step and the offset of a block. Guesses are cuts.
template <class Type, class T>
QK_HD inline Line<typename T::F> find_line(const T& tile, const Centred<typename T::F>& block) {
    using F = typename T::F;
    using I = typename T::I;
    constexpr int kElements = T::kElements;
    const F range = block.high - block.low, per_range = inverse<F>(range);
    const F step = round_to_half<F, I>(range * (1.0f / Type::kTop));
    const F offset = round_to_half<F, I>(block.low + block.mean), per_step = inverse<F>(step);
    Line<F> best = {{}, {}, {}, splat<F>(-INFINITY)};
    best.template offer<kElements>(F{}, round_to_half<F, I>(block.mean), Sums<F>{}, block);
    for_guesses<Type>(
        tile, Guess<F>{per_step, (offset - block.mean) * per_step},
        [&](Cut cut) {
            const F inverse_step = per_range * (Type::kTop / (1.0f - cut.below - cut.above));
            return Guess<F>{inverse_step, (block.low + range * cut.below) * inverse_step};
        },
        [&](const Sums<F>& sums, bool is_rounding) {
            if (is_rounding) best.template offer<kElements>(step, offset, sums, block);
            const F spread = kElements * sums.qq - sums.q * sums.q;
            const F slope = kElements * sums.xq - block.sum_x * sums.q;
            const F fitted = round_to_half<F, I>(slope * inverse<F>(spread));
            const F level = (block.sum_x - fitted * sums.q) * (1.0f / kElements);
            best.template offer<kElements>(fitted, round_to_half<F, I>(level + block.mean), sums,
                                           block);
        });
    return best;
}

}  // namespace plain
}  // namespace QK_VARIANT
}  // namespace qk
