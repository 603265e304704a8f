// What a variant offers: one row per type that it decodes, one per type that it encodes.
#pragma once

#include <cstdint>

namespace qk {

enum class Store { kFloat, kStreamedFloat, kBfloat };

// Decodes n_blocks blocks; returns 1 when a scale is suspect (QK_NOT_FINITE), else 0.
typedef uint32_t (*DecodeBlocks)(const uint8_t* src, int64_t n_blocks, void* dst, Store store);

// Encodes n values, whole blocks, weighted by w: finite, not negative.
typedef void (*EncodeRow)(const float* x, const float* w, uint8_t* out, int64_t n);

// The index of the first value that is NaN or exceeds `largest` in magnitude, -1 without one.
typedef int64_t (*FirstBeyond)(const float* values, int64_t n, float largest);

struct DecodeEntry {
    int32_t ggml_type;
    int32_t n_elements;
    int32_t n_bytes;
    DecodeBlocks run;
};

struct EncodeEntry {
    int32_t ggml_type;
    int32_t n_elements;
    int32_t n_bytes;
    EncodeRow run;
    EncodeRow run_plain;  // w holds ones, and the search may be another
};

struct VariantTables {
    const char* name;
    const DecodeEntry* decoders;
    int32_t n_decoders;
    const EncodeEntry* encoders;
    int32_t n_encoders;
    FirstBeyond first_beyond;
};

// Compiled once per variant (decode_variant.cpp and encode_variant.cpp).
#define QK_DECLARE_VARIANT(name)                                     \
    namespace name {                                                 \
    extern const DecodeEntry* const decoders;                        \
    extern const int32_t n_decoders;                                 \
    extern const EncodeEntry* const encoders;                        \
    extern const int32_t n_encoders;                                 \
    extern const FirstBeyond first_beyond;                           \
    }

QK_DECLARE_VARIANT(scalar)
QK_DECLARE_VARIANT(avx2)
QK_DECLARE_VARIANT(avx512)

}  // namespace qk
