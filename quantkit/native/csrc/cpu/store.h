// From a tile in the first-level cache to the output.
#pragma once

#include "../formats/numbers.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace qk {
namespace QK_VARIANT {

constexpr int64_t kTileElements = 2048;

inline void store_bfloats(const float* __restrict tile, uint16_t* __restrict out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = float_to_bfloat(tile[i]);
}

// Past the caches: a tensor larger than they are would only displace what they hold, and the
// processor would first have to read what is about to be overwritten.
inline void stream_floats(const float* __restrict tile, float* __restrict out, int64_t n) {
#if defined(__SSE2__)
    int64_t i = 0;
    while (i < n && (reinterpret_cast<uintptr_t>(out + i) & 63) != 0) {
        out[i] = tile[i];
        ++i;
    }
    for (; i + 16 <= n; i += 16) {
#if defined(__AVX512F__)
        _mm512_stream_ps(out + i, _mm512_loadu_ps(tile + i));
#elif defined(__AVX__)
        _mm256_stream_ps(out + i, _mm256_loadu_ps(tile + i));
        _mm256_stream_ps(out + i + 8, _mm256_loadu_ps(tile + i + 8));
#else
        for (int k = 0; k < 16; k += 4) _mm_stream_ps(out + i + k, _mm_loadu_ps(tile + i + k));
#endif
    }
    for (; i < n; ++i) out[i] = tile[i];
#else
    memcpy(out, tile, size_t(n) * sizeof(float));
#endif
}

// Streamed stores become visible to other threads.
inline void finish_streaming() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

}  // namespace QK_VARIANT
}  // namespace qk
