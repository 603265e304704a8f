// The C ABI of the CPU library: checks, the choice of the variant, the split into tasks.
#include <algorithm>
#include <atomic>
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

#define QK_TABLES(name)                                                                  \
    VariantTables {                                                                      \
        #name, name::decoders, name::n_decoders, name::encoders, name::n_encoders,       \
            name::first_beyond                                                           \
    }

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
// An output that caches cannot keep anyway goes past them, unless its pages are new: the kernel has
// just written zeros there, and a store past the caches would have to wait for those.
constexpr int64_t kStreamFromBytes = 16 << 20;

struct Target {
    void* dst;
    bool bf16, fresh;
};

int32_t decode(const DecodeEntry& type, const uint8_t* src, const Target& target,
               int64_t n_elements, int32_t n_threads) {
    const int64_t n_blocks = n_elements / type.n_elements;
    const int64_t per_task = kDecodeTaskElements / type.n_elements;
    const int64_t element_bytes = target.bf16 ? 2 : 4;
    Store store = Store::kFloat;
    if (target.bf16) {
        store = Store::kBfloat;
    } else if (!target.fresh && n_elements * element_bytes >= kStreamFromBytes) {
        store = Store::kStreamedFloat;
    }
    std::atomic<uint32_t> suspect{0};
    run_tasks(tasks_of(n_blocks, per_task), n_threads, [&](int64_t task) {
        const int64_t first = task * per_task;
        const int64_t n = n_blocks - first < per_task ? n_blocks - first : per_task;
        uint8_t* out = static_cast<uint8_t*>(target.dst) + first * type.n_elements * element_bytes;
        if (type.run(src + first * type.n_bytes, n, out, store)) suspect = 1;
    });
    if (suspect) return fail(QK_NOT_FINITE, "a block with a scale that is not finite");
    return QK_OK;
}

// Lowers `found` to `index`.
void note_earlier(std::atomic<int64_t>& found, int64_t index) {
    int64_t before = found;
    while (index < before && !found.compare_exchange_weak(before, index)) {
    }
}

// The values of an encode call, row after row; importance of a row, or null.
struct Rows {
    const float* values;
    const float* importance;
    int64_t n_rows, row_length;
    float largest;  // in magnitude

    int64_t size() const { return n_rows * row_length; }
};

// The index of the first value that is NaN or too large, -1 without one; what follows it may be
// left out. Each task looks at its values just before it encodes them, while they are at hand.
int64_t encode(const EncodeEntry& type, const Rows& rows, uint8_t* dst, int32_t n_threads) {
    const FirstBeyond first_beyond = tables().first_beyond;
    std::atomic<int64_t> found{rows.size()};
    const auto is_fit = [&](int64_t first, int64_t n) {
        const int64_t bad = first_beyond(rows.values + first, n, rows.largest);
        if (bad >= 0) note_earlier(found, first + bad);
        return bad < 0;
    };
    const auto place = [&](int64_t first) {
        return dst + first / type.n_elements * type.n_bytes;
    };
    if (rows.importance == nullptr) {
        // Blocks are all alike, so that rows need not be told apart.
        const std::vector<float> ones(size_t(kEncodeTaskElements), 1.0f);
        run_tasks(tasks_of(rows.size(), kEncodeTaskElements), n_threads, [&](int64_t task) {
            const int64_t first = task * kEncodeTaskElements;
            const int64_t n = std::min(rows.size() - first, kEncodeTaskElements);
            if (is_fit(first, n)) {
                type.run_plain(rows.values + first, ones.data(), place(first), n);
            }
        });
    } else {
        const int64_t per_task = std::max<int64_t>(1, kEncodeTaskElements / rows.row_length);
        run_tasks(tasks_of(rows.n_rows, per_task), n_threads, [&](int64_t task) {
            const int64_t stop = std::min((task + 1) * per_task, rows.n_rows);
            for (int64_t row = task * per_task; row < stop; ++row) {
                const int64_t first = row * rows.row_length;
                if (!is_fit(first, rows.row_length)) return;
                type.run(rows.values + first, rows.importance, place(first), rows.row_length);
            }
        });
    }
    return found == rows.size() ? -1 : int64_t(found);
}

int32_t checked_encode(const EncodeEntry& type, const Rows& rows, uint8_t* dst,
                       int32_t n_threads) {
    for (int64_t i = 0; rows.importance != nullptr && i < rows.row_length; ++i) {
        const float weight = rows.importance[i];
        if (!(weight >= 0.0f && weight <= std::numeric_limits<float>::max())) {
            return fail(QK_BAD_ARGUMENT, "an importance that is negative or not finite", i);
        }
    }
    const int64_t bad = encode(type, rows, dst, n_threads);
    return bad < 0 ? QK_OK : fail(QK_NOT_FINITE, "a value that is not finite or too large", bad);
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
                      int32_t dst_fresh, int64_t n_elements, int32_t n_threads) {
    const qk::DecodeEntry* type = qk::find_decoder(ggml_type);
    if (type == nullptr) return fail(QK_NO_SUCH_TYPE, "no decoder of this type");
    if (n_elements < 0 || n_elements % type->n_elements != 0) {
        return fail(QK_BAD_ARGUMENT, "the elements are not whole blocks");
    }
    if (n_elements == 0) return QK_OK;
    if (src == nullptr || dst == nullptr) return fail(QK_BAD_ARGUMENT, "a null pointer");
    return qk::guarded([&] {
        const qk::Target target = {dst, dst_bf16 != 0, dst_fresh != 0};
        return qk::decode(*type, static_cast<const uint8_t*>(src), target, n_elements, n_threads);
    });
}

int32_t qk_cpu_encode(int32_t ggml_type, const float* src, const float* importance, float largest,
                      void* dst, int64_t n_rows, int64_t row_length, int32_t n_threads) {
    const qk::EncodeEntry* type = qk::find_encoder(ggml_type);
    if (type == nullptr) return fail(QK_NO_SUCH_TYPE, "no encoder of this type");
    if (n_rows < 0 || row_length < 0 || row_length % type->n_elements != 0) {
        return fail(QK_BAD_ARGUMENT, "the rows are not whole blocks");
    }
    if (n_rows == 0 || row_length == 0) return QK_OK;
    if (src == nullptr || dst == nullptr) return fail(QK_BAD_ARGUMENT, "a null pointer");
    return qk::guarded([&] {
        const qk::Rows rows = {src, importance, n_rows, row_length, largest};
        return qk::checked_encode(*type, rows, static_cast<uint8_t*>(dst), n_threads);
    });
}
