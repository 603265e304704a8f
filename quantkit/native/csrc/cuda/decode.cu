// Decoding on the GPU: tiles of blocks go through shared memory, since most blocks have sizes to
// which no wide load is aligned, and every thread turns some of their bytes into eight values.
#include <cuda_bf16.h>
#include <cuda_pipeline.h>

#include "tables.cuh"
#include "unpack.cuh"
#include "unpack_grid.cuh"

namespace qk {
namespace cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTileElements = 8192;  // a multiple of 16 bytes in every type
constexpr int kPad = 16;             // eight_at() may read a little past the last block

__device__ inline void store_eight(const float* values, __nv_bfloat16* dst) {
    uint4 packed;
    uint32_t* words = &packed.x;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * k], values[2 * k + 1]);
        memcpy(words + k, &pair, 4);
    }
    *reinterpret_cast<uint4*>(dst) = packed;
}

__device__ inline void store_eight(const float* values, float* dst) {
    float4* out = reinterpret_cast<float4*>(dst);
    out[0] = make_float4(values[0], values[1], values[2], values[3]);
    out[1] = make_float4(values[4], values[5], values[6], values[7]);
}

// Starts copying n_bytes to shared memory.
template <bool kAligned>
__device__ inline void stage(uint8_t* shared, const uint8_t* src, int n_bytes) {
    int done = 0;
    if constexpr (kAligned) {
        done = n_bytes / 16 * 16;
        for (int i = 16 * int(threadIdx.x); i < done; i += 16 * kThreads) {
            __pipeline_memcpy_async(shared + i, src + i, 16);
        }
    }
    for (int i = done + int(threadIdx.x); i < n_bytes; i += kThreads) shared[i] = src[i];
    __pipeline_commit();
}

template <class Type, class Out>
__device__ inline void decode_tile(const uint8_t* tile, const uint8_t* grid, Out* dst,
                                   int64_t n_left) {
#pragma unroll 2
    for (int pass = 0; pass < kTileElements; pass += 8 * kThreads) {
        const int element = pass + 8 * int(threadIdx.x);
        if (element >= n_left) return;
        float values[8];
        Type::eight(tile + element / Type::kElements * Type::kBytes, grid,
                    element % Type::kElements / 8, values);
        store_eight(values, dst + element);
    }
}

// Two tiles at a time: while one is decoded, the next arrives.
template <class Type, bool kAligned, class Out>
__global__ void __launch_bounds__(kThreads, 5)
    decode_tiles(const uint8_t* __restrict__ src, const uint4* __restrict__ rows,
                 Out* __restrict__ dst, int64_t n_elements) {
    constexpr int kTileBytes = kTileElements / Type::kElements * Type::kBytes;
    static_assert(kTileBytes % 16 == 0 && Type::kGridBytes % 16 == 0, "16-byte copies");
    __shared__ alignas(16) uint8_t tiles[2][kTileBytes + kPad];
    __shared__ alignas(16) uint8_t grid[Type::kGridBytes + 16];
    for (int i = threadIdx.x; i < Type::kGridBytes / 16; i += kThreads) {
        reinterpret_cast<uint4*>(grid)[i] = rows[i];
    }
    const int64_t n_bytes = n_elements / Type::kElements * Type::kBytes;
    const int64_t n_tiles = (n_elements + kTileElements - 1) / kTileElements;
    const auto fetch = [&](int64_t tile, int buffer) {
        const int64_t left = n_bytes - tile * kTileBytes;
        const int n = left < kTileBytes ? int(left) : kTileBytes;
        stage<kAligned>(tiles[buffer], src + tile * kTileBytes, n);
    };
    int64_t tile = blockIdx.x;
    int buffer = 0;
    if (tile < n_tiles) fetch(tile, buffer);
    for (; tile < n_tiles; tile += gridDim.x, buffer ^= 1) {
        const bool more = tile + gridDim.x < n_tiles;
        if (more) fetch(tile + gridDim.x, buffer ^ 1);
        if (more) {
            __pipeline_wait_prior(1);
        } else {
            __pipeline_wait_prior(0);
        }
        __syncthreads();
        decode_tile<Type>(tiles[buffer], grid, dst + tile * kTileElements,
                          n_elements - tile * kTileElements);
        __syncthreads();
    }
}

