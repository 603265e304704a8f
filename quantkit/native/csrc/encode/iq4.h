// Row encoders for IQ4_NL and IQ4_XS. Layouts: ggml-common.h of llama.cpp.
#pragma once

#include <cmath>

#include "search.h"

namespace qk {
namespace QK_VARIANT {
namespace iq4 {

// Byte j: element j low, element j + 16 high.
QK_HD inline void put_nibbles(const uint8_t* __restrict codes, uint8_t* __restrict out) {
    QK_UNROLL
    for (int j = 0; j < 16; ++j) out[j] = uint8_t(codes[j] | (codes[j + 16] << 4));
}

struct Guessed {
    using Levels = Iq4Levels;
    static constexpr int kTurns = 1;
    static constexpr Guesses<40> kGuesses{127.0f, 92.0f, 1.045f, 1.004f};
};

struct NL : Fitted<Guessed> {
    using Levels = Iq4Levels;
    static constexpr int kElements = 32, kBytes = 18, kWords = 4;
    template <class I>
    QK_HD static void pack(const I* codes, I* words) {
        nibble_words(codes, words);
    }
};

// A value for each group of a tile set: kTiles vectors, lane by lane group after group.
template <class F, int kTiles>
struct Groups {
    F of[kTiles];
};

// Combines the eight groups of every super-block, in each of their lanes, as a tree.
template <class F, int kTiles, class Combine>
QK_HD inline void over_groups(Groups<F, kTiles>& v, const Combine& combine) {
#if defined(QK_ONE_LANE)
    for (int half = 4; half > 0; half /= 2) {
        v.of[0] = combine(v.of[0], F(kq::exchange<8>(v.of[0].v, half)));
    }
#else
    constexpr int kLanes = sizeof(F) / 4;
    static_assert(kLanes * kTiles % 8 == 0 && kTiles <= 2, "whole super-blocks");
    if constexpr (kTiles == 2) v.of[0] = v.of[1] = combine(v.of[0], v.of[1]);
    for (int half = 4 / kTiles; half > 0; half /= 2) {
        for (F& mine : v.of) {
            F other;
            for (int i = 0; i < kLanes; ++i) other[i] = mine[i ^ half];
            mine = combine(mine, other);
        }
    }
#endif
}

template <class F, int kTiles>
QK_HD inline void sum_groups(Groups<F, kTiles>& v) {
    over_groups(v, [](F a, F b) { return a + b; });
}

// The groups of one or two super-blocks, and what is stored for them.
template <int kTiles, int kLanes>
struct XsSearch {
    using T = Tile<32, kLanes>;
    using F = typename T::F;
    using I = typename T::I;
    using G = Groups<F, kTiles>;
    static constexpr int kTurns = 2, kMultiples = 12;
    static constexpr float kLo = -32.0f, kHi = 31.0f;

    struct Choice {
        G d, multiple, error;  // d and error: the super-block's, in each of its lanes
    };

    T tiles[kTiles];
    Fit<F> fits[kTiles];

    QK_HD void load(const float* x, const float* w) {
        G top;
        for (int k = 0; k < kTiles; ++k) {
            load_tile(x + k * kLanes * 32, w + k * kLanes * 32, kLanes, tiles[k]);
            top.of[k] = largest_weight(tiles[k]);
        }
        over_groups(top, higher<F>);
        for (int k = 0; k < kTiles; ++k) {
            scale_weights(tiles[k], top.of[k]);
            fits[k] = search_fit<Guessed>(tiles[k], clip_weightless(tiles[k]));
        }
    }

    QK_HD static F clip(F multiple) {
        return lower<F>(higher<F>(multiple, splat<F>(kLo)), splat<F>(kHi));
    }

    QK_HD static F nearest_multiple(F scale, F d) {
        return rounded<F>(clip(scale * inverse<F>(d)));
    }

    QK_HD static void take_better(Choice& best, const Choice& other) {
        for (int k = 0; k < kTiles; ++k) {
            const auto take = other.error.of[k] < best.error.of[k];
            best.d.of[k] = take ? other.d.of[k] : best.d.of[k];
            best.multiple.of[k] = take ? other.multiple.of[k] : best.multiple.of[k];
            best.error.of[k] = take ? other.error.of[k] : best.error.of[k];
        }
    }

