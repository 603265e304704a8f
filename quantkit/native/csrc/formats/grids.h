// The grids of IQ1, IQ2 and IQ3, one row of bytes per point, and the signs that go with them.
//
// All are expanded by the compiler from grid_points.h.
#pragma once

#include "grid_points.h"

namespace qk {
namespace QK_VARIANT {

template <class Row, int kPoints>
struct Grid {
    Row rows[kPoints];  // byte e of a row is element e, as int8

    // Digits of kBits each select one of `levels`.
    template <int kBits>
    static constexpr Grid expand(const uint16_t (&points)[kPoints], const int8_t* levels) {
        Grid grid{};
        for (int p = 0; p < kPoints; ++p) {
            Row row = 0;
            for (unsigned e = 0; e < sizeof(Row); ++e) {
                const unsigned digit = (points[p] >> (kBits * e)) & ((1u << kBits) - 1);
                row |= Row(uint8_t(levels[digit])) << (8 * e);
            }
            grid.rows[p] = row;
        }
        return grid;
    }
};

constexpr int8_t kLevelsIq1[4] = {-8, 0, 8, 0};  // -1, 0, 1 in eighths; digit 3 does not occur
constexpr int8_t kLevelsIq2[4] = {8, 25, 43, 0};
constexpr int8_t kLevelsIq3xxs[8] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr int8_t kLevelsIq3s[8] = {1, 3, 5, 7, 9, 11, 13, 15};

static constexpr auto kGridIq1 = Grid<uint64_t, 2048>::expand<2>(kPackedIq1, kLevelsIq1);
static constexpr auto kGridIq2xxs = Grid<uint64_t, 256>::expand<2>(kPackedIq2xxs, kLevelsIq2);
static constexpr auto kGridIq2xs = Grid<uint64_t, 512>::expand<2>(kPackedIq2xs, kLevelsIq2);
static constexpr auto kGridIq2s = Grid<uint64_t, 1024>::expand<2>(kPackedIq2s, kLevelsIq2);
static constexpr auto kGridIq3xxs =
    Grid<uint32_t, 256>::expand<4>(kPackedIq3xxs, kLevelsIq3xxs);
static constexpr auto kGridIq3s = Grid<uint32_t, 512>::expand<4>(kPackedIq3s, kLevelsIq3s);

// Eight sign bits for formats that store seven: the eighth makes the number of signs even.
struct EvenSigns {
    uint8_t of_seven[128];

    static constexpr EvenSigns make() {
        EvenSigns signs{};
        for (unsigned bits = 0; bits < 128; ++bits) {
            unsigned odd = 0;
            for (unsigned e = 0; e < 7; ++e) odd ^= (bits >> e) & 1;
            signs.of_seven[bits] = uint8_t(bits | (odd << 7));
        }
        return signs;
    }
};

static constexpr EvenSigns kEvenSigns = EvenSigns::make();

}  // namespace QK_VARIANT
}  // namespace qk
