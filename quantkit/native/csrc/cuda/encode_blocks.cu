// Encoders of the types whose blocks have scales of their own.
#include "encode_kernel.cuh"

namespace qk {
namespace cuda {
namespace {

constexpr EncodeEntry kTable[] = {
    encode_entry<lanes::Q4_0>(),   encode_entry<lanes::Q4_1>(),  encode_entry<lanes::Q5_0>(),
    encode_entry<lanes::Q5_1>(),   encode_entry<lanes::Q8_0>(),  encode_entry<lanes::IQ4_NL>(),
    encode_entry<lanes::MXFP4>(),  encode_entry<lanes::NVFP4>(), encode_entry<lanes::Q1_0>(),
    encode_entry<lanes::Q2_0>(),   {-1, 0, 0, nullptr},
};

}  // namespace

extern const EncodeEntry* const block_encoders = kTable;

}  // namespace cuda
}  // namespace qk
