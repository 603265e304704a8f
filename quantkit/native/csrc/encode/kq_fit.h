// Step 1 of the search for the K types: the best real-valued line of each sub-block by itself.
#pragma once

#include "kq_half.h"
#include "kq_lanes.h"

namespace qk {
namespace QK_VARIANT {
namespace kq {

constexpr int kSuper = 256;

// Cost of a step in sum w step^2 (rounding costs 1/12), for what a coarse sub-scale does to the
// others: a sub-block with one large value fits as well with half the codes and twice the step.
constexpr float kStepCost = 0.001f;

// What a type allows: codes [kLo, kHi], scales [kScaleLo, kScaleHi], mins [0, kMinHi].
template <bool kWeighted_, int kSub_, int kLo_, int kHi_, int kScaleLo_, int kScaleHi_, int kMinHi_>
struct Params {
    static constexpr bool kWeighted = kWeighted_;  // without importance, weights cost nothing
    static constexpr int kSub = kSub_;
    static constexpr int kGroups = kSuper / kSub_;         // sub-blocks of a super-block
    static constexpr int kSubBlocks = kHeld<kGroups>;      // those at hand
    static constexpr int kValues = kSub * kSubBlocks;
    static constexpr int kLo = kLo_, kHi = kHi_;
    static constexpr int kScaleLo = kScaleLo_, kScaleHi = kScaleHi_;
    static constexpr int kMinHi = kMinHi_;
    static constexpr bool kAffine = kMinHi_ > 0;
    static constexpr int kLanes = kSubBlocks < kMaxLanes ? kSubBlocks : kMaxLanes;
    using F = typename Lanes<kLanes>::F;
};

// One super-block, lane-transposed, values scaled by a power of two and centred by sub-block.
template <class P>
struct Block {
    alignas(64) float x[P::kValues];  // [element][sub-block], minus mean
    alignas(64) float w[P::kWeighted ? P::kValues : 1];
    alignas(64) float mean[P::kSubBlocks];  // weighted; 0 for types without a min
    alignas(64) float low[P::kSubBlocks], high[P::kSubBlocks];  // extremes of x
    alignas(64) float sum_w[P::kSubBlocks], sum_wx[P::kSubBlocks];
    alignas(64) float sum_wxx[P::kSubBlocks];
    float unit;  // 2^e: true value = unit * (x + mean)

    QK_HD auto weights(int i) const {
        if constexpr (P::kWeighted) {
            return load<typename P::F>(w + i);
        } else {
            (void)i;
            return One{};
        }
    }
};

// The real-valued optimum of each sub-block and the curvature of its error.
template <class P>
struct Optimum {
    alignas(64) float step[P::kSubBlocks], offset[P::kSubBlocks];
    alignas(64) float sum_q[P::kSubBlocks], sum_qq[P::kSubBlocks];
};

template <class F>
struct Moments {
    F q, qq, xq;  // sum w q, sum w q^2, sum w x q
};

template <class F>
struct Line {
    F step, offset, gain;  // gain: by how much it lowers sum w x^2, less the step's cost
};

template <class P, class F>
QK_HD inline Moments<F> moments(const Block<P>& block, int lane, F offset, F inverse_step) {
    const F lo = splat<F>(P::kLo), hi = splat<F>(P::kHi);
    Moments<F> m = {};
    QK_UNROLL
    for (int i = lane; i < P::kValues; i += P::kSubBlocks) {
        const F x = load<F>(block.x + i);
        const F q = nearest_in<F>((x - offset) * inverse_step, lo, hi);
        const F wq = block.weights(i) * q;
        m.q += wq;
        m.qq += wq * q;
        m.xq += wq * x;
    }
    return m;
}

// sum w (x - decoded)^2, the codes being the nearest. Misses are counted in steps.
template <class P, class F>
QK_HD inline F true_error(const Block<P>& block, int lane, F step, F offset) {
    const F lo = splat<F>(P::kLo), hi = splat<F>(P::kHi);
    const F inverse_step = inverse<F>(step), start = offset * inverse_step;
    F error = {};
    QK_UNROLL
    for (int i = lane; i < P::kValues; i += P::kSubBlocks) {
        F t = load<F>(block.x + i) * inverse_step;
        if constexpr (P::kAffine) t = t - start;
        const F miss = t - nearest_in<F>(t, lo, hi);
        error += block.weights(i) * (miss * miss);
    }
    const F flat = load<F>(block.sum_wxx + lane) +
                   offset * (offset * load<F>(block.sum_w + lane) -
                             2.0f * load<F>(block.sum_wx + lane));
    return step == splat<F>(0.0f) ? flat : error * (step * step);
}

// Least squares through fixed codes; the offset may not exceed -mean (mins are not negative).
template <class P, class F>
QK_HD inline Line<F> fit_line(const Block<P>& block, int lane, const Moments<F>& m) {
    const F zero = splat<F>(0.0f);
    const F sw = load<F>(block.sum_w + lane), sx = load<F>(block.sum_wx + lane);
    Line<F> line;
    if constexpr (P::kAffine) {
        const F top = -load<F>(block.mean + lane);
        const F det = sw * m.qq - m.q * m.q;
        line.step = (sw * m.xq - sx * m.q) * inverse<F>(det);
        line.offset = (sx - line.step * m.q) / sw;
        const auto bound = line.offset > top;
        line.offset = bound ? top : line.offset;
        line.step = bound ? (m.xq - top * m.q) * inverse<F>(m.qq) : line.step;
        const auto flat = line.step <= zero;
        line.step = flat ? zero : line.step;
        line.offset = flat ? lower<F>(sx / sw, top) : line.offset;
        line.gain = line.step * (m.xq + m.xq - line.step * m.qq - 2.0f * line.offset * m.q) +
                    line.offset * (sx + sx - line.offset * sw);
    } else {
        line.step = m.xq * inverse<F>(m.qq);
        line.offset = zero;
        line.gain = line.step * m.xq;
    }
    line.gain -= kStepCost * sw * (line.step * line.step);
    return line;
}

template <class P, class F>
struct Best {
    Line<F> line;
    Moments<F> m;

