// The device's functions run by the host, for tests on machines without a GPU:
//
//   g++ -std=c++17 -O2 -ffp-contract=off -fPIC -shared cuda/twin.cpp -o libtwin.so
#include <ucontext.h>

#include <vector>

#include "encode_lane.cuh"
#include "unpack.cuh"
#include "unpack_grid.cuh"

namespace qk {
namespace QK_VARIANT {
namespace {

template <class Type, class Values>
void decode(const uint8_t* src, const void* grid, void* dst, int64_t n_elements) {
    for (int64_t i = 0; i < n_elements; i += 8) {
        const int p = int(i % Type::kElements / 8);
        Values values;
        Type::eight(src + i / Type::kElements * Type::kBytes, grid, p, &values);
        memcpy(static_cast<char*>(dst) + i / 8 * int64_t(sizeof values), &values, sizeof values);
    }
}

struct Entry {
    int32_t ggml_type;
    void (*to_floats)(const uint8_t* src, const void* grid, void* dst, int64_t n_elements);
    void (*to_bfloats)(const uint8_t* src, const void* grid, void* dst, int64_t n_elements);
    const void* grid;
};

template <class Type>
Entry entry(const void* grid = nullptr) {
    return {Type::kId, decode<Type, EightFloats>, decode<Type, EightBfloats>, grid};
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

// The lanes of a block run as coroutines: each until it has put its value into the exchange, then
// the next. Two slots a lane, by turns, since a lane may reach the next exchange before the
// others have read this one's.
namespace {

constexpr int kStackBytes = 1 << 17;

struct Team {
    int n_lanes = 0, current = 0, n_running = 0;
    std::vector<ucontext_t> lanes;
    std::vector<std::vector<char>> stacks;
    std::vector<float> slots[2];
    std::vector<int> turns;
    ucontext_t caller;
    void (*body)(int lane) = nullptr;

    void pass_on() {
        const int from = current;
        current = (current + 1) % n_lanes;
        swapcontext(&lanes[from], &lanes[current]);
    }

    void run(int count, void (*work)(int)) {
        n_lanes = n_running = count;
        body = work;
        current = 0;
        lanes.resize(count);
        stacks.resize(count, std::vector<char>(kStackBytes));
        turns.assign(count, 0);
        for (auto& slot : slots) slot.assign(count, 0.0f);
        for (int lane = 0; lane < count; ++lane) {
            getcontext(&lanes[lane]);
            lanes[lane].uc_stack.ss_sp = stacks[lane].data();
            lanes[lane].uc_stack.ss_size = kStackBytes;
            lanes[lane].uc_link = nullptr;
            makecontext(&lanes[lane], reinterpret_cast<void (*)()>(enter), 1, lane);
        }
        swapcontext(&caller, &lanes[0]);
    }

    static void enter(int lane);
};

Team team;

void Team::enter(int lane) {
    team.body(lane);
    if (--team.n_running == 0) setcontext(&team.caller);
    team.pass_on();
}

}  // namespace

namespace qk {
namespace QK_VARIANT {
namespace kq {

int host_lane() { return team.current; }

float host_exchange(float value, int distance) {
    const int lane = team.current, turn = team.turns[lane]++ % 2;
    team.slots[turn][lane] = value;
    team.pass_on();
    return team.slots[turn][lane ^ distance];
}

}  // namespace kq

namespace {

const float* block_x;
const float* block_w;
uint8_t* block_out;

template <class Type>
void encode_lane(int lane) {
    constexpr int kMine = Type::kElements / Type::kLanes;
    Type::encode(block_x + lane * kMine, block_w + lane * kMine, lane, block_out);
}

template <class P, int kId>
struct Together {
    using Type = lanes::Super<P, kId>;
    static constexpr int kElements = 256, kBytes = Type::kBytes, kLanes = Type::kLanes;
    static inline kq::Encoded shared;
    static void encode(const float* x, const float* w, int lane, uint8_t*) {
        Type::encode(x, w, lane, shared);
    }
};

template <class P, int kId>
void finish(lanes::Super<P, kId>) {
    lanes::Super<P, kId>::pack(Together<P, kId>::shared, block_out);
}

template <class P, int kId>
auto runnable(lanes::Super<P, kId>) -> Together<P, kId>;

template <class Type>
void finish(Type) {}

template <class Type>
auto runnable(Type) -> Type;

template <class Type>
void encode(const float* x, const float* w, uint8_t* out, int64_t n) {
    for (int64_t i = 0; i < n; i += Type::kElements, out += Type::kBytes) {
        block_x = x + i;
        block_w = w + i;
        block_out = out;
        team.run(Type::kLanes, encode_lane<decltype(runnable(Type()))>);
        finish(Type());
    }
}

typedef void (*EncodeRow)(const float* x, const float* w, uint8_t* out, int64_t n);

struct EncodeEntry {
    int32_t ggml_type;
    EncodeRow run, run_plain;
};

template <template <bool> class Type>
EncodeEntry encode_row_of() {
    return {Type<true>::kId, encode<Type<true>>, encode<Type<false>>};
}

const EncodeEntry kEncoders[] = {
    encode_row_of<lanes::Q4_0>(),
    encode_row_of<lanes::Q4_1>(),
    encode_row_of<lanes::Q5_0>(),
    encode_row_of<lanes::Q5_1>(),
    encode_row_of<lanes::Q8_0>(),
    encode_row_of<lanes::Q2_K>(),
    encode_row_of<lanes::Q3_K>(),
    encode_row_of<lanes::Q4_K>(),
    encode_row_of<lanes::Q5_K>(),
    encode_row_of<lanes::Q6_K>(),
    encode_row_of<lanes::IQ4_NL>(),
    encode_row_of<lanes::IQ4_XS>(),
    encode_row_of<lanes::MXFP4>(),
    encode_row_of<lanes::NVFP4>(),
    encode_row_of<lanes::Q1_0>(),
    encode_row_of<lanes::Q2_0>(),
};

}  // namespace
}  // namespace QK_VARIANT
}  // namespace qk

// One row, without importance if w is null; 0, or 1 where the type has no such encoder.
extern "C" int32_t qk_twin_encode(int32_t ggml_type, const float* x, const float* w, uint8_t* out,
                                  int64_t n) {
    const std::vector<float> ones(w == nullptr ? size_t(n) : 0, 1.0f);
    for (const auto& entry : qk::QK_VARIANT::kEncoders) {
        if (entry.ggml_type != ggml_type) continue;
        if (w == nullptr) {
            entry.run_plain(x, ones.data(), out, n);
        } else {
            entry.run(x, w, out, n);
        }
        return 0;
    }
    return 1;
}

// 0, or 1 where the type has no such decoder.
extern "C" int32_t qk_twin_decode(int32_t ggml_type, const uint8_t* src, void* dst,
                                  int32_t dst_bf16, int64_t n_elements) {
    for (const auto& entry : qk::QK_VARIANT::kTable) {
        if (entry.ggml_type != ggml_type) continue;
        (dst_bf16 ? entry.to_bfloats : entry.to_floats)(src, entry.grid, dst, n_elements);
        return 0;
    }
    return 1;
}
