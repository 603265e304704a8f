// Row encoders for Q1_0 and Q2_0. Layouts: ggml-common.h of llama.cpp.
#pragma once

#include "search.h"

namespace qk {
namespace QK_VARIANT {
namespace lowbit {

struct Q2_0 : Fitted<Q2_0> {
    using Levels = Integers<-1, 2, 1>;
    static constexpr int kElements = 64, kBytes = 18, kWords = 4, kTurns = 1;
    static constexpr Guesses<10> kGuesses{2.0f, 2.4f, 1.25f, 1.05f};
    // Four consecutive elements to a byte, the first lowest.
    template <class I>
    QK_HD static void pack(const I* codes, I* words) {
        QK_UNROLL
        for (int k = 0; k < kWords; ++k) {
            words[k] = I{};
            QK_UNROLL
            for (int i = 0; i < 16; ++i) words[k] |= codes[16 * k + i] << (2 * i);
        }
    }
};

// Sixteen partial sums, added as a tree.
QK_HD inline float tree_sum(float* sums) {
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
}

// Half d | a bit for each of 128 elements: d where set, else -d. The best d for the signs is the
// weighted mean magnitude.
QK_HD inline void encode_q1_0(const float* x, const float* w, uint8_t* out) {
    float top = 0.0f;
    for (int i = 0; i < 128; ++i) top = w[i] > top ? w[i] : top;
    const float scale = inverse_power<kq::Lanes<4>::F, Wide<4>::I>(splat<kq::Lanes<4>::F>(top))[0];
    alignas(64) float total[16] = {}, mass[16] = {};
    for (int i = 0; i < 128; i += 16) {
        QK_UNROLL
        for (int k = 0; k < 16; ++k) {
            float weight = w[i + k] * scale;
            weight = weight > kLeastWeight ? weight : kLeastWeight;
            total[k] += weight * float_of_bits(bits_of_float(x[i + k]) & 0x7FFFFFFFu);
            mass[k] += weight;
        }
    }
    const float mean = tree_sum(total) / tree_sum(mass);
    put_half(out, round_to_half<kq::Lanes<4>::F, Wide<4>::I>(splat<kq::Lanes<4>::F>(mean))[0]);
    QK_UNROLL
    for (int byte = 0; byte < 16; ++byte) {
        unsigned bits = 0;
        for (int j = 0; j < 8; ++j) bits |= unsigned(x[8 * byte + j] >= 0.0f) << j;
        out[2 + byte] = uint8_t(bits);
    }
}

}  // namespace lowbit

template <bool kWeighted>
QK_HD inline void encode_row_q1_0(const float* x, const float* w, uint8_t* out, int64_t n) {
    for (int64_t i = 0; i < n; i += 128, out += 18) lowbit::encode_q1_0(x + i, w + i, out);
}

template <bool kWeighted>
QK_HD inline void encode_row_q2_0(const float* x, const float* w, uint8_t* out, int64_t n) {
    encode_scaled<lowbit::Q2_0, kWeighted>(x, w, out, n);
}

}  // namespace QK_VARIANT
}  // namespace qk
