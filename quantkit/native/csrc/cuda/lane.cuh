// One lane of the encoders' vectors: a thread of the GPU runs the very source that the CPU's
// variants run, on vectors of length 1, and threads exchange what lanes of a vector would.
//
// The operators do what those of the vector types do: comparisons give masks, a mask as integer
// is 0 or -1, and casts between floats and integers keep the bits.
#pragma once

#include "portable.cuh"

namespace qk {
namespace QK_VARIANT {

struct OneMask {
    bool v;
    QK_HD explicit operator bool() const { return v; }
    QK_HD friend OneMask operator&(OneMask a, OneMask b) { return {a.v && b.v}; }
    QK_HD friend OneMask operator|(OneMask a, OneMask b) { return {a.v || b.v}; }
};

struct OneFloat;

struct OneInt {
    int32_t v;
    OneInt() = default;
    QK_HD OneInt(int32_t value) : v(value) {}
    QK_HD explicit OneInt(OneMask mask) : v(mask.v ? -1 : 0) {}
    QK_HD explicit OneInt(OneFloat f);
    QK_HD int32_t operator[](int) const { return v; }
    QK_HD OneInt& operator|=(OneInt b) { return v |= b.v, *this; }
    QK_HD OneInt& operator+=(OneInt b) { return v += b.v, *this; }
    QK_HD OneInt& operator-=(OneInt b) { return v -= b.v, *this; }
    QK_HD friend OneInt operator+(OneInt a, OneInt b) { return a.v + b.v; }
    QK_HD friend OneInt operator-(OneInt a, OneInt b) { return a.v - b.v; }
    QK_HD friend OneInt operator&(OneInt a, OneInt b) { return a.v & b.v; }
    QK_HD friend OneInt operator|(OneInt a, OneInt b) { return a.v | b.v; }
    QK_HD friend OneInt operator<<(OneInt a, int n) { return int32_t(uint32_t(a.v) << n); }
    QK_HD friend OneInt operator>>(OneInt a, int n) { return a.v >> n; }
    QK_HD friend OneMask operator<(OneInt a, OneInt b) { return {a.v < b.v}; }
    QK_HD friend OneMask operator>(OneInt a, OneInt b) { return {a.v > b.v}; }
    QK_HD friend OneMask operator==(OneInt a, OneInt b) { return {a.v == b.v}; }
};

struct OneFloat {
    float v;
    OneFloat() = default;
    QK_HD OneFloat(float value) : v(value) {}
    QK_HD explicit OneFloat(OneInt bits) : v(float_of_bits(uint32_t(bits.v))) {}
    QK_HD float operator[](int) const { return v; }
    QK_HD OneFloat& operator+=(OneFloat b) { return v += b.v, *this; }
    QK_HD OneFloat& operator-=(OneFloat b) { return v -= b.v, *this; }
    QK_HD OneFloat& operator*=(OneFloat b) { return v *= b.v, *this; }
    QK_HD friend OneFloat operator-(OneFloat a) { return -a.v; }
    QK_HD friend OneFloat operator+(OneFloat a, OneFloat b) { return a.v + b.v; }
    QK_HD friend OneFloat operator-(OneFloat a, OneFloat b) { return a.v - b.v; }
    QK_HD friend OneFloat operator*(OneFloat a, OneFloat b) { return a.v * b.v; }
    QK_HD friend OneFloat operator/(OneFloat a, OneFloat b) { return a.v / b.v; }
    QK_HD friend OneMask operator<(OneFloat a, OneFloat b) { return {a.v < b.v}; }
    QK_HD friend OneMask operator>(OneFloat a, OneFloat b) { return {a.v > b.v}; }
    QK_HD friend OneMask operator<=(OneFloat a, OneFloat b) { return {a.v <= b.v}; }
    QK_HD friend OneMask operator>=(OneFloat a, OneFloat b) { return {a.v >= b.v}; }
    QK_HD friend OneMask operator==(OneFloat a, OneFloat b) { return {a.v == b.v}; }
};

QK_HD inline OneInt::OneInt(OneFloat f) : v(int32_t(bits_of_float(f.v))) {}

namespace kq {

#if !defined(__CUDACC__)
// Provided by a host that runs several lanes.
int host_lane();
float host_exchange(float value, int distance);
#endif

// This thread's place among those that share a super-block, in its low bits.
QK_HD inline int lane_index() {
#if defined(__CUDA_ARCH__)
    return int(threadIdx.x) & 31;
#elif defined(__CUDACC__)
    return 0;
#else
    return host_lane();
#endif
}

// The value of the lane whose index differs in the bit `distance`. All kGroup lanes that share a
// super-block, a power of two of consecutive ones, call it together.
template <int kGroup>
QK_HD inline float exchange(float value, int distance) {
#if defined(__CUDA_ARCH__)
    const unsigned all = kGroup == 32 ? 0xFFFFFFFFu : (1u << (kGroup % 32)) - 1;
    return __shfl_xor_sync(all << (lane_index() & ~(kGroup - 1)), value, distance);
#elif defined(__CUDACC__)
    (void)distance;
    return value;
#else
    return host_exchange(value, distance);
#endif
}

}  // namespace kq
}  // namespace QK_VARIANT
}  // namespace qk
