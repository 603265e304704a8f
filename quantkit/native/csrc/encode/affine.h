// Blocks with a step and an offset: the search with importance, and the encoder.
#pragma once

#include <cmath>

#include "plain.h"

namespace qk {
namespace QK_VARIANT {
namespace affine {

// A line through the codes: value = step * code + offset.
template <class F>
struct Line {
    F step, offset, gain;  // gain: by how much it lowers sum w x^2 of the centred values
};

// Blocks of a tile, centred on their weighted means.
template <class T>
struct Centred {
    typename T::F mean, low, high, sum_w, sum_wx;

    QK_HD explicit Centred(T& tile) {
        using F = typename T::F;
        sum_w = F{}, sum_wx = F{};
        QK_UNROLL
        for (int i = 0; i < T::kElements; ++i) {
            sum_w += tile.weights(i);
            sum_wx += tile.weights(i) * tile.values(i);
        }
        mean = sum_wx / sum_w;
        low = high = sum_wx = F{};
        QK_UNROLL
        for (int i = 0; i < T::kElements; ++i) {
            const F x = tile.values(i) - mean;
            store<F>(tile.x + i * T::kLanes, x);
            // Weightless elements do not widen the range.
            const auto counts = tile.weights(i) > splat<F>(kWeightless);
            low = lower<F>(low, counts ? x : splat<F>(0.0f));
            high = higher<F>(high, counts ? x : splat<F>(0.0f));
            sum_wx += tile.weights(i) * x;
        }
    }
};

// Codes of lines of one offset, then the least-squares lines through them.
template <class Levels, int kCount, class T>
QK_HD inline void fit_lines(const T& tile, const Centred<T>& block, typename T::F offset,
                      const typename T::F (&inverse_step)[kCount],
                      Line<typename T::F> (&lines)[kCount]) {
    using F = typename T::F;
    F q1[kCount] = {}, qq[kCount] = {}, xq[kCount] = {};
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        const F x = tile.values(i), w = tile.weights(i), above = x - offset;
        QK_UNROLL
        for (int k = 0; k < kCount; ++k) {
            const F q = Levels::template nearest<F, typename T::I>(above * inverse_step[k]);
            const F wq = w * q;
            q1[k] += wq;
            qq[k] += wq * q;
            xq[k] += wq * x;
        }
    }
    QK_UNROLL
    for (int k = 0; k < kCount; ++k) {
        const F slope = block.sum_w * xq[k] - block.sum_wx * q1[k];
        lines[k].step = slope * inverse<F>(block.sum_w * qq[k] - q1[k] * q1[k]);
        lines[k].offset = (block.sum_wx - lines[k].step * q1[k]) / block.sum_w;
        lines[k].gain = lines[k].step * slope / block.sum_w;
    }
}

template <class F>
QK_HD inline void keep_better(Line<F>& best, const Line<F>& other) {
    const auto take = other.gain > best.gain;
    best.step = take ? other.step : best.step;
    best.offset = take ? other.offset : best.offset;
    best.gain = take ? other.gain : best.gain;
}

// Shares of the range that the guesses leave off.
struct Cuts {
    static constexpr int kNumber = 10;
    float of[kNumber];
};

// The best real-valued line: guesses that cut a little off both ends of the range, then turns.
template <class Type, class T>
QK_HD inline Line<typename T::F> search_line(const T& tile, const Centred<T>& block) {
    using F = typename T::F;
    using Levels = typename Type::Levels;
    constexpr int kCount = 2;
    static_assert(Cuts::kNumber % kCount == 0, "whole batches");
    constexpr Cuts cuts = Type::kCuts;  // device code reads no other constants
    const F range = block.high - block.low, per_range = inverse<F>(range);
    Line<F> best = {}, lines[kCount];
    QK_ROLLED
    for (const float below : cuts.of) {
        QK_ROLLED
        for (int i = 0; i < Cuts::kNumber; i += kCount) {
            const float* above = cuts.of + i;
            const F a = per_range * (Type::kTop / (1.0f - below - above[0]));
            const F b = per_range * (Type::kTop / (1.0f - below - above[1]));
            fit_lines<Levels, kCount>(tile, block, block.low + range * below, {a, b}, lines);
            for (const Line<F>& line : lines) keep_better<F>(best, line);
        }
    }
    for (int turn = 0; turn < Type::kTurns; ++turn) {
        Line<F> line[1];
        fit_lines<Levels, 1>(tile, block, best.offset, {inverse<F>(best.step)}, line);
        keep_better<F>(best, line[0]);
    }
    return best;
}

template <class F>
struct StoredLine {
    F step, offset, error;  // the offset is the true one, not that of the centred values
};

template <class Levels, class T>
QK_HD inline void offer(const T& tile, const Centred<T>& block, typename T::F step,
                  typename T::F offset, StoredLine<typename T::F>& best) {
    using F = typename T::F;
    using I = typename T::I;
    step = round_to_half<F, I>(step);
    offset = round_to_half<F, I>(offset);
    const F shift = offset - block.mean, inverse_step = inverse<F>(step);
    F error = {};
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        const F x = tile.values(i) - shift;
        const F miss = x - step * Levels::template nearest<F, I>(x * inverse_step);
        error += tile.weights(i) * miss * miss;
    }
    const auto take = error < best.error;
    best.step = take ? step : best.step;
    best.offset = take ? offset : best.offset;
    best.error = take ? error : best.error;
}

// The best stored line with importance. The tile's values are those of `block`, centred.
template <class Type, class T>
QK_HD inline StoredLine<typename T::F> find_line(const T& tile, const Centred<T>& block) {
    using F = typename T::F;
    using Levels = typename Type::Levels;
    const Line<F> line = search_line<Type>(tile, block);
    StoredLine<F> best = {{}, {}, splat<F>(INFINITY)};
    offer<Levels>(tile, block, F{}, block.mean, best);
    offer<Levels>(tile, block, line.step, line.offset + block.mean, best);
    offer<Levels>(tile, block, (block.high - block.low) * (1.0f / Type::kTop),
                  block.low + block.mean, best);
    return best;
}

// Encodes tiles of blocks: half step, half offset, then Type::kWords words of codes.
template <class Type, bool kWeighted>
struct Step {
    const float* x;
    const float* w;
    uint8_t* out;

