// Row encoders for Q8_0, Q4_0, Q5_0, Q4_1 and Q5_1: 32 elements, one binary16 scale, and a
// binary16 offset in the last two. Layouts: ggml-common.h of llama.cpp.
#pragma once

#include <cmath>

#include "search.h"

namespace qk {
namespace QK_VARIANT {
namespace simple {

// Byte j: element j low, element j + 16 high.
QK_HD inline void put_nibbles(const uint8_t* __restrict codes, uint8_t* __restrict out) {
    QK_UNROLL
    for (int j = 0; j < 16; ++j) out[j] = uint8_t((codes[j] & 15) | (codes[j + 16] << 4));
}

// Bit 4 of every code, element 0 lowest, then the nibbles.
QK_HD inline void put_five_bits(const uint8_t* __restrict codes, uint8_t* __restrict out) {
    for (int byte = 0; byte < 4; ++byte) {
        unsigned bits = 0;
        for (int j = 0; j < 8; ++j) bits |= unsigned((codes[8 * byte + j] >> 4) & 1) << j;
        out[byte] = uint8_t(bits);
    }
    put_nibbles(codes, out + 4);
}

struct Q4_0 : Fitted<Q4_0> {
    using Levels = Integers<-8, 7, 8>;
    static constexpr int kElements = 32, kBytes = 18, kTurns = 1;
    static constexpr Guesses<40> kGuesses{8.0f, 6.5f, 1.035f, 1.004f};
    QK_HD static void pack(const uint8_t* codes, uint8_t* out) { put_nibbles(codes, out); }
};

struct Q5_0 : Fitted<Q5_0> {
    using Levels = Integers<-16, 15, 16>;
    static constexpr int kElements = 32, kBytes = 22, kTurns = 1;
    static constexpr Guesses<48> kGuesses{16.0f, 13.0f, 1.02f, 1.003f};
    QK_HD static void pack(const uint8_t* codes, uint8_t* out) { put_five_bits(codes, out); }
};

// Q8_0: with 255 levels a scale's rounding matters, so every guess is scored as stored. Clipping
// does not pay: a scale is taken only if it reaches the extreme, and values need no clipping.
struct Q8_0 {
    using Levels = Integers<-127, 127, 0>;
    static constexpr int kElements = 32, kBytes = 34;
    // Every whole level that one of these scales may give the extreme is among them, so that what
    // was decoded encodes to itself.
    static constexpr int kGuesses = 21, kCount = 3;
    static constexpr float kTop = 127.0f, kStep = 0.5f;
    QK_HD static void pack(const uint8_t* codes, uint8_t* out) { std::memcpy(out, codes, 32); }

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
            const F x = tile.values(i), w = tile.weights(i);
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

struct Q4_1 {
    using Levels = Integers<0, 15, 0>;
    static constexpr int kBytes = 20, kTurns = 3;
    static constexpr float kTop = 15.0f;
    static constexpr Cuts kCuts = {
        {-0.03f, -0.01f, 0.01f, 0.03f, 0.05f, 0.07f, 0.09f, 0.12f, 0.16f, 0.22f}};
    QK_HD static void pack(const uint8_t* codes, uint8_t* out) { put_nibbles(codes, out); }
};

struct Q5_1 {
    using Levels = Integers<0, 31, 0>;
    static constexpr int kBytes = 24, kTurns = 3;
    static constexpr float kTop = 31.0f;
    static constexpr Cuts kCuts = {
        {-0.015f, -0.005f, 0.005f, 0.015f, 0.025f, 0.035f, 0.05f, 0.07f, 0.1f, 0.15f}};
    QK_HD static void pack(const uint8_t* codes, uint8_t* out) { put_five_bits(codes, out); }
};

// Encodes tiles of blocks with a step and an offset: half, half, then packed codes.
template <class Type>
struct AffineStep {
    const float* x;
    const float* w;
    uint8_t* out;

    template <int kLanes>
    QK_HD void run(int64_t first, int n_blocks) const {
        using T = Tile<32, kLanes>;
        using F = typename T::F;
        using Levels = typename Type::Levels;
        T tile;
        load_tile(x + first * 32, w + first * 32, n_blocks, tile);
        scale_weights(tile, largest_weight(tile));
        const Centred<T> block(tile);
        const Line<F> line = search_line<Type>(tile, block);
        StoredLine<F> best = {{}, {}, splat<F>(INFINITY)};
        offer<Levels>(tile, block, F{}, block.mean, best);
        offer<Levels>(tile, block, line.step, line.offset + block.mean, best);
        offer<Levels>(tile, block, (block.high - block.low) * (1.0f / Type::kTop),
                      block.low + block.mean, best);
        const F shift = best.offset - block.mean;
        QK_UNROLL
        for (int i = 0; i < 32; ++i) store<F>(tile.x + i * kLanes, tile.values(i) - shift);
        alignas(64) uint8_t codes[kLanes * 32];
        write_codes<Levels>(tile, best.step, codes);
        for (int b = 0; b < n_blocks; ++b) {
            uint8_t* bytes = out + (first + b) * Type::kBytes;
            put_half(bytes, best.step[b]);
            put_half(bytes + 2, best.offset[b]);
            Type::pack(codes + b * 32, bytes + 4);
        }
    }
};

template <class Type>
QK_HD inline void encode_affine(const float* x, const float* w, uint8_t* out, int64_t n) {
    for_tiles<kq::kMaxLanes>(0, n / 32, AffineStep<Type>{x, w, out});
}

}  // namespace simple

QK_HD inline void encode_row_q8_0(const float* x, const float* w, uint8_t* out, int64_t n) {
    encode_scaled<simple::Q8_0>(x, w, out, n);
}

QK_HD inline void encode_row_q4_0(const float* x, const float* w, uint8_t* out, int64_t n) {
    encode_scaled<simple::Q4_0>(x, w, out, n);
}

QK_HD inline void encode_row_q5_0(const float* x, const float* w, uint8_t* out, int64_t n) {
    encode_scaled<simple::Q5_0>(x, w, out, n);
}

QK_HD inline void encode_row_q4_1(const float* x, const float* w, uint8_t* out, int64_t n) {
    simple::encode_affine<simple::Q4_1>(x, w, out, n);
}

QK_HD inline void encode_row_q5_1(const float* x, const float* w, uint8_t* out, int64_t n) {
    simple::encode_affine<simple::Q5_1>(x, w, out, n);
}

}  // namespace QK_VARIANT
}  // namespace qk