    QK_HD void offer(const Line<F>& other, const Moments<F>& om) {
        const auto take = other.gain > line.gain;
        line.step = take ? other.step : line.step;
        line.offset = take ? other.offset : line.offset;
        line.gain = take ? other.gain : line.gain;
        m.q = take ? om.q : m.q;
        m.qq = take ? om.qq : m.qq;
    }
};

// Step 1, types with a min: the first guesses cut a little off both ends of the range, or leave a
// code unused there.
template <class P, class F>
QK_HD inline void guess_affine(const Block<P>& block, int lane, Best<P, F>& best) {
    const F low = load<F>(block.low + lane);
    const F range = load<F>(block.high + lane) - low;
    const F per_range = inverse<F>(range);
    for (int i = 0; i < P::kCuts; ++i) {
        for (int j = 0; j < P::kCuts; ++j) {
            const float cut = (P::kFirstCut + i * P::kCut) / P::kHi;
            const float keep = 1.0f - (2.0f * P::kFirstCut + (i + j) * P::kCut) / P::kHi;
            const Moments<F> m =
                moments<P, F>(block, lane, low + range * cut, per_range * (P::kHi / keep));
            best.offer(fit_line<P, F>(block, lane, m), m);
        }
    }
}

// Step 1, types without: the first guesses give the value farthest from 0 a code near either end.
template <class P, class F>
QK_HD inline void guess_symmetric(const Block<P>& block, int lane, Best<P, F>& best) {
    const F low = load<F>(block.low + lane), high = load<F>(block.high + lane);
    const F per_extreme = inverse<F>(-low > high ? low : high);
    for (int sign = 0; sign < 2; ++sign) {
        const float end = sign ? P::kLo : P::kHi;
        for (int i = 0; i < P::kCuts; ++i) {
            const float code = (float)end + (sign ? -1.0f : 1.0f) * (i * P::kCut + P::kFirstCut);
            const Moments<F> m =
                moments<P, F>(block, lane, splat<F>(0.0f), per_extreme * code);
            best.offer(fit_line<P, F>(block, lane, m), m);
        }
    }
}

template <class P>
QK_HD inline void fit_sub_blocks(const Block<P>& block, Optimum<P>& out) {
    using F = typename P::F;
    for (int lane = 0; lane < P::kSubBlocks; lane += P::kLanes) {
        Best<P, F> best = {};
        best.line.gain = splat<F>(-1e30f);
        if constexpr (P::kAffine) {
            guess_affine<P, F>(block, lane, best);
        } else {
            guess_symmetric<P, F>(block, lane, best);
        }
        for (int turn = 0; turn < P::kLloyd; ++turn) {
            const Moments<F> m =
                moments<P, F>(block, lane, best.line.offset, inverse<F>(best.line.step));
            best.offer(fit_line<P, F>(block, lane, m), m);
        }
        store(out.step + lane, best.line.step);
        store(out.offset + lane, best.line.offset);
        store(out.sum_q + lane, best.m.q);
        store(out.sum_qq + lane, best.m.qq);
    }
}

}  // namespace kq
}  // namespace QK_VARIANT
}  // namespace qk
