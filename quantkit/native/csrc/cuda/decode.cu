// Decoding on the GPU: tiles of blocks go through shared memory, since most blocks have sizes to
// which no wide load is aligned, and every thread turns some of their bytes into eight values.
#include <cuda_pipeline.h>

#include <type_traits>

#include "tables.cuh"
#include "unpack.cuh"
#include "unpack_grid.cuh"

namespace qk {
namespace cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kPasses = 4;  // eights of a thread in a tile
constexpr int kTileElements = 8 * kThreads * kPasses;  // a multiple of 16 bytes in every type
constexpr int kPad = 16;             // eight_at() may read a little past the last block

// The compiler would take a plain assignment apart; and nobody reads the result soon.
template <class Values>
__device__ inline void store(const Values& values, Values* dst) {
#pragma unroll
    for (int i = 0; i < int(sizeof(Values) / 16); ++i) {
        uint4 words;
        memcpy(&words, reinterpret_cast<const uint8_t*>(&values) + 16 * i, 16);
        __stcs(reinterpret_cast<uint4*>(dst) + i, words);
    }
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

// The eights of a thread are at the same place of their blocks in every pass, so what follows from
// it is computed once.
template <bool kWhole, class Type, class Values>
__device__ inline void decode_tile(const uint8_t* tile, const uint8_t* grid, Values* dst,
                                   int64_t n_left) {
    constexpr unsigned kEights = Type::kElements / 8;
    static_assert(kThreads % kEights == 0, "a pass is whole blocks");
    const uint8_t* block = tile + threadIdx.x / kEights * Type::kBytes;
    const int p = int(threadIdx.x % kEights);
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        const unsigned eight = unsigned(pass * kThreads) + threadIdx.x;
        if (!kWhole && 8 * eight >= n_left) return;
        Values values;
        Type::eight(block + pass * int(kThreads / kEights) * Type::kBytes, grid, p, &values);
        store(values, dst + eight);
    }
}

// Two tiles at a time: while one is decoded, the next arrives.
template <class Type, bool kAligned, class Values>
__global__ void __launch_bounds__(kThreads, 5)
    decode_tiles(const uint8_t* __restrict__ src, const uint4* __restrict__ rows,
                 Values* __restrict__ dst, int64_t n_elements) {
    constexpr int kTileBytes = kTileElements / Type::kElements * Type::kBytes;
    static_assert(kTileBytes % 16 == 0 && Type::kGridBytes % 16 == 0, "16-byte copies");
    __shared__ alignas(16) uint8_t tiles[2][kTileBytes + kPad];
    __shared__ alignas(16) uint8_t grid[Type::kGridBytes + 16];
    if constexpr (Type::kGridBytes > 0) {
        for (unsigned i = threadIdx.x; i < Type::kGridBytes / 16; i += kThreads) {
            reinterpret_cast<uint4*>(grid)[i] = rows[i];
        }
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
        const int64_t n_left = n_elements - tile * kTileElements;
        Values* out = dst + tile * (kTileElements / 8);
        if (n_left >= kTileElements) {
            decode_tile<true, Type>(tiles[buffer], grid, out, n_left);
        } else {
            decode_tile<false, Type>(tiles[buffer], grid, out, n_left);
        }
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

bool is_aligned(const void* src) {
    return reinterpret_cast<uintptr_t>(src) % 16 == 0;
}

template <class Type, class Values>
cudaError_t launch(const uint8_t* src, Values* dst, int64_t n_elements, cudaStream_t stream) {
    const uint4* rows = nullptr;
    cudaError_t error = grid_rows<Type>(&rows);
    if (error != cudaSuccess) return error;
    const auto kernel = is_aligned(src) ? decode_tiles<Type, true, Values>
                                        : decode_tiles<Type, false, Values>;
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
    return bf16 ? launch<Type>(src, static_cast<EightBfloats*>(dst), n_elements, stream)
                : launch<Type>(src, static_cast<EightFloats*>(dst), n_elements, stream);
}

// Plain floats; Same is what needs no conversion.
struct F32 {
    static constexpr int kId = 0, kBytes = 4;
    using Stored = float;
    using Same = EightFloats;
    __device__ static float value(float v) { return v; }
};

struct F16 {
    static constexpr int kId = 1, kBytes = 2;
    using Stored = uint16_t;
    using Same = void;
    __device__ static float value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
};

struct BF16 {
    static constexpr int kId = 30, kBytes = 2;
    using Stored = uint16_t;
    using Same = EightBfloats;
    __device__ static float value(uint16_t bits) { return bfloat_to_float(bits); }
};

template <class Type>
struct alignas(16) StoredEight {
    typename Type::Stored of[8];

    __device__ void load(const uint4* src) {
#pragma unroll
        for (int i = 0; i < int(sizeof of / 16); ++i) {
            const uint4 words = __ldcs(src + i);
            memcpy(reinterpret_cast<uint8_t*>(of) + 16 * i, &words, 16);
        }
    }
};

__device__ inline void put(float value, int64_t i, EightFloats* dst) {
    reinterpret_cast<float*>(dst)[i] = value;
}

__device__ inline void put(float value, int64_t i, EightBfloats* dst) {
    reinterpret_cast<uint16_t*>(dst)[i] = float_to_bfloat(value);
}

// A tile to a block of threads: all loads of a thread are under way before its first store.
template <class Type, class Values>
__global__ void __launch_bounds__(kThreads)
    convert(const typename Type::Stored* __restrict__ src, Values* __restrict__ dst, int64_t n,
            bool aligned) {
    const int64_t from = int64_t(blockIdx.x) * kTileElements;
    if (!aligned || from + kTileElements > n) {
        for (int64_t i = from + threadIdx.x; i < n && i < from + kTileElements; i += kThreads) {
            put(Type::value(src[i]), i, dst);
        }
        return;
    }
    const int64_t first = from / 8 + threadIdx.x;
    StoredEight<Type> in[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        in[pass].load(reinterpret_cast<const uint4*>(src + 8 * (first + pass * kThreads)));
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
        const auto& of = in[pass].of;
        Values values;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            put_pair(Type::value(of[2 * k]), Type::value(of[2 * k + 1]), k, &values);
        }
        store(values, dst + first + pass * kThreads);
    }
}

template <class Type, class Values>
cudaError_t launch_plain(const void* from, void* to, int64_t n, cudaStream_t stream) {
    if constexpr (std::is_same_v<Values, typename Type::Same>) {
        return cudaMemcpyAsync(to, from, size_t(n) * Type::kBytes, cudaMemcpyDeviceToDevice,
                               stream);
    } else {
        const auto* src = static_cast<const typename Type::Stored*>(from);
        const unsigned n_blocks = unsigned((n + kTileElements - 1) / kTileElements);
        convert<Type><<<n_blocks, kThreads, 0, stream>>>(src, static_cast<Values*>(to), n,
                                                         is_aligned(src));
        return cudaGetLastError();
    }
}

template <class Type>
cudaError_t decode_plain(const void* src, void* dst, bool bf16, int64_t n, cudaStream_t stream) {
    return bf16 ? launch_plain<Type, EightBfloats>(src, dst, n, stream)
                : launch_plain<Type, EightFloats>(src, dst, n, stream);
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
