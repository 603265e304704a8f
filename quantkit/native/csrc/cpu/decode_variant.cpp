// The decoders of one variant: compiled once for each set of instructions, QK_VARIANT its name.
#include "../decode/four_bit.h"
#include "../decode/grid.h"
#include "../decode/kquants.h"
#include "../decode/plain.h"
#include "../decode/simple.h"
#include "store.h"
#include "tables.h"

namespace qk {
namespace QK_VARIANT {

namespace {

template <class Type>
inline uint32_t decode_run(const uint8_t* src, int64_t n_blocks, float* out) {
    uint32_t suspect = 0;
    for (int64_t b = 0; b < n_blocks; ++b) {
        suspect |= Type::decode(src + b * Type::kBytes, out + b * Type::kElements);
    }
    return suspect;
}

template <>
inline uint32_t decode_run<F16>(const uint8_t* src, int64_t n_blocks, float* out) {
    widen_halves(src, n_blocks, out);
    return 0;
}

// Straight to the output, or tile by tile through the first-level cache.
template <class Type>
uint32_t decode_blocks(const uint8_t* src, int64_t n_blocks, void* dst, Store store) {
    if (store == Store::kFloat) return decode_run<Type>(src, n_blocks, static_cast<float*>(dst));
    constexpr int64_t kTileBlocks = kTileElements / Type::kElements;
    alignas(64) float tile[kTileElements];
    uint32_t suspect = 0;
    for (int64_t b = 0; b < n_blocks; b += kTileBlocks) {
        const int64_t n = n_blocks - b < kTileBlocks ? n_blocks - b : kTileBlocks;
        const int64_t n_elements = n * Type::kElements;
        suspect |= decode_run<Type>(src + b * Type::kBytes, n, tile);
        if (store == Store::kBfloat) {
            store_bfloats(tile, static_cast<uint16_t*>(dst) + b * Type::kElements, n_elements);
        } else {
            stream_floats(tile, static_cast<float*>(dst) + b * Type::kElements, n_elements);
        }
    }
    if (store == Store::kStreamedFloat) finish_streaming();
    return suspect;
}

template <class Type>
constexpr DecodeEntry entry() {
    return {Type::kId, Type::kElements, Type::kBytes, decode_blocks<Type>};
}

constexpr DecodeEntry kTable[] = {
    entry<F32>(),    entry<F16>(),    entry<BF16>(),    entry<Q4_0>(),    entry<Q4_1>(),
    entry<Q5_0>(),   entry<Q5_1>(),   entry<Q8_0>(),    entry<Q2_K>(),    entry<Q3_K>(),
    entry<Q4_K>(),   entry<Q5_K>(),   entry<Q6_K>(),    entry<IQ1_S>(),   entry<IQ1_M>(),
    entry<IQ2_XXS>(), entry<IQ2_XS>(), entry<IQ2_S>(),  entry<IQ3_XXS>(), entry<IQ3_S>(),
    entry<IQ4_NL>(), entry<IQ4_XS>(), entry<TQ1_0>(),   entry<TQ2_0>(),   entry<MXFP4>(),
    entry<NVFP4>(),  entry<Q1_0>(),   entry<Q2_0>(),
};

}  // namespace

extern const DecodeEntry* const decoders = kTable;
extern const int32_t n_decoders = int32_t(sizeof kTable / sizeof kTable[0]);

}  // namespace QK_VARIANT
}  // namespace qk
