/* C ABI of libquantkit_cpu: decoders and encoders of the ggml block types.
 *
 * Every function that can fail returns a status; qk_last_error() then says what was wrong in this
 * thread, and qk_last_index() which element, where one is to blame. Types are ggml's ids. Calls
 * may come from several threads at once; results never depend on the number of threads nor on the
 * variant. No function keeps a pointer after it returns. */
#ifndef QUANTKIT_H
#define QUANTKIT_H

#include <stdint.h>

#define QK_ABI_VERSION 3

#if defined(_WIN32)
#define QK_API __declspec(dllexport)
#else
#define QK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

enum {
    QK_OK = 0,
    QK_BAD_ARGUMENT = 1,     /* null pointer, size, elements of a part of a block, importance */
    QK_NO_SUCH_TYPE = 2,     /* this library has no decoder (encoder) of the type */
    QK_NO_SUCH_VARIANT = 3,  /* the processor lacks the instructions, or the build the variant */
    QK_NOT_FINITE = 4,       /* a value: see qk_cpu_decode and qk_cpu_encode */
    QK_INTERNAL = 5          /* out of memory or threads */
};

enum { QK_OP_DECODE = 0, QK_OP_ENCODE = 1 };

enum { QK_VARIANT_BEST = -1, QK_VARIANT_SCALAR = 0, QK_VARIANT_AVX2 = 1, QK_VARIANT_AVX512 = 2 };

QK_API int32_t qk_abi_version(void);
QK_API const char* qk_last_error(void);
QK_API int64_t qk_last_index(void);

/* Which instructions the next calls use, in the whole process. */
QK_API int32_t qk_cpu_set_variant(int32_t variant);
QK_API const char* qk_cpu_variant(void);

/* Elements and bytes of a block; QK_NO_SUCH_TYPE where the operation does not exist. */
QK_API int32_t qk_cpu_block(int32_t op, int32_t ggml_type, int32_t* n_elements, int32_t* n_bytes);

/* n_elements values of src, whole blocks, to float32 or (dst_bf16) to bfloat16, rounded to nearest
 * even. QK_NOT_FINITE when a block's scale is infinite, NaN or so large that a product may
 * overflow: everything is decoded all the same, and the caller decides by looking at the values.
 * Plain floats (F32, F16, BF16) pass on what they hold. dst_fresh: dst was allocated for this call,
 * which decides the kind of stores and nothing else. */
QK_API int32_t qk_cpu_decode(int32_t ggml_type, const void* src, void* dst, int32_t dst_bf16,
                             int32_t dst_fresh, int64_t n_elements, int32_t n_threads);

/* n_rows rows of row_length values, whole blocks, each channel weighted by importance[channel],
 * finite and not negative; NULL means 1 everywhere. QK_NOT_FINITE, with the index of the first
 * value that is NaN or exceeds `largest` in magnitude: dst then holds nothing of use. */
QK_API int32_t qk_cpu_encode(int32_t ggml_type, const float* src, const float* importance,
                             float largest, void* dst, int64_t n_rows, int64_t row_length,
                             int32_t n_threads);

#ifdef __cplusplus
}
#endif
#endif
