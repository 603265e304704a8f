// Row encoders for MXFP4 and NVFP4: e2m1 codes under byte-wide scales (OCP Microscaling Formats;
// ggml-common.h of llama.cpp). No scale has a better real-valued one to round: the few bytes in
// reach of the largest element are all scored.
#pragma once

#include <cmath>

#include "search.h"

namespace qk {
namespace QK_VARIANT {
namespace microscale {

// Replaces the values by their magnitudes times `factor`.
template <class T>
QK_HD inline void scale_magnitudes(T& tile, typename T::F factor) {
    using F = typename T::F;
    QK_UNROLL
    for (int i = 0; i < T::kElements; ++i) {
        const F mag = magnitude<F, typename T::I>(tile.values(i));
        store<F>(tile.x + i * T::kLanes, mag * factor);
    }
}

template <class F>
struct Best {
    F scale, code, error;

    QK_HD void offer(F other_scale, F other_code, F other_error) {
        const auto take = other_error < error;
        scale = take ? other_scale : scale;
        code = take ? other_code : code;
        error = take ? other_error : error;
    }
};

// Nibbles of kHalf bytes: element j low, element j + kHalf high; bit 3 is the sign, which zeros
// do not have.
template <int kHalf>
QK_HD inline void put_signed_nibbles(const float* __restrict x, const uint8_t* __restrict codes,
                               uint8_t* __restrict out) {
    uint8_t nibbles[2 * kHalf];
    QK_UNROLL
    for (int j = 0; j < 2 * kHalf; ++j) {
        const unsigned sign = (bits_of_float(x[j]) >> 28) & 8u;
        nibbles[j] = uint8_t(codes[j] | (codes[j] ? sign : 0u));
    }
    QK_UNROLL
    for (int j = 0; j < kHalf; ++j) out[j] = uint8_t(nibbles[j] | nibbles[j + kHalf] << 4);
}

// e8m0 byte | 16 bytes of nibbles.
struct Mxfp4Step {
    const float* x;
    const float* w;
    uint8_t* out;

    template <int kLanes>
    QK_HD void run(int64_t first, int n_blocks) const {
        using T = Tile<32, kLanes>;
        using F = typename T::F;
        using I = typename T::I;
        T tile;
        load_tile(x + first * 32, w + first * 32, n_blocks, tile);
        scale_weights(tile, largest_weight(tile));
        const F top = magnitude<F, I>(clip_weightless(tile));
        const F unit = inverse_power<F, I>(top);
        scale_magnitudes(tile, unit);
        // In units of 2^exponent the largest element is in [1, 2): half of the nominal scale is
        // 2^-3 where that element is stored as a level from 8 to 16.
        const I exponent = 127 - ((I)unit >> 23);
        Best<F> best = {{}, {}, splat<F>(INFINITY)};
        for (int step = 1; step >= -2; --step) {
            I code = exponent + (127 - 3 + 1 + step);
            code = code < 0 ? I{} : code;
            code = code > 252 ? (I{} + 252) : code;
            const F scale = (F)((code - 1 - exponent) << 23);
            best.offer(scale, (F)code, error_at<E2m1Levels>(tile, scale));
        }
        const I best_code = top == splat<F>(0.0f) ? I{} : (I)best.code;
        alignas(64) uint8_t codes[kLanes * 32];
        write_codes<E2m1Levels>(tile, best.scale, codes);
        for (int b = 0; b < n_blocks; ++b) {
            uint8_t* block = out + (first + b) * 17;
            block[0] = uint8_t(best_code[b]);
            put_signed_nibbles<16>(x + (first + b) * 32, codes + b * 32, block + 1);
        }
    }
};

// Four e4m3 bytes | four groups of 8 bytes of nibbles. Step over groups of 16.
struct Nvfp4Step {
    static constexpr int kLargestCode = 0x7E;
    const float* x;
    const float* w;
    uint8_t* out;

    // Half the value of an unsigned e4m3 code.
    template <class F, class I>
    QK_HD static F half_scale(I code) {
        const F normal = (F)((code << 20) + ((127 - 8) << 23));
        const F subnormal = ((F)(code | 0x4B000000) - 8388608.0f) * 0x1p-10f;
        return code < 8 ? subnormal : normal;
    }

    // The smallest code whose largest value reaches v, as near as truncation tells.
    template <class F, class I>
    QK_HD static I code_below(F v) {
        const F half = v * (1.0f / 12.0f);
        I code = ((I)half >> 20) - ((127 - 8) << 3);
        return code < 0 ? I{} : code;
    }

    template <int kLanes>
    QK_HD void run(int64_t first, int n_groups) const {
        using T = Tile<16, kLanes>;
        using F = typename T::F;
        using I = typename T::I;
        T tile;
        load_tile(x + first * 16, w + first * 16, n_groups, tile);
        scale_weights(tile, largest_weight(tile));
        scale_magnitudes(tile, splat<F>(1.0f));
        const I base = code_below<F, I>(clip_weightless(tile));
        Best<F> best = {{}, {}, splat<F>(INFINITY)};
        for (int step = -14; step <= 9; ++step) {
            I code = base + step;
            code = code < 0 ? I{} : code;
            code = code > kLargestCode ? (I{} + kLargestCode) : code;
            const F scale = half_scale<F, I>(code);
            best.offer(scale, (F)code, error_at<E2m1Levels>(tile, scale));
        }
        alignas(64) uint8_t codes[kLanes * 16];
        write_codes<E2m1Levels>(tile, best.scale, codes);
        for (int b = 0; b < n_groups; ++b) {
            const int64_t group = first + b;
            uint8_t* block = out + group / 4 * 36;
            block[group % 4] = uint8_t(((I)best.code)[b]);
            put_signed_nibbles<8>(x + group * 16, codes + b * 16, block + 4 + group % 4 * 8);
        }
    }
};

}  // namespace microscale

template <bool kWeighted>
QK_HD inline void encode_row_mxfp4(const float* x, const float* w, uint8_t* out, int64_t n) {
    for_tiles<kq::kMaxLanes>(0, n / 32, microscale::Mxfp4Step{x, w, out});
}

template <bool kWeighted>
QK_HD inline void encode_row_nvfp4(const float* x, const float* w, uint8_t* out, int64_t n) {
    for_tiles<kq::kMaxLanes>(0, n / 16, microscale::Nvfp4Step{x, w, out});
}

}  // namespace QK_VARIANT
}  // namespace qk
