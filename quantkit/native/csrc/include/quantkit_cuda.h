/* C ABI of libquantkit_cuda: the ggml block types on the GPU, bit for bit as on the CPU.
 *
 * Pointers are device pointers of the current device, streams are cudaStream_t (NULL: the default
 * stream). Calls only enqueue work: they return before it is done, and an error of the work itself
 * shows in a later call on the stream. Types are ggml's ids. A NaN that is decoded is some NaN:
 * its payload is the device's. */
#ifndef QUANTKIT_CUDA_H
#define QUANTKIT_CUDA_H

#include <stdint.h>

#define QK_CUDA_ABI_VERSION 1

#if defined(_WIN32)
#define QK_CUDA_API __declspec(dllexport)
#else
#define QK_CUDA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    QK_CUDA_OK = 0,
    QK_CUDA_BAD_ARGUMENT = 1, /* null or misaligned pointer, negative size, no whole blocks */
    QK_CUDA_NO_SUCH_TYPE = 2, /* this library has no decoder (encoder) of the type */
    QK_CUDA_FAILED = 3        /* the CUDA runtime refused; qk_cuda_last_error has its words */
};

enum { QK_CUDA_DECODE = 0, QK_CUDA_ENCODE = 1 };

QK_CUDA_API int32_t qk_cuda_abi_version(void);
QK_CUDA_API const char* qk_cuda_last_error(void);

/* Elements and bytes of a block; QK_CUDA_NO_SUCH_TYPE where the operation does not exist. */
QK_CUDA_API int32_t qk_cuda_block(int32_t op, int32_t ggml_type, int32_t* n_elements,
                                  int32_t* n_bytes);

/* n_elements values of src, whole blocks, to float32 or (dst_bf16) bfloat16, rounded to nearest
 * even. dst is aligned to 16 bytes; src may have any alignment (16 is fastest), plain floats their
 * own. */
QK_CUDA_API int32_t qk_cuda_decode(int32_t ggml_type, const void* src, void* dst, int32_t dst_bf16,
                                   int64_t n_elements, void* stream);

/* n_rows rows of row_length values, whole blocks, float32 or (src_bf16) bfloat16, each channel
 * weighted by importance[channel], float32; NULL means 1 everywhere. Values are finite, importance
 * finite and not negative: the caller has checked, here it goes unseen. */
QK_CUDA_API int32_t qk_cuda_encode(int32_t ggml_type, const void* src, int32_t src_bf16,
                                   const void* importance, void* dst, int64_t n_rows,
                                   int64_t row_length, void* stream);

#ifdef __cplusplus
}
#endif
#endif