    template <int kLanes>
    QK_HD void run(int64_t first, int n_blocks) const {
        using T = TileOf<32, kLanes, kWeighted>;
        T tile;
        load_blocks(x + first * 32, w + first * 32, n_blocks, tile);
        uint8_t* to = out + first * Type::kBytes;
        if constexpr (kWeighted) {
            const Centred<T> block(tile);
            const auto line = find_line<Type>(tile, block);
            write(tile, line.step, line.offset, line.offset - block.mean, n_blocks, to);
        } else {
            const auto block = plain::centre(tile);
            const auto line = plain::find_line<Type>(tile, block);
            write(tile, line.step, line.offset, line.shift, n_blocks, to);
        }
    }

    template <class T>
    QK_HD static void write(const T& tile, typename T::F step, typename T::F offset,
                            typename T::F shift, int n_blocks, uint8_t* to) {
        using F = typename T::F;
        using I = typename T::I;
        const F per_step = inverse<F>(step);
        I codes[T::kElements], words[Type::kWords];
        find_codes<typename Type::Levels>(tile, codes,
                                          [&](F v) { return (v - shift) * per_step; });
        Type::pack(codes, words);
        put_blocks<T, 2, Type::kWords>({bits_of_halves<F, I>(step), bits_of_halves<F, I>(offset)},
                                       words, n_blocks, to);
    }
};

template <class Type, bool kWeighted>
QK_HD inline void encode(const float* x, const float* w, uint8_t* out, int64_t n) {
    for_tiles<kq::kMaxLanes>(0, n / 32, Step<Type, kWeighted>{x, w, out});
}

}  // namespace affine
}  // namespace QK_VARIANT
}  // namespace qk
