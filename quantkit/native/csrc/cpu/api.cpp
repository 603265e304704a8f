// The C ABI of the CPU library: checks, the choice of the variant, the split into tasks.
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "../include/quantkit.h"
#include "tables.h"
#include "threads.h"

namespace qk {
namespace {

thread_local std::string last_error;
thread_local int64_t last_index = -1;

int32_t fail(int32_t status, const std::string& message, int64_t index = -1) {
    last_error = message;
    last_index = index;
    return status;
}

// No exception leaves the library.
template <class Body>
int32_t guarded(Body body) {
    try {
        return body();
    } catch (const std::exception& error) {
        return fail(QK_INTERNAL, error.what());
    }
}

#define QK_TABLES(name) \
    VariantTables { #name, name::decoders, name::n_decoders, name::encoders, name::n_encoders }

bool is_supported(int32_t variant) {
    if (variant == QK_VARIANT_SCALAR) return true;
#if defined(QK_X86_VARIANTS)
    if (variant == QK_VARIANT_AVX2) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    }
    if (variant == QK_VARIANT_AVX512) {
        return is_supported(QK_VARIANT_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
    }
#endif
    return false;
}

int32_t best_variant() {
    for (int32_t v = QK_VARIANT_AVX512; v > QK_VARIANT_SCALAR; --v) {
        if (is_supported(v)) return v;
    }
    return QK_VARIANT_SCALAR;
}

int32_t& chosen_variant() {
    static int32_t variant = best_variant();
    return variant;
}

VariantTables tables() {
#if defined(QK_X86_VARIANTS)
    if (chosen_variant() == QK_VARIANT_AVX512) return QK_TABLES(avx512);
    if (chosen_variant() == QK_VARIANT_AVX2) return QK_TABLES(avx2);
#endif
    return QK_TABLES(scalar);
}

template <class Entry>
const Entry* find(const Entry* entries, int32_t n, int32_t ggml_type) {
    for (int32_t i = 0; i < n; ++i) {
        if (entries[i].ggml_type == ggml_type) return entries + i;
    }
    return nullptr;
}

const DecodeEntry* find_decoder(int32_t ggml_type) {
    const VariantTables t = tables();
    return find(t.decoders, t.n_decoders, ggml_type);
}

const EncodeEntry* find_encoder(int32_t ggml_type) {
    const VariantTables t = tables();
    return find(t.encoders, t.n_encoders, ggml_type);
}

int64_t tasks_of(int64_t n, int64_t per_task) {
    return (n + per_task - 1) / per_task;
}

// Small enough to balance threads, large enough that handing one out costs nothing.
constexpr int64_t kDecodeTaskElements = 1 << 18;
constexpr int64_t kEncodeTaskElements = 1 << 14;
constexpr int64_t kCheckedTogether = 4096;
// An output that the last-level cache cannot keep anyway goes past it.
constexpr int64_t kStreamFromBytes = 16 << 20;

int32_t decode(const DecodeEntry& type, const uint8_t* src, void* dst, bool bf16,
               int64_t n_elements, int32_t n_threads) {
    const int64_t n_blocks = n_elements / type.n_elements;
    const int64_t per_task = kDecodeTaskElements / type.n_elements;
    const int64_t element_bytes = bf16 ? 2 : 4;
    Store store = Store::kFloat;
    if (bf16) {
        store = Store::kBfloat;
    } else if (n_elements * element_bytes >= kStreamFromBytes) {
        store = Store::kStreamedFloat;
    }
    std::atomic<uint32_t> suspect{0};
    run_tasks(tasks_of(n_blocks, per_task), n_threads, [&](int64_t task) {
        const int64_t first = task * per_task;
        const int64_t n = n_blocks - first < per_task ? n_blocks - first : per_task;
        uint8_t* out = static_cast<uint8_t*>(dst) + first * type.n_elements * element_bytes;
        if (type.run(src + first * type.n_bytes, n, out, store)) suspect = 1;
    });
    if (suspect) return fail(QK_NOT_FINITE, "a block with a scale that is not finite");
    return QK_OK;
}

// The smallest index in [0, n) for which is_bad holds, -1 without one.
template <class Test>
int64_t first_bad(int64_t n, int32_t n_threads, Test is_bad) {
    std::atomic<int64_t> found{n};
    run_tasks(tasks_of(n, kDecodeTaskElements), n_threads, [&](int64_t task) {
        const int64_t start = task * kDecodeTaskElements;
        const int64_t stop = n - start < kDecodeTaskElements ? n : start + kDecodeTaskElements;
        if (start > found) return;
        for (int64_t from = start; from < stop; from += kCheckedTogether) {
            const int64_t to = stop - from < kCheckedTogether ? stop : from + kCheckedTogether;
            int any = 0;
            for (int64_t i = from; i < to; ++i) any |= is_bad(i);
            if (!any) continue;
            while (!is_bad(from)) ++from;
            int64_t before = found;
            while (from < before && !found.compare_exchange_weak(before, from)) {
            }
            return;
        }
    });
    return found == n ? -1 : int64_t(found);
}

int64_t first_beyond(const float* values, int64_t n, float largest, int32_t n_threads) {
    return first_bad(n, n_threads,
                     [=](int64_t i) -> int { return !(std::fabs(values[i]) <= largest); });
}

int32_t encode(const EncodeEntry& type, const float* src, const float* weights, uint8_t* dst,
               int64_t n_rows, int64_t row_length, int32_t n_threads) {
    const int64_t row_bytes = row_length / type.n_elements * type.n_bytes;
    const int64_t per_task = row_length >= kEncodeTaskElements ? 1 : kEncodeTaskElements / row_length;
    run_tasks(tasks_of(n_rows, per_task), n_threads, [&](int64_t task) {
        const int64_t stop = (task + 1) * per_task < n_rows ? (task + 1) * per_task : n_rows;
        for (int64_t row = task * per_task; row < stop; ++row) {
            type.run(src + row * row_length, weights, dst + row * row_bytes, row_length);
        }
    });
    return QK_OK;
}

int32_t checked_encode(const EncodeEntry& type, const float* src, const float* importance,
                       uint8_t* dst, int64_t n_rows, int64_t row_length, int32_t n_threads) {
    const float largest = std::numeric_limits<float>::max();
    const int64_t bad = first_beyond(src, n_rows * row_length, largest, n_threads);
    if (bad >= 0) return fail(QK_NOT_FINITE, "a value that is not finite", bad);
    std::vector<float> ones;
    if (importance == nullptr) {
        ones.assign(size_t(row_length), 1.0f);
        importance = ones.data();
    } else {
        const int64_t wrong = first_bad(row_length, 1, [=](int64_t i) -> int {
            return !(importance[i] >= 0.0f && importance[i] <= largest);
        });
        if (wrong >= 0) {
            return fail(QK_NOT_FINITE, "an importance that is negative or not finite", wrong);
        }
    }
    return encode(type, src, importance, dst, n_rows, row_length, n_threads);
}

}  // namespace
}  // namespace qk

using qk::fail;

int32_t qk_abi_version(void) {
    return QK_ABI_VERSION;
}

const char* qk_last_error(void) {
    return qk::last_error.c_str();
}

int64_t qk_last_index(void) {
    return qk::last_index;
}

int32_t qk_cpu_set_variant(int32_t variant) {
    if (variant == QK_VARIANT_BEST) variant = qk::best_variant();
    if (!qk::is_supported(variant)) {
        return fail(QK_NO_SUCH_VARIANT, "this processor or build lacks the variant");
    }
    qk::chosen_variant() = variant;
    return QK_OK;
}

const char* qk_cpu_variant(void) {
    return qk::tables().name;
}

int32_t qk_cpu_block(int32_t op, int32_t ggml_type, int32_t* n_elements, int32_t* n_bytes) {
    if (op != QK_OP_DECODE && op != QK_OP_ENCODE) return fail(QK_BAD_ARGUMENT, "no such operation");
    const auto report = [&](const auto* entry) -> int32_t {
        if (entry == nullptr) return fail(QK_NO_SUCH_TYPE, "no such type for this operation");
        *n_elements = entry->n_elements;
        *n_bytes = entry->n_bytes;
        return QK_OK;
    };
    return op == QK_OP_DECODE ? report(qk::find_decoder(ggml_type))
                              : report(qk::find_encoder(ggml_type));
}

int32_t qk_cpu_decode(int32_t ggml_type, const void* src, void* dst, int32_t dst_bf16,
                      int64_t n_elements, int32_t n_threads) {
    const qk::DecodeEntry* type = qk::find_decoder(ggml_type);
    if (type == nullptr) return fail(QK_NO_SUCH_TYPE, "no decoder of this type");
    if (n_elements < 0 || n_elements % type->n_elements != 0) {
        return fail(QK_BAD_ARGUMENT, "the elements are not whole blocks");
    }
    if (n_elements == 0) return QK_OK;
    if (src == nullptr || dst == nullptr) return fail(QK_BAD_ARGUMENT, "a null pointer");
    return qk::guarded([&] {
        return qk::decode(*type, static_cast<const uint8_t*>(src), dst, dst_bf16 != 0, n_elements,
                          n_threads);
    });
}

int32_t qk_cpu_encode(int32_t ggml_type, const float* src, const float* importance, void* dst,
                      int64_t n_rows, int64_t row_length, int32_t n_threads) {
    const qk::EncodeEntry* type = qk::find_encoder(ggml_type);
    if (type == nullptr) return fail(QK_NO_SUCH_TYPE, "no encoder of this type");
    if (n_rows < 0 || row_length < 0 || row_length % type->n_elements != 0) {
        return fail(QK_BAD_ARGUMENT, "the rows are not whole blocks");
    }
    if (n_rows == 0 || row_length == 0) return QK_OK;
    if (src == nullptr || dst == nullptr) return fail(QK_BAD_ARGUMENT, "a null pointer");
    return qk::guarded([&] {
        return qk::checked_encode(*type, src, importance, static_cast<uint8_t*>(dst), n_rows,
                                  row_length, n_threads);
    });
}

int64_t qk_cpu_first_beyond(const float* src, int64_t n, float largest, int32_t n_threads) {
    int64_t found = -1;
    const int32_t status = qk::guarded([&] {
        found = qk::first_beyond(src, n, largest, n_threads);
        return int32_t(QK_OK);
    });
    return status == QK_OK ? found : -2;
}
