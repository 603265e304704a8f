// The device's decoders run by the host, for tests on machines without a GPU:
//
//   g++ -std=c++17 -O2 -ffp-contract=off -fPIC -shared cuda/twin.cpp -o libtwin.so
#include "unpack.cuh"
#include "unpack_grid.cuh"

namespace qk {
namespace QK_VARIANT {
namespace {

template <class Type>
void decode(const uint8_t* src, const void* grid, float* dst, int64_t n_elements) {
    for (int64_t i = 0; i < n_elements; i += 8) {
        const int p = int(i % Type::kElements / 8);
        Type::eight(src + i / Type::kElements * Type::kBytes, grid, p, dst + i);
    }
}

struct Entry {
    int32_t ggml_type;
    void (*run)(const uint8_t* src, const void* grid, float* dst, int64_t n_elements);
    const void* grid;
};

template <class Type>
Entry entry(const void* grid = nullptr) {
    return {Type::kId, decode<Type>, grid};
}

const Entry kTable[] = {
    entry<Q4_0>(),
    entry<Q4_1>(),
    entry<Q5_0>(),
    entry<Q5_1>(),
    entry<Q8_0>(),
    entry<Q2_K>(),
    entry<Q3_K>(),
    entry<Q4_K>(),
    entry<Q5_K>(),
    entry<Q6_K>(),
    entry<IQ1_S>(kGridIq1.rows),
    entry<IQ1_M>(kGridIq1.rows),
    entry<IQ2_XXS>(kGridIq2xxs.rows),
    entry<IQ2_XS>(kGridIq2xs.rows),
    entry<IQ2_S>(kGridIq2s.rows),
    entry<IQ3_XXS>(kGridIq3xxs.rows),
    entry<IQ3_S>(kGridIq3s.rows),
    entry<IQ4_NL>(),
    entry<IQ4_XS>(),
    entry<TQ1_0>(),
    entry<TQ2_0>(),
    entry<MXFP4>(),
    entry<NVFP4>(),
    entry<Q1_0>(),
    entry<Q2_0>(),
};

}  // namespace
}  // namespace QK_VARIANT
}  // namespace qk

// 0, or 1 where the type has no such decoder.
extern "C" int32_t qk_twin_decode(int32_t ggml_type, const uint8_t* src, float* dst,
                                  int64_t n_elements) {
    for (const auto& entry : qk::QK_VARIANT::kTable) {
        if (entry.ggml_type != ggml_type) continue;
        entry.run(src, entry.grid, dst, n_elements);
        return 0;
    }
    return 1;
}