__device__ const auto kRowsIq1 = kGridIq1;
__device__ const auto kRowsIq2xxs = kGridIq2xxs;
__device__ const auto kRowsIq2xs = kGridIq2xs;
__device__ const auto kRowsIq2s = kGridIq2s;
__device__ const auto kRowsIq3xxs = kGridIq3xxs;
__device__ const auto kRowsIq3s = kGridIq3s;

template <class Grid>
cudaError_t address_of(const Grid& grid, const uint4** rows) {
    void* address = nullptr;
    const cudaError_t error = cudaGetSymbolAddress(&address, grid);
    *rows = static_cast<const uint4*>(address);
    return error;
}

// The grid of a type in device memory; null for a type without.
template <class Type>
cudaError_t grid_rows(const uint4** rows) {
    *rows = nullptr;
    if constexpr (Type::kId == IQ1_S::kId || Type::kId == IQ1_M::kId) {
        return address_of(kRowsIq1, rows);
    } else if constexpr (Type::kId == IQ2_XXS::kId) {
        return address_of(kRowsIq2xxs, rows);
    } else if constexpr (Type::kId == IQ2_XS::kId) {
        return address_of(kRowsIq2xs, rows);
    } else if constexpr (Type::kId == IQ2_S::kId) {
        return address_of(kRowsIq2s, rows);
    } else if constexpr (Type::kId == IQ3_XXS::kId) {
        return address_of(kRowsIq3xxs, rows);
    } else if constexpr (Type::kId == IQ3_S::kId) {
        return address_of(kRowsIq3s, rows);
    }
    return cudaSuccess;
}

// As many blocks of threads as the device runs at once.
template <class Kernel>
cudaError_t blocks_at_once(Kernel kernel, int64_t* n_blocks) {
    int device = 0, n_processors = 0, per_processor = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&n_processors, cudaDevAttrMultiProcessorCount, device);
    }
    if (error == cudaSuccess) {
        error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_processor, kernel, kThreads, 0);
    }
    *n_blocks = int64_t(n_processors) * per_processor;
    return error;
}

template <class Type, bool kAligned, class Out>
cudaError_t launch(const uint8_t* src, Out* dst, int64_t n_elements, cudaStream_t stream) {
    const uint4* rows = nullptr;
    cudaError_t error = grid_rows<Type>(&rows);
    if (error != cudaSuccess) return error;
    const auto kernel = decode_tiles<Type, kAligned, Out>;
    int64_t n_blocks = 0;
    error = blocks_at_once(kernel, &n_blocks);
    if (error != cudaSuccess) return error;
    const int64_t n_tiles = (n_elements + kTileElements - 1) / kTileElements;
    if (n_tiles < n_blocks) n_blocks = n_tiles;
    kernel<<<unsigned(n_blocks), kThreads, 0, stream>>>(src, rows, dst, n_elements);
    return cudaGetLastError();
}

template <class Type>
cudaError_t decode(const void* from, void* dst, bool bf16, int64_t n_elements,
                   cudaStream_t stream) {
    const uint8_t* src = static_cast<const uint8_t*>(from);
    const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
    if (bf16) {
        auto* out = static_cast<__nv_bfloat16*>(dst);
        return aligned ? launch<Type, true>(src, out, n_elements, stream)
                       : launch<Type, false>(src, out, n_elements, stream);
    }
    auto* out = static_cast<float*>(dst);
    return aligned ? launch<Type, true>(src, out, n_elements, stream)
                   : launch<Type, false>(src, out, n_elements, stream);
}

