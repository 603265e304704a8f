// The row encoders of one variant: compiled once for each set of instructions.
//
// A new type: include its header, add a row { ggml id, elements, bytes, function }.
#include "../formats/numbers.h"
#include "tables.h"

#if __has_include("../encode/simple.h")
#include "../encode/simple.h"
#define QK_ENCODE_SIMPLE 1
#endif
#if __has_include("../encode/iq4.h")
#include "../encode/iq4.h"
#define QK_ENCODE_IQ4 1
#endif
#if __has_include("../encode/microscale.h")
#include "../encode/microscale.h"
#define QK_ENCODE_MICROSCALE 1
#endif
#if __has_include("../encode/lowbit.h")
#include "../encode/lowbit.h"
#define QK_ENCODE_LOWBIT 1
#endif
#if __has_include("../encode/kquants.h")
#include "../encode/kquants.h"
#define QK_ENCODE_KQUANTS 1
#endif

namespace qk {
namespace QK_VARIANT {

namespace {

constexpr EncodeEntry kTable[] = {
#if QK_ENCODE_SIMPLE
    {2, 32, 18, encode_row_q4_0}, {3, 32, 20, encode_row_q4_1}, {6, 32, 22, encode_row_q5_0},
    {7, 32, 24, encode_row_q5_1}, {8, 32, 34, encode_row_q8_0},
#endif
#if QK_ENCODE_KQUANTS
    {10, 256, 84, encode_row_q2_k},  {11, 256, 110, encode_row_q3_k},
    {12, 256, 144, encode_row_q4_k}, {13, 256, 176, encode_row_q5_k},
    {14, 256, 210, encode_row_q6_k},
#endif
#if QK_ENCODE_IQ4
    {20, 32, 18, encode_row_iq4_nl}, {23, 256, 136, encode_row_iq4_xs},
#endif
#if QK_ENCODE_MICROSCALE
    {39, 32, 17, encode_row_mxfp4}, {40, 64, 36, encode_row_nvfp4},
#endif
#if QK_ENCODE_LOWBIT
    {41, 128, 18, encode_row_q1_0}, {42, 64, 18, encode_row_q2_0},
#endif
    {-1, 0, 0, nullptr},  // ends the table, which must not be empty
};

}  // namespace

extern const EncodeEntry* const encoders = kTable;
extern const int32_t n_encoders = int32_t(sizeof kTable / sizeof kTable[0]) - 1;

}  // namespace QK_VARIANT
}  // namespace qk
