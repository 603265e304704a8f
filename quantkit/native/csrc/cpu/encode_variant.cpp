// The row encoders of one variant: compiled once for each set of instructions.
//
// A new type: include its header, add a row { ggml id, elements, bytes, function }.
#include <cmath>

#include "../encode/iq4.h"
#include "../encode/kquants.h"
#include "../encode/lowbit.h"
#include "../encode/microscale.h"
#include "../encode/simple.h"
#include "tables.h"

namespace qk {
namespace QK_VARIANT {

namespace {

// With importance and without.
#define QK_ROW(id, elements, bytes, encode_row) \
    { id, elements, bytes, encode_row<true>, encode_row<false> }

constexpr EncodeEntry kTable[] = {
    QK_ROW(2, 32, 18, encode_row_q4_0),
    QK_ROW(3, 32, 20, encode_row_q4_1),
    QK_ROW(6, 32, 22, encode_row_q5_0),
    QK_ROW(7, 32, 24, encode_row_q5_1),
    QK_ROW(8, 32, 34, encode_row_q8_0),
    QK_ROW(10, 256, 84, encode_row_q2_k),
    QK_ROW(11, 256, 110, encode_row_q3_k),
    QK_ROW(12, 256, 144, encode_row_q4_k),
    QK_ROW(13, 256, 176, encode_row_q5_k),
    QK_ROW(14, 256, 210, encode_row_q6_k),
    QK_ROW(20, 32, 18, encode_row_iq4_nl),
    QK_ROW(23, 256, 136, encode_row_iq4_xs),
    QK_ROW(39, 32, 17, encode_row_mxfp4),
    QK_ROW(40, 64, 36, encode_row_nvfp4),
    QK_ROW(41, 128, 18, encode_row_q1_0),
    QK_ROW(42, 64, 18, encode_row_q2_0),
};

constexpr int64_t kCheckedTogether = 4096;

int64_t find_beyond(const float* values, int64_t n, float largest) {
    for (int64_t from = 0; from < n; from += kCheckedTogether) {
        const int64_t to = n - from < kCheckedTogether ? n : from + kCheckedTogether;
        int any = 0;
        for (int64_t i = from; i < to; ++i) any |= !(std::fabs(values[i]) <= largest);
        if (!any) continue;
        while (std::fabs(values[from]) <= largest) ++from;
        return from;
    }
    return -1;
}

}  // namespace

extern const FirstBeyond first_beyond = find_beyond;
extern const EncodeEntry* const encoders = kTable;
extern const int32_t n_encoders = int32_t(sizeof kTable / sizeof kTable[0]);

}  // namespace QK_VARIANT
}  // namespace qk
