// Byte layouts of the K types (ggml-common.h of llama.cpp), from codes and sub-scales.
#pragma once

#include <cstdint>

#include "../formats/numbers.h"

namespace qk {
namespace QK_VARIANT {
namespace kq {

struct Encoded {
    uint8_t codes[256];  // from 0
    int8_t scales[16];
    uint8_t mins[16];
    uint16_t d, dmin;
};

QK_HD inline void put_half(uint8_t* out, uint16_t bits) {
    out[0] = uint8_t(bits);
    out[1] = uint8_t(bits >> 8);
}

// `kBits` bits of each code from bit `shift` up. A run of kRun bytes takes 8 / kBits stretches
// of kRun codes, the first in the low bits.
template <int kBits, int kRun>
QK_HD inline void put_planes(const uint8_t* codes, int shift, uint8_t* out) {
    constexpr int kPerByte = 8 / kBits;
    for (int run = 0; run < 256 / (kRun * kPerByte); ++run) {
        for (int i = 0; i < kRun; ++i) {
            unsigned byte = 0;
            for (int k = 0; k < kPerByte; ++k) {
                const unsigned code = codes[(run * kPerByte + k) * kRun + i];
                byte |= ((code >> shift) & ((1u << kBits) - 1)) << (k * kBits);
            }
            out[run * kRun + i] = uint8_t(byte);
        }
    }
}

// Q2_K: 16 bytes scale | min << 4; 64 bytes of 2-bit codes; d; dmin.
QK_HD inline void pack_q2_k(const Encoded& e, uint8_t* out) {
    QK_UNROLL
    for (int s = 0; s < 16; ++s) out[s] = uint8_t(e.scales[s] | e.mins[s] << 4);
    put_planes<2, 32>(e.codes, 0, out + 16);
    put_half(out + 80, e.d);
    put_half(out + 82, e.dmin);
}

// Q3_K: 32 bytes third bit of the codes; 64 bytes low 2 bits; 12 bytes scales + 32 (low 4 bits
// of s and s + 8 in byte s, high 2 bits of s at bits 2 (s / 4) of byte 8 + s % 4); d.
QK_HD inline void pack_q3_k(const Encoded& e, uint8_t* out) {
    put_planes<1, 32>(e.codes, 2, out);
    put_planes<2, 32>(e.codes, 0, out + 32);
    uint8_t scales[16];
    QK_UNROLL
    for (int s = 0; s < 16; ++s) scales[s] = uint8_t(e.scales[s] + 32);
    uint8_t* packed = out + 96;
    for (int s = 0; s < 8; ++s) packed[s] = uint8_t((scales[s] & 15) | (scales[s + 8] & 15) << 4);
    for (int s = 0; s < 4; ++s) {
        packed[8 + s] = uint8_t(scales[s] >> 4 | scales[s + 4] >> 4 << 2 | scales[s + 8] >> 4 << 4 |
                                scales[s + 12] >> 4 << 6);
    }
    put_half(out + 108, e.d);
}

// Q4_K and Q5_K: d; dmin; 12 bytes: scales 0-3, mins 0-3 in the low 6 bits of 8 bytes, whose
// top 2 bits are the top bits of scales 4-7, mins 4-7; low 4 bits of those: scale | min << 4.
QK_HD inline void pack_head(const Encoded& e, uint8_t* out) {
    put_half(out, e.d);
    put_half(out + 2, e.dmin);
    for (int s = 0; s < 4; ++s) {
        out[4 + s] = uint8_t(e.scales[s] | e.scales[s + 4] >> 4 << 6);
        out[8 + s] = uint8_t(e.mins[s] | e.mins[s + 4] >> 4 << 6);
        out[12 + s] = uint8_t((e.scales[s + 4] & 15) | (e.mins[s + 4] & 15) << 4);
    }
}

// After the head, 128 bytes of 4-bit codes.
QK_HD inline void pack_q4_k(const Encoded& e, uint8_t* out) {
    pack_head(e, out);
    put_planes<4, 32>(e.codes, 0, out + 16);
}

// After the head, 32 bytes fifth bit of the codes, 128 bytes low 4 bits.
QK_HD inline void pack_q5_k(const Encoded& e, uint8_t* out) {
    pack_head(e, out);
    put_planes<1, 32>(e.codes, 4, out + 16);
    put_planes<4, 32>(e.codes, 0, out + 48);
}

// Q6_K: 128 bytes low 4 bits of the codes (64 and 64 to a run); 64 bytes high 2 bits; 16 int8
// scales; d.
QK_HD inline void pack_q6_k(const Encoded& e, uint8_t* out) {
    put_planes<4, 64>(e.codes, 0, out);
    put_planes<2, 32>(e.codes, 4, out + 128);
    QK_UNROLL
    for (int s = 0; s < 16; ++s) out[192 + s] = uint8_t(e.scales[s]);
    put_half(out + 208, e.d);
}

}  // namespace kq
}  // namespace QK_VARIANT
}  // namespace qk
