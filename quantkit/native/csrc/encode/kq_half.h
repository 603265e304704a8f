// Powers of two and fp16 super-scales in the scaled units of a super-block.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../formats/numbers.h"

namespace qk {
namespace QK_VARIANT {
namespace kq {

struct Half {
    uint16_t bits;
    float value;  // in units of the super-block
};

QK_HD inline uint32_t bits_of(float v) {
    uint32_t u;
    std::memcpy(&u, &v, sizeof u);
    return u;
}

QK_HD inline float float_of(uint32_t u) {
    float v;
    std::memcpy(&v, &u, sizeof v);
    return v;
}

QK_HD inline float power_of_two(int e) {
    return float_of(uint32_t(e + 127) << 23);
}

// Exponent of v >= 0, kept where 2^e and 2^-e are both normal.
QK_HD inline int exponent_of(float v) {
    const int e = int(bits_of(v) >> 23) - 127;
    return e < -126 ? -126 : e > 126 ? 126 : e;
}

// v * unit as fp16: nearest even, subnormals kept, saturated at 65504.
QK_HD inline Half half_of(float v, float unit) {
    const float true_value = v * unit;
    const uint32_t sign = (bits_of(true_value) >> 16) & 0x8000u;
    float mag = std::fabs(true_value);
    mag = mag < 65504.0f ? mag : 65504.0f;
    // Adding 2^(e+13) (2^-1 for subnormals) leaves the 11 (10 and fewer) bits that fp16 keeps.
    const float round = power_of_two((mag < 6.103515625e-5f ? -14 : exponent_of(mag)) + 13);
    mag = (mag + round) - round;
    const uint32_t u = bits_of(mag);
    const uint32_t half = mag < 6.103515625e-5f ? uint32_t(mag * 16777216.0f)
                                                : (u >> 13) - (112u << 10);
    return {uint16_t(sign | half), (sign ? -mag : mag) * (1.0f / unit)};
}

}  // namespace kq
}  // namespace QK_VARIANT
}  // namespace qk
