// Row encoders for Q2_K, Q3_K, Q4_K, Q5_K and Q6_K. Layouts: ggml-common.h of llama.cpp.
#pragma once

#include "kq_pack.h"
#include "kq_search.h"

namespace qk {
namespace QK_VARIANT {
namespace kq {

// Importance below this share of the super-block's largest counts as this share: the error of
// such values weighs nothing, and no sub-block is left without an optimum.
constexpr float kLeastImportance = 0x1p-24f;
// No type holds a magnitude between 0 and 2^-24; what is nearer to 0 becomes 0.
constexpr int kLeastExponent = -25;

template <class P>
QK_HD inline float max_magnitude(const float* v) {
    float top = 0.0f;
    QK_UNROLL
    for (int i = 0; i < P::kValues; ++i) {
        const float a = std::fabs(v[i]);
        top = a > top ? a : top;
    }
#if defined(QK_ONE_LANE)
    for (int half = P::kGroups / 2; half > 0; half /= 2) {
        const float other = exchange<P::kGroups>(top, half);
        top = other > top ? other : top;
    }
#endif
    return top;
}

// Fills all but the moments of the values; false when every value rounds to 0.
template <class P>
QK_HD inline bool load_block(const float* x, const float* w, Block<P>& block) {
    const float top = max_magnitude<P>(x), top_w = P::kWeighted ? max_magnitude<P>(w) : 0.0f;
    if (top == 0.0f || exponent_of(top) < kLeastExponent) return false;
    block.unit = power_of_two(exponent_of(top));
    const float scale = 1.0f / block.unit;
    const float scale_w = power_of_two(-exponent_of(top_w));
    for (int s = 0; s < P::kSubBlocks; ++s) {
        QK_UNROLL
        for (int i = 0; i < P::kSub; ++i) {
            block.x[i * P::kSubBlocks + s] = x[s * P::kSub + i] * scale;
            if constexpr (!P::kWeighted) continue;
            const float wi = top_w == 0.0f ? 1.0f : w[s * P::kSub + i] * scale_w;
            block.w[i * P::kSubBlocks + s] = wi > kLeastImportance ? wi : kLeastImportance;
        }
    }
    return true;
}

template <class P>
QK_HD inline void centre_block(Block<P>& block) {
    using F = typename P::F;
    for (int lane = 0; lane < P::kSubBlocks; lane += P::kLanes) {
        F sw = {}, sx = {}, sxx = {}, mean = {};
        F low = load<F>(block.x + lane), high = low;
        QK_UNROLL
        for (int i = lane; i < P::kValues; i += P::kSubBlocks) {
            const F x = load<F>(block.x + i);
            const auto w = block.weights(i);
            low = lower<F>(low, x);
            high = higher<F>(high, x);
            sw += w * splat<F>(1.0f);
            sx += w * x;
            sxx += w * x * x;
        }
        if constexpr (P::kAffine) {
            mean = sx / sw;
            sx = F{};
            sxx = F{};
            QK_UNROLL
            for (int i = lane; i < P::kValues; i += P::kSubBlocks) {
                const F x = load<F>(block.x + i) - mean;
                store<F>(block.x + i, x);
                const F wx = block.weights(i) * x;
                sx += wx;
                sxx += wx * x;
            }
            low = lower<F>(low, F{});
        }
        store(block.mean + lane, mean);
        store<F>(block.low + lane, low - mean);
        store<F>(block.high + lane, high - mean);
        store(block.sum_w + lane, sw);
        store(block.sum_wx + lane, sx);
        store(block.sum_wxx + lane, sxx);
    }
}

// Codes of the choice, from 0, in the order of the values.
template <class P>
QK_HD inline void write_codes(const Block<P>& block, const Choice<P>& choice, Encoded& out) {
    for (int s = 0; s < P::kSubBlocks; ++s) {
        const float step = choice.d.value * choice.scale[s];
        const float offset = -choice.dmin.value * choice.min[s] - block.mean[s];
        const float inverse_step = step == 0.0f ? 0.0f : 1.0f / step;
        QK_UNROLL
        for (int i = 0; i < P::kSub; ++i) {
            float v = (block.x[i * P::kSubBlocks + s] - offset) * inverse_step;
            v = v > P::kLo ? v : P::kLo;
            v = v < P::kHi ? v : P::kHi;
            out.codes[s * P::kSub + i] = uint8_t(int(nearest(v)) - P::kLo);
        }
        out.scales[s] = int8_t(choice.scale[s]);
        out.mins[s] = uint8_t(choice.min[s]);
    }
    out.d = choice.d.bits;
    out.dmin = choice.dmin.bits;
}

// A super-block, or what this thread holds of one.
template <class P>
QK_HD inline Encoded encode_block(const float* x, const float* w) {
    Block<P> block;
    Choice<P> choice;
    Encoded encoded = {};
    if (load_block<P>(x, w, block)) {
        centre_block<P>(block);
        search<P>(block, choice);
        write_codes<P>(block, choice, encoded);
    }
    return encoded;
}

template <class P>
QK_HD inline void encode_row(const float* x, const float* w, uint8_t* out, int64_t n) {
    for (int64_t i = 0; i < n; i += kSuper, out += P::kBytes) {
        P::pack(encode_block<P>(x + i, w + i), out);
    }
}

// kCuts, kCut, kFirstCut: the table of first guesses, in codes; kLloyd: turns of codes and line
// after it; kUnits: multiples tried for a super-scale; kShifts, kShift: shifts of the
// super-scales tried by true error; kReach, kMinReach: integers tried around the nearest;
// kTurns: turns of the joint refinement. The counts were chosen by measured error and time:
// those of Q3_K without importance cost 0.2 % of error and half of the time.
template <bool kWeighted>
struct Q2K : Params<kWeighted, 16, 0, 3, 0, 15, 15> {
    static constexpr int kBytes = 84, kCuts = 6, kLloyd = 2;
    static constexpr float kCut = 0.2f, kFirstCut = 0.0f;
    static constexpr int kUnits = 8, kShifts = 1;
    static constexpr float kShift = 0.03f;
    static constexpr int kReach = 1, kMinReach = 1, kTurns = 3;
    QK_HD static void pack(const Encoded& e, uint8_t* out) { pack_q2_k(e, out); }
};

template <bool kWeighted>
struct Q3K : Params<kWeighted, 16, -4, 3, -32, 31, 0> {
    static constexpr int kBytes = 110;
    static constexpr int kCuts = kWeighted ? 8 : 4, kLloyd = kWeighted ? 2 : 0;
    static constexpr float kCut = kWeighted ? 0.225f : 0.45f, kFirstCut = -0.9f;
    static constexpr int kUnits = kWeighted ? 6 : 1, kShifts = 0;
    static constexpr float kShift = 0.0f;
    static constexpr int kReach = kWeighted ? 10 : 3, kMinReach = 0, kTurns = kWeighted ? 3 : 1;
    QK_HD static void pack(const Encoded& e, uint8_t* out) { pack_q3_k(e, out); }
};

template <bool kWeighted>
struct Q4K : Params<kWeighted, 32, 0, 15, 0, 63, 63> {
    static constexpr int kBytes = 144, kCuts = 6, kLloyd = 2;
    static constexpr float kCut = 0.5f, kFirstCut = -1.0f;
    static constexpr int kUnits = 16, kShifts = 1;
    static constexpr float kShift = 0.01f;
    static constexpr int kReach = 4, kMinReach = 2, kTurns = 3;
    QK_HD static void pack(const Encoded& e, uint8_t* out) { pack_q4_k(e, out); }
};

template <bool kWeighted>
struct Q5K : Params<kWeighted, 32, 0, 31, 0, 63, 63> {
    static constexpr int kBytes = 176, kCuts = 5, kLloyd = 2;
    static constexpr float kCut = 0.5f, kFirstCut = -1.0f;
    static constexpr int kUnits = 16, kShifts = 0;
    static constexpr float kShift = 0.0f;
    static constexpr int kReach = 8, kMinReach = 2, kTurns = 3;
    QK_HD static void pack(const Encoded& e, uint8_t* out) { pack_q5_k(e, out); }
};

template <bool kWeighted>
struct Q6K : Params<kWeighted, 16, -32, 31, -128, 127, 0> {
    static constexpr int kBytes = 210, kCuts = 4, kLloyd = 1;
    static constexpr float kCut = 0.4f, kFirstCut = -0.7f;
    static constexpr int kUnits = 4, kShifts = 0;
    static constexpr float kShift = 0.0f;
    static constexpr int kReach = 16, kMinReach = 0, kTurns = 2;
    QK_HD static void pack(const Encoded& e, uint8_t* out) { pack_q6_k(e, out); }
};

}  // namespace kq

template <bool kWeighted>
QK_HD inline void encode_row_q2_k(const float* x, const float* w, uint8_t* out, int64_t n) {
    kq::encode_row<kq::Q2K<kWeighted>>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_q3_k(const float* x, const float* w, uint8_t* out, int64_t n) {
    kq::encode_row<kq::Q3K<kWeighted>>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_q4_k(const float* x, const float* w, uint8_t* out, int64_t n) {
    kq::encode_row<kq::Q4K<kWeighted>>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_q5_k(const float* x, const float* w, uint8_t* out, int64_t n) {
    kq::encode_row<kq::Q5K<kWeighted>>(x, w, out, n);
}

template <bool kWeighted>
QK_HD inline void encode_row_q6_k(const float* x, const float* w, uint8_t* out, int64_t n) {
    kq::encode_row<kq::Q6K<kWeighted>>(x, w, out, n);
}

}  // namespace QK_VARIANT
}  // namespace qk