// Plain floats: the payload of a NaN stays, hence no conversion instructions.
struct F32 {
    static constexpr int kId = 0, kBytes = 4;
    using Stored = float;
    __device__ static float value(float v) { return v; }
};

struct F16 {
    static constexpr int kId = 1, kBytes = 2;
    using Stored = uint16_t;
    __device__ static float value(uint16_t bits) { return half_bits_to_float(bits); }
};

struct BF16 {
    static constexpr int kId = 30, kBytes = 2;
    using Stored = uint16_t;
    __device__ static float value(uint16_t bits) { return bfloat_to_float(bits); }
};

__device__ inline void put(float value, float* dst) { *dst = value; }
__device__ inline void put(float value, uint16_t* dst) { *dst = float_to_bfloat(value); }

template <class Value, int kCount>
struct alignas(sizeof(Value) * kCount) Together {
    Value of[kCount];
};

template <class Type, int kCount, class Out>
__global__ void __launch_bounds__(kThreads)
    convert(const typename Type::Stored* __restrict__ src, Out* __restrict__ dst, int64_t n) {
    const int64_t from = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kCount;
    if (from + kCount <= n) {
        using In = Together<typename Type::Stored, kCount>;
        const In in = *reinterpret_cast<const In*>(src + from);
        Together<Out, kCount> out;
#pragma unroll
        for (int k = 0; k < kCount; ++k) put(Type::value(in.of[k]), out.of + k);
        *reinterpret_cast<Together<Out, kCount>*>(dst + from) = out;
    } else {
        for (int64_t i = from; i < n; ++i) put(Type::value(src[i]), dst + i);
    }
}

template <class Type, class Out>
cudaError_t launch_plain(const void* from, Out* dst, int64_t n, cudaStream_t stream) {
    const auto* src = static_cast<const typename Type::Stored*>(from);
    const bool aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
    const int64_t per_block = kThreads * (aligned ? 4 : 1);
    const unsigned n_blocks = unsigned((n + per_block - 1) / per_block);
    if (aligned) {
        convert<Type, 4><<<n_blocks, kThreads, 0, stream>>>(src, dst, n);
    } else {
        convert<Type, 1><<<n_blocks, kThreads, 0, stream>>>(src, dst, n);
    }
    return cudaGetLastError();
}

template <class Type>
cudaError_t decode_plain(const void* src, void* dst, bool bf16, int64_t n, cudaStream_t stream) {
    return bf16 ? launch_plain<Type>(src, static_cast<uint16_t*>(dst), n, stream)
                : launch_plain<Type>(src, static_cast<float*>(dst), n, stream);
}

template <class Type>
constexpr DecodeEntry entry() {
    return {Type::kId, Type::kElements, Type::kBytes, decode<Type>};
}

template <class Type>
constexpr DecodeEntry plain_entry() {
    return {Type::kId, 1, Type::kBytes, decode_plain<Type>};
}

constexpr DecodeEntry kTable[] = {
    plain_entry<F32>(), plain_entry<F16>(), plain_entry<BF16>(),
    entry<Q4_0>(),      entry<Q4_1>(),      entry<Q5_0>(),       entry<Q5_1>(),
    entry<Q8_0>(),      entry<Q2_K>(),      entry<Q3_K>(),       entry<Q4_K>(),
    entry<Q5_K>(),      entry<Q6_K>(),      entry<IQ1_S>(),      entry<IQ1_M>(),
    entry<IQ2_XXS>(),   entry<IQ2_XS>(),    entry<IQ2_S>(),      entry<IQ3_XXS>(),
    entry<IQ3_S>(),     entry<IQ4_NL>(),    entry<IQ4_XS>(),     entry<TQ1_0>(),
    entry<TQ2_0>(),     entry<MXFP4>(),     entry<NVFP4>(),      entry<Q1_0>(),
    entry<Q2_0>(),      {-1, 0, 0, nullptr},
};

}  // namespace

extern const DecodeEntry* const decoders = kTable;

}  // namespace cuda
}  // namespace qk
