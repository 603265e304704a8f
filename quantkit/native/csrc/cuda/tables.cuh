// What the library offers: one row per type that it decodes, one per type that it encodes.
#pragma once

#include <cstdint>
#include <cuda_runtime.h>

namespace qk {
namespace cuda {

struct DecodeEntry {
    int32_t ggml_type;
    int32_t n_elements;
    int32_t n_bytes;
    cudaError_t (*run)(const void* src, void* dst, bool bf16, int64_t n_elements,
                       cudaStream_t stream);
};

// The values of an encode call: n_rows rows of row_length.
struct Rows {
    const void* values;
    bool is_bf16;
    const float* importance;  // or null
    int64_t n_rows, row_length;
};

struct EncodeEntry {
    int32_t ggml_type;
    int32_t n_elements;
    int32_t n_bytes;
    cudaError_t (*run)(const Rows& rows, uint8_t* dst, cudaStream_t stream);
};

// End with a row whose function is null.
extern const DecodeEntry* const decoders;
extern const EncodeEntry* const block_encoders;
extern const EncodeEntry* const super_encoders;

}  // namespace cuda
}  // namespace qk