    // The super-scale whose multiples lie closest to the groups' own scales.
    QK_HD Choice nearest_choice() const {
        Choice best = {};
        G extreme;
        for (int k = 0; k < kTiles; ++k) {
            extreme.of[k] = fits[k].scale;
            best.error.of[k] = splat<F>(INFINITY);
        }
        over_groups(extreme, [](F a, F b) {
            const F mag_a = magnitude<F, I>(a), mag_b = magnitude<F, I>(b);
            // Of equal magnitudes the positive one, so that all lanes agree.
            return mag_b > mag_a ? b : mag_b == mag_a ? higher<F>(a, b) : a;
        });
        for (int guess = 0; guess < 2 * kMultiples; ++guess) {
            const float multiple = guess % 2 ? kLo + float(guess / 2) : kHi - float(guess / 2);
            Choice next;
            for (int k = 0; k < kTiles; ++k) {
                const F half = round_to_half<F, I>(extreme.of[k] * (1.0f / multiple));
                const F d =
                    half == splat<F>(0.0f) ? least_scale<F, I>(extreme.of[k]) : half;
                next.d.of[k] = d;
                next.multiple.of[k] = nearest_multiple(fits[k].scale, d);
                const F miss = fits[k].scale - d * next.multiple.of[k];
                next.error.of[k] = fits[k].curve * miss * miss;
            }
            sum_groups(next.error);
            take_better(best, next);
        }
        return best;
    }

    // Each group's multiple of d: the present one or a neighbour, by true error.
    QK_HD void settle(Choice& choice) const {
        for (int k = 0; k < kTiles; ++k) {
            const F start = choice.multiple.of[k];
            F best = splat<F>(INFINITY);
            for (int step = -1; step <= 1; ++step) {
                const F multiple = clip(start + float(step));
                const F error = error_at<Iq4Levels>(tiles[k], choice.d.of[k] * multiple);
                const auto take = error < best;
                choice.multiple.of[k] = take ? multiple : choice.multiple.of[k];
                best = take ? error : best;
            }
            choice.error.of[k] = best;
        }
        sum_groups(choice.error);
    }

    // The least-squares d for the codes and multiples of a choice.
    QK_HD void refit(Choice& choice) const {
        G xq, qq;
        for (int k = 0; k < kTiles; ++k) {
            const F multiple = choice.multiple.of[k];
            const Fit<F> fit =
                fit_scale<Iq4Levels>(tiles[k], inverse<F>(choice.d.of[k] * multiple));
            xq.of[k] = fit.scale * fit.curve * multiple;
            qq.of[k] = fit.curve * multiple * multiple;
        }
        sum_groups(xq);
        sum_groups(qq);
        for (int k = 0; k < kTiles; ++k) {
            choice.d.of[k] = round_to_half<F, I>(xq.of[k] * inverse<F>(qq.of[k]));
        }
    }

    QK_HD Choice search() const {
        Choice best = nearest_choice();
        settle(best);
        for (int turn = 0; turn < kTurns; ++turn) {
            Choice next = best;
            refit(next);
            settle(next);
            take_better(best, next);
        }
        return best;
    }
};

// Half d | high two bits of eight scales | low four bits of each | eight groups as in IQ4_NL.
QK_HD inline void pack_xs(const uint8_t* codes, const float* multiples, float d, uint8_t* out) {
    unsigned upper = 0, lower = 0;
    for (int g = 0; g < 8; ++g) {
        const unsigned scale = unsigned(int(multiples[g]) + 32);
        upper |= (scale >> 4) << (2 * g);
        lower |= (scale & 15) << (4 * g);
        put_nibbles(codes + 32 * g, out + 8 + 16 * g);
    }
    put_half(out, d);
    for (int i = 0; i < 2; ++i) out[2 + i] = uint8_t(upper >> (8 * i));
    for (int i = 0; i < 4; ++i) out[4 + i] = uint8_t(lower >> (8 * i));
}

template <int kTiles, int kLanes>
QK_HD inline void encode_xs(const float* x, const float* w, uint8_t* out) {
    XsSearch<kTiles, kLanes> groups;
    groups.load(x, w);
    const auto choice = groups.search();
    uint8_t codes[kTiles * kLanes * 32];
    float multiples[kTiles * kLanes], d[kTiles * kLanes];
    for (int k = 0; k < kTiles; ++k) {
        const auto scale = choice.d.of[k] * choice.multiple.of[k];
        write_codes<Iq4Levels>(groups.tiles[k], scale, codes + k * kLanes * 32);
        store(multiples + k * kLanes, choice.multiple.of[k]);
        store(d + k * kLanes, choice.d.of[k]);
    }
    for (int b = 0; b < kTiles * kLanes; b += 8) {
        pack_xs(codes + b * 32, multiples + b, d[b], out + b / 8 * 136);
    }
}

}  // namespace iq4

template <bool kWeighted>
QK_HD inline void encode_row_iq4_nl(const float* x, const float* w, uint8_t* out, int64_t n) {
    encode_scaled<iq4::NL, kWeighted>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_iq4_xs(const float* x, const float* w, uint8_t* out, int64_t n) {
    int64_t i = 0;
    if constexpr (kq::kMaxLanes == 16) {
        for (; i + 512 <= n; i += 512) iq4::encode_xs<1, 16>(x + i, w + i, out + i / 256 * 136);
    }
    constexpr int kLanes = kq::kMaxLanes < 8 ? kq::kMaxLanes : 8;
    for (; i < n; i += 256) iq4::encode_xs<8 / kLanes, kLanes>(x + i, w + i, out + i / 256 * 136);
}

}  // namespace QK_VARIANT
}  // namespace qk
