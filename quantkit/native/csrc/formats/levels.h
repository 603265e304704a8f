// Level tables of the 4-bit types: what a code stands for, in units of the scale.
#pragma once

#include <cstdint>

namespace qk {
namespace QK_VARIANT {

// IQ4_NL and IQ4_XS (ggml-common.h, kvalues_iq4nl).
static constexpr int8_t kLevelsIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// e2m1, doubled to be integers (OCP Microscaling Formats 1.0): MXFP4 and NVFP4.
static constexpr int8_t kLevelsE2m1Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                  0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace QK_VARIANT
}  // namespace qk
