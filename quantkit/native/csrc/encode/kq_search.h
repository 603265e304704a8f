// The search shared by Q2_K ... Q6_K: codes, sub-scales and super-scales of one super-block.
//
// A super-block of 256 values holds kSubBlocks sub-blocks. A value decodes to
//     d * scale[s] * code - dmin * min[s]
// with fp16 d and dmin, and integer scale, min and code (types without a min have dmin = 0).
// The search minimises sum w (x - decoded)^2 in three steps:
//   1. for each sub-block, the best real-valued (step, offset) over a table of first guesses,
//      each turned into codes and then into the least-squares line through those codes;
//   2. the fp16 super-scale whose integer multiples lie closest to those steps (and offsets);
//   3. integers within reach for every sub-block by true error, since that error is rugged; then
//      d, dmin from the 2x2 normal equations of the whole super-block and the nearest integers
//      again, as long as the true error falls.
#pragma once

#include "kq_fit.h"

namespace qk {
namespace QK_VARIANT {
namespace kq {

// A candidate encoding without its codes, which follow from it.
template <class P>
struct Choice {
    alignas(64) float scale[P::kSubBlocks], min[P::kSubBlocks];
    Half d, dmin;
    float error;
};

// Sum over sub-blocks as a fixed tree, the same at every vector width.
template <class P>
QK_HD inline float tree_sum(const float* values) {
#if defined(QK_ONE_LANE)
    float sum = values[0];
    for (int half = P::kGroups / 2; half > 0; half /= 2) sum += exchange<P::kGroups>(sum, half);
    return sum;
#else
    float sums[P::kSubBlocks];
    std::memcpy(sums, values, sizeof sums);
    for (int half = P::kSubBlocks / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
#endif
}

// The value of largest magnitude, the first of equals.
template <class P>
QK_HD inline float extreme_of(const float* values) {
    float extreme = 0.0f;
    for (int s = 0; s < P::kSubBlocks; ++s) {
        if (std::fabs(values[s]) > std::fabs(extreme)) extreme = values[s];
    }
#if defined(QK_ONE_LANE)
    for (int half = 1; half < P::kGroups; half *= 2) {
        const float other = exchange<P::kGroups>(extreme, half);
        const bool other_is_first = lane_index() & half;
        const float gain = std::fabs(other) - std::fabs(extreme);
        if (gain > 0.0f || (gain == 0.0f && other_is_first)) extreme = other;
    }
#endif
    return extreme;
}

// Sum of curve * (target - unit * nearest multiple)^2.
template <class P>
QK_HD inline float multiple_error(const float* target, const float* curve, float unit, float lo,
                                  float hi) {
    using F = typename P::F;
    const F per_unit = splat<F>(unit == 0.0f ? 0.0f : 1.0f / unit);
    alignas(64) float errors[P::kSubBlocks];
    for (int lane = 0; lane < P::kSubBlocks; lane += P::kLanes) {
        const F t = load<F>(target + lane);
        const F miss = t - unit * nearest_in<F>(t * per_unit, splat<F>(lo), splat<F>(hi));
        store<F>(errors + lane, load<F>(curve + lane) * miss * miss);
    }
    return tree_sum<P>(errors);
}

// Calls offer with fp16 units that make the target farthest from 0 one of their multiples lo..hi.
template <class P, class Offer>
QK_HD inline void for_units(const float* target, int lo, int hi, float scale, const Offer& offer) {
    const float extreme = extreme_of<P>(target);
    for (int i = 0; i < P::kUnits; ++i) {
        if (hi - i > 0) offer(half_of(extreme / float(hi - i), scale));
        if (lo + i < 0) offer(half_of(extreme / float(lo + i), scale));
    }
    offer(half_of(extreme, scale));
}

// The one whose multiples are nearest to the targets.
template <class P>
QK_HD inline Half pick_unit(const float* target, const float* curve, int lo, int hi, float scale) {
    Half best = {0, 0.0f};
    float best_error = multiple_error<P>(target, curve, 0.0f, lo, hi);
    for_units<P>(target, lo, hi, scale, [&](Half unit) {
        const float error = multiple_error<P>(target, curve, unit.value, lo, hi);
        if (error < best_error) best = unit, best_error = error;
    });
    return best;
}

// Scales and mins nearest to the optimum under the super-scales d and dmin.
template <class P>
QK_HD inline void snap(const Block<P>& block, const Optimum<P>& fit, Choice<P>& choice) {
    using F = typename P::F;
    const F per_d = inverse<F>(splat<F>(choice.d.value));
    const F per_min = inverse<F>(splat<F>(choice.dmin.value));
    for (int lane = 0; lane < P::kSubBlocks; lane += P::kLanes) {
        const F step = load<F>(fit.step + lane);
        const F scale = nearest_in<F>(step * per_d, splat<F>(P::kScaleLo), splat<F>(P::kScaleHi));
        store(choice.scale + lane, scale);
        const F shift = (step - choice.d.value * scale) * load<F>(fit.sum_q + lane) /
                        load<F>(block.sum_w + lane);
        const F level = load<F>(fit.offset + lane) + shift + load<F>(block.mean + lane);
        const F min = nearest_in<F>(-level * per_min, splat<F>(0.0f), splat<F>(P::kMinHi));
        store(choice.min + lane, min);
    }
}

template <class P>
QK_HD inline float choice_error(const Block<P>& block, const Choice<P>& choice) {
    using F = typename P::F;
    alignas(64) float errors[P::kSubBlocks];
    for (int lane = 0; lane < P::kSubBlocks; lane += P::kLanes) {
        const F offset = -choice.dmin.value * load<F>(choice.min + lane) -
                         load<F>(block.mean + lane);
        store<F>(errors + lane,
                 true_error<P, F>(block, lane, choice.d.value * load<F>(choice.scale + lane),
                                  offset));
    }
    return tree_sum<P>(errors);
}

// Step 3a: each sub-block takes the best by true error of the scales within reach, each with the
// mins within min_reach of the one that suits it.
template <class P>
QK_HD inline void try_neighbours(const Block<P>& block, int reach, int min_reach,
                                 Choice<P>& choice) {
    using F = typename P::F;
    const float d = choice.d.value, dmin = choice.dmin.value;
    const F per_min = inverse<F>(splat<F>(dmin)), min_hi = splat<F>(P::kMinHi);
    alignas(64) float errors[P::kSubBlocks];
    for (int lane = 0; lane < P::kSubBlocks; lane += P::kLanes) {
        const F mean = load<F>(block.mean + lane);
        const F scale = load<F>(choice.scale + lane), min = load<F>(choice.min + lane);
        F best_scale = scale, best_min = min;
        F best = true_error<P, F>(block, lane, d * scale, -dmin * min - mean);
        const auto offer = [&](F s, F m) {
            const F error = true_error<P, F>(block, lane, d * s, -dmin * m - mean);
            const auto take = error < best;
            best = take ? error : best;
            best_scale = take ? s : best_scale;
            best_min = take ? m : best_min;
        };
        Moments<F> sums;
        if constexpr (P::kAffine) {
            sums = moments<P, F>(block, lane, -dmin * min - mean, inverse<F>(d * scale));
        }
        for (int i = -reach; i <= reach; ++i) {
            const F s = lower<F>(higher<F>(scale + (float)i, splat<F>(P::kScaleLo)),
                                 splat<F>(P::kScaleHi));
            if constexpr (P::kAffine) {
                const F level = (load<F>(block.sum_wx + lane) - d * s * sums.q) /
                                    load<F>(block.sum_w + lane) + mean;
                const F m = nearest_in<F>(-level * per_min, splat<F>(0.0f), min_hi);
                for (int j = -min_reach; j <= min_reach; ++j) {
                    offer(s, lower<F>(higher<F>(m + (float)j, splat<F>(0.0f)), min_hi));
                }
            } else {
                offer(s, min);
            }
        }
        store(choice.scale + lane, best_scale);
        store(choice.min + lane, best_min);
        store(errors + lane, best);
    }
    choice.error = tree_sum<P>(errors);
}

// Step 3b: d and dmin by least squares for the present codes, scales and mins.
template <class P>
QK_HD inline void refit_units(const Block<P>& block, Choice<P>& choice) {
    using F = typename P::F;
    alignas(64) float terms[5][P::kSubBlocks];
    for (int lane = 0; lane < P::kSubBlocks; lane += P::kLanes) {
        const F mean = load<F>(block.mean + lane);
        const F s = load<F>(choice.scale + lane), n = -load<F>(choice.min + lane);
        const Moments<F> m = moments<P, F>(block, lane, choice.dmin.value * n - mean,
                                           inverse<F>(choice.d.value * s));
        const F sw = load<F>(block.sum_w + lane);
        store<F>(terms[0] + lane, s * s * m.qq);
        store<F>(terms[1] + lane, s * n * m.q);
        store<F>(terms[2] + lane, n * n * sw);
        store<F>(terms[3] + lane, s * (m.xq + mean * m.q));
        store<F>(terms[4] + lane, n * (load<F>(block.sum_wx + lane) + mean * sw));
    }
    float sums[5];
    for (int i = 0; i < 5; ++i) sums[i] = tree_sum<P>(terms[i]);
    const float det = sums[0] * sums[2] - sums[1] * sums[1];
    if (sums[0] > 0.0f && det > 1e-6f * sums[0] * sums[2]) {
        choice.d = half_of((sums[3] * sums[2] - sums[4] * sums[1]) / det, block.unit);
        choice.dmin = half_of((sums[0] * sums[4] - sums[1] * sums[3]) / det, block.unit);
    } else if (sums[0] > 0.0f) {
        choice.d = half_of((sums[3] - sums[1] * choice.dmin.value) / sums[0], block.unit);
    } else if (sums[2] > 0.0f) {
        choice.dmin = half_of(sums[4] / sums[2], block.unit);
    }
}

// Steps 1 and 2. The nearest multiples are a first choice only: codes follow the scale, so that
// far fewer sub-blocks suffer from a wrong one than the curvature says.
template <class P>
QK_HD inline void choose_units(const Block<P>& block, Choice<P>& best) {
    Optimum<P> fit;
    fit_sub_blocks<P>(block, fit);
    alignas(64) float curve[P::kSubBlocks], level[P::kSubBlocks];
    for (int s = 0; s < P::kSubBlocks; ++s) {
        curve[s] = fit.sum_qq[s] - fit.sum_q[s] * fit.sum_q[s] / block.sum_w[s] * P::kAffine;
        level[s] = -(fit.offset[s] + block.mean[s]);
    }
    best.d = Half{0, 0.0f};
    best.dmin = Half{0, 0.0f};
    if constexpr (P::kAffine) {
        best.d = pick_unit<P>(fit.step, curve, P::kScaleLo, P::kScaleHi, block.unit);
        best.dmin = pick_unit<P>(level, block.sum_w, 0, P::kMinHi, block.unit);
    }
    snap<P>(block, fit, best);
    best.error = choice_error<P>(block, best);
    const auto offer = [&](Half d, Half dmin) {
        Choice<P> next;
        next.d = d;
        next.dmin = dmin;
        snap<P>(block, fit, next);
        next.error = choice_error<P>(block, next);
        if (next.error < best.error) best = next;
    };
    for_units<P>(fit.step, P::kScaleLo, P::kScaleHi, block.unit,
                 [&](Half d) { offer(d, best.dmin); });
    if constexpr (P::kAffine) {
        for_units<P>(level, 0, P::kMinHi, block.unit, [&](Half dmin) { offer(best.d, dmin); });
    }
    const Half d = best.d, dmin = best.dmin;
    for (int i = -P::kShifts; i <= P::kShifts; ++i) {
        for (int j = -P::kShifts * P::kAffine; j <= P::kShifts * P::kAffine; ++j) {
            offer(half_of(d.value * (1.0f + i * P::kShift), block.unit),
                  half_of(dmin.value * (1.0f + j * P::kShift), block.unit));
        }
    }
}

template <class P>
QK_HD inline void search(const Block<P>& block, Choice<P>& best) {
    choose_units<P>(block, best);
    try_neighbours<P>(block, P::kReach, P::kMinReach, best);
    for (int turn = 0; turn < P::kTurns; ++turn) {
        Choice<P> next = best;
        refit_units<P>(block, next);
        try_neighbours<P>(block, 1, P::kAffine, next);
        if (!(next.error < best.error)) break;
        best = next;
    }
}

}  // namespace kq
}  // namespace QK_VARIANT
}  // namespace qk
