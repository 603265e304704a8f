// The C ABI of the CUDA library: checks, then the row of the type.
#include <string>

#include "../include/quantkit_cuda.h"
#include "tables.cuh"

namespace qk {
namespace cuda {
namespace {

thread_local std::string last_error;

int32_t fail(int32_t status, const char* message) {
    last_error = message;
    return status;
}

int32_t status_of(cudaError_t error) {
    return error == cudaSuccess ? QK_CUDA_OK : fail(QK_CUDA_FAILED, cudaGetErrorString(error));
}

template <class Entry>
const Entry* find(const Entry* entry, int32_t ggml_type) {
    for (; entry->run != nullptr; ++entry) {
        if (entry->ggml_type == ggml_type) return entry;
    }
    return nullptr;
}

const EncodeEntry* find_encoder(int32_t ggml_type) {
    const EncodeEntry* entry = find(block_encoders, ggml_type);
    return entry != nullptr ? entry : find(super_encoders, ggml_type);
}

bool is_aligned(const void* pointer, uintptr_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

int32_t decode(const DecodeEntry& type, const void* src, void* dst, bool bf16, int64_t n_elements,
               cudaStream_t stream) {
    if (n_elements < 0 || n_elements % type.n_elements != 0) {
        return fail(QK_CUDA_BAD_ARGUMENT, "the elements are not whole blocks");
    }
    if (n_elements == 0) return QK_CUDA_OK;
    if (src == nullptr || dst == nullptr) return fail(QK_CUDA_BAD_ARGUMENT, "a null pointer");
    const uintptr_t own = type.n_elements == 1 ? uintptr_t(type.n_bytes) : 1;
    if (!is_aligned(dst, 16) || !is_aligned(src, own)) {
        return fail(QK_CUDA_BAD_ARGUMENT, "a misaligned pointer");
    }
    return status_of(type.run(src, dst, bf16, n_elements, stream));
}

int32_t encode(const EncodeEntry& type, const Rows& rows, void* dst, cudaStream_t stream) {
    if (rows.n_rows < 0 || rows.row_length < 0 || rows.row_length % type.n_elements != 0) {
        return fail(QK_CUDA_BAD_ARGUMENT, "the rows are not whole blocks");
    }
    if (rows.n_rows == 0 || rows.row_length == 0) return QK_CUDA_OK;
    if (rows.values == nullptr || dst == nullptr) {
        return fail(QK_CUDA_BAD_ARGUMENT, "a null pointer");
    }
    if (!is_aligned(rows.values, rows.is_bf16 ? 8 : 16) || !is_aligned(rows.importance, 16)) {
        return fail(QK_CUDA_BAD_ARGUMENT, "a misaligned pointer");
    }
    return status_of(type.run(rows, static_cast<uint8_t*>(dst), stream));
}

}  // namespace
}  // namespace cuda
}  // namespace qk

using qk::cuda::fail;

int32_t qk_cuda_abi_version(void) {
    return QK_CUDA_ABI_VERSION;
}

const char* qk_cuda_last_error(void) {
    return qk::cuda::last_error.c_str();
}

int32_t qk_cuda_block(int32_t op, int32_t ggml_type, int32_t* n_elements, int32_t* n_bytes) {
    const auto report = [&](const auto* entry) -> int32_t {
        if (entry == nullptr) return fail(QK_CUDA_NO_SUCH_TYPE, "no such type for this operation");
        *n_elements = entry->n_elements;
        *n_bytes = entry->n_bytes;
        return QK_CUDA_OK;
    };
    if (op == QK_CUDA_DECODE) return report(qk::cuda::find(qk::cuda::decoders, ggml_type));
    if (op == QK_CUDA_ENCODE) return report(qk::cuda::find_encoder(ggml_type));
    return fail(QK_CUDA_BAD_ARGUMENT, "no such operation");
}

int32_t qk_cuda_decode(int32_t ggml_type, const void* src, void* dst, int32_t dst_bf16,
                       int64_t n_elements, void* stream) {
    const auto* type = qk::cuda::find(qk::cuda::decoders, ggml_type);
    if (type == nullptr) return fail(QK_CUDA_NO_SUCH_TYPE, "no decoder of this type");
    return qk::cuda::decode(*type, src, dst, dst_bf16 != 0, n_elements,
                            static_cast<cudaStream_t>(stream));
}

int32_t qk_cuda_encode(int32_t ggml_type, const void* src, int32_t src_bf16,
                       const void* importance, void* dst, int64_t n_rows, int64_t row_length,
                       void* stream) {
    const auto* type = qk::cuda::find_encoder(ggml_type);
    if (type == nullptr) return fail(QK_CUDA_NO_SUCH_TYPE, "no encoder of this type");
    const qk::cuda::Rows rows = {src, src_bf16 != 0, static_cast<const float*>(importance), n_rows,
                                 row_length};
    return qk::cuda::encode(*type, rows, dst, static_cast<cudaStream_t>(stream));
}
