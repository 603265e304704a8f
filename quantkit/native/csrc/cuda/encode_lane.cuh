// Encoders for one thread: the CPU's source with vectors of one lane.
//
// A lane is a block with scales of its own, or one of the groups of a super-block; then the lanes
// of a super-block are neighbours and run together. A type is a struct: ggml id, elements and
// bytes of a block, kLanes lanes to a block, and
//     encode(x, w, lane, block): the lane's elements, their weights, its number in the block, and
//     where the block goes.
#pragma once

#define QK_ONE_LANE
#include "lane.cuh"

#include "../encode/iq4.h"
#include "../encode/kquants.h"
#include "../encode/lowbit.h"
#include "../encode/microscale.h"
#include "../encode/simple.h"

namespace qk {
namespace QK_VARIANT {
namespace lanes {

// A block with one scale, or with a scale and an offset.
template <class Step, int kId_, int kElements_, int kBytes_>
struct Whole {
    static constexpr int kId = kId_, kElements = kElements_, kBytes = kBytes_, kLanes = 1;
    QK_HD static void encode(const float* x, const float* w, int, uint8_t* block) {
        Step{x, w, block}.template run<1>(0, 1);
    }
};

// With importance and without.
template <bool kWeighted>
using Q4_0 = Whole<ScaledStep<simple::Q4_0, kWeighted>, 2, 32, 18>;
template <bool kWeighted>
using Q4_1 = Whole<affine::Step<simple::Q4_1, kWeighted>, 3, 32, 20>;
template <bool kWeighted>
using Q5_0 = Whole<ScaledStep<simple::Q5_0, kWeighted>, 6, 32, 22>;
template <bool kWeighted>
using Q5_1 = Whole<affine::Step<simple::Q5_1, kWeighted>, 7, 32, 24>;
template <bool kWeighted>
using Q8_0 = Whole<ScaledStep<simple::Q8_0, kWeighted>, 8, 32, 34>;
template <bool kWeighted>
using IQ4_NL = Whole<ScaledStep<iq4::NL, kWeighted>, 20, 32, 18>;
template <bool kWeighted>
using Q2_0 = Whole<ScaledStep<lowbit::Q2_0, kWeighted>, 42, 64, 18>;

// One search for both.
using Mxfp4 = Whole<microscale::Mxfp4Step, 39, 32, 17>;
template <bool kWeighted>
using MXFP4 = Mxfp4;

struct SignBits {
    static constexpr int kId = 41, kElements = 128, kBytes = 18, kLanes = 1;
    QK_HD static void encode(const float* x, const float* w, int, uint8_t* block) {
        lowbit::encode_q1_0(x, w, block);
    }
};

// Groups of 16 with scales of their own: group g of a block has byte g and 8 bytes of nibbles.
struct Nvfp4 {
    static constexpr int kId = 40, kElements = 64, kBytes = 36, kLanes = 4;
    QK_HD static void encode(const float* x, const float* w, int lane, uint8_t* block) {
        microscale::Nvfp4Step{x - 16 * lane, w - 16 * lane, block}.template run<1>(lane, 1);
    }
};

struct Iq4Xs {
    static constexpr int kId = 23, kElements = 256, kBytes = 136, kLanes = 8;
    QK_HD static void encode(const float* x, const float* w, int lane, uint8_t* block) {
        iq4::XsSearch<1, 1> group;
        group.load(x, w);
        const auto choice = group.search();
        const OneFloat d = choice.d.of[0], multiple = choice.multiple.of[0];
        uint8_t codes[32];
        write_codes<Iq4Levels>(group.tiles[0], d * multiple, codes);
        iq4::put_nibbles(codes, block + 8 + 16 * lane);
        // The bits of eight scales: a sum of floats below 2^24 and below 2^16 twice.
        const unsigned scale = unsigned(int(multiple.v) + 32);
        float upper = float((scale >> 4) << (2 * lane));
        float low = float((scale & 15) << (4 * (lane % 4)));
        for (int half = 1; half < 8; half *= 2) {
            upper += kq::exchange<8>(upper, half);
            if (half < 4) low += kq::exchange<8>(low, half);
        }
        if (lane % 4 == 0) {
            block[4 + lane / 2] = uint8_t(unsigned(low));
            block[5 + lane / 2] = uint8_t(unsigned(low) >> 8);
        }
        if (lane == 0) {
            put_half(block, d.v);
            block[2] = uint8_t(unsigned(upper));
            block[3] = uint8_t(unsigned(upper) >> 8);
        }
    }
};

template <bool kWeighted>
using Q1_0 = SignBits;
template <bool kWeighted>
using NVFP4 = Nvfp4;
template <bool kWeighted>
using IQ4_XS = Iq4Xs;

// A K type: the lanes' parts come together in `shared`, and lane 0 packs them.
template <class P, int kId_>
struct Super {
    static constexpr int kId = kId_, kElements = 256, kBytes = P::kBytes, kLanes = P::kGroups;
    using Shared = kq::Encoded;
    QK_HD static void encode(const float* x, const float* w, int lane, Shared& shared) {
        const kq::Encoded mine = kq::encode_block<P>(x, w);
        QK_UNROLL
        for (int i = 0; i < P::kSub; ++i) shared.codes[lane * P::kSub + i] = mine.codes[i];
        shared.scales[lane] = mine.scales[0];
        shared.mins[lane] = mine.mins[0];
        if (lane == 0) shared.d = mine.d, shared.dmin = mine.dmin;
    }
    QK_HD static void pack(const Shared& shared, uint8_t* block) { P::pack(shared, block); }
};

template <bool kWeighted>
using Q2_K = Super<kq::Q2K<kWeighted>, 10>;
template <bool kWeighted>
using Q3_K = Super<kq::Q3K<kWeighted>, 11>;
template <bool kWeighted>
using Q4_K = Super<kq::Q4K<kWeighted>, 12>;
template <bool kWeighted>
using Q5_K = Super<kq::Q5K<kWeighted>, 13>;
template <bool kWeighted>
using Q6_K = Super<kq::Q6K<kWeighted>, 14>;

}  // namespace lanes
}  // namespace QK_VARIANT
}  // namespace qk
