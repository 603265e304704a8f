// Launching the encoders: one thread for each lane of each block.
#pragma once

#include "encode_lane.cuh"
#include "tables.cuh"

namespace qk {
namespace cuda {
namespace {

constexpr int kThreads = 128;

template <int kCount>
__device__ inline void load_values(const float* src, float* values) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
        const float4 four = *reinterpret_cast<const float4*>(src + i);
        memcpy(values + i, &four, sizeof four);
    }
}

template <int kCount>
__device__ inline void load_values(const uint16_t* src, float* values) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
        const uint2 four = *reinterpret_cast<const uint2*>(src + i);
        values[i] = float_of_bits(four.x << 16);
        values[i + 1] = float_of_bits(four.x & 0xFFFF0000u);
        values[i + 2] = float_of_bits(four.y << 16);
        values[i + 3] = float_of_bits(four.y & 0xFFFF0000u);
    }
}

// Values of 16-byte (bfloat16: 8-byte) alignment; importance likewise, or null.
template <class Type, class In>
__global__ void __launch_bounds__(kThreads)
    encode_blocks(const In* __restrict__ src, const float* __restrict__ importance,
                  uint8_t* __restrict__ dst, int64_t n_blocks, int64_t blocks_of_row) {
    constexpr int kMine = Type::kElements / Type::kLanes;
    const int64_t block = (int64_t(blockIdx.x) * kThreads + threadIdx.x) / Type::kLanes;
    const int lane = int(threadIdx.x) % Type::kLanes;
    if (block >= n_blocks) return;  // all lanes of a block together
    float x[kMine], w[kMine];
    load_values<kMine>(src + block * Type::kElements + lane * kMine, x);
    if (importance != nullptr) {
        const int64_t channel = block % blocks_of_row * Type::kElements + lane * kMine;
        load_values<kMine>(importance + channel, w);
    } else {
#pragma unroll
        for (int i = 0; i < kMine; ++i) w[i] = 1.0f;
    }
    uint8_t* out = dst + block * Type::kBytes;
    if constexpr (Type::kLanes > 4 && Type::kId != lanes::Iq4Xs::kId) {
        __shared__ typename Type::Shared shared[kThreads / Type::kLanes];
        auto& mine = shared[threadIdx.x / Type::kLanes];
        Type::encode(x, w, lane, mine);
        __syncwarp(((1u << Type::kLanes) - 1) << (kq::lane_index() & ~(Type::kLanes - 1)));
        if (lane == 0) Type::pack(mine, out);
    } else {
        Type::encode(x, w, lane, out);
    }
}

template <class Type, class In>
cudaError_t launch(const Rows& rows, uint8_t* dst, cudaStream_t stream) {
    const int64_t blocks_of_row = rows.row_length / Type::kElements;
    const int64_t n_blocks = rows.n_rows * blocks_of_row;
    const unsigned n_groups = unsigned((n_blocks * Type::kLanes + kThreads - 1) / kThreads);
    encode_blocks<Type, In><<<n_groups, kThreads, 0, stream>>>(
        static_cast<const In*>(rows.values), rows.importance, dst, n_blocks, blocks_of_row);
    return cudaGetLastError();
}

template <class Type>
cudaError_t encode_as(const Rows& rows, uint8_t* dst, cudaStream_t stream) {
    return rows.is_bf16 ? launch<Type, uint16_t>(rows, dst, stream)
                        : launch<Type, float>(rows, dst, stream);
}

template <template <bool> class Type>
cudaError_t encode(const Rows& rows, uint8_t* dst, cudaStream_t stream) {
    return rows.importance != nullptr ? encode_as<Type<true>>(rows, dst, stream)
                                      : encode_as<Type<false>>(rows, dst, stream);
}

template <template <bool> class Type>
constexpr EncodeEntry encode_entry() {
    using Both = Type<true>;
    return {Both::kId, Both::kElements, Both::kBytes, encode<Type>};
}

}  // namespace
}  // namespace cuda
}  // namespace qk
