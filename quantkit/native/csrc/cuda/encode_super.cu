// Encoders of the types with super-blocks.
#include "encode_kernel.cuh"

namespace qk {
namespace cuda {
namespace {

constexpr EncodeEntry kTable[] = {
    encode_entry<lanes::Q2_K>(), encode_entry<lanes::Q3_K>(), encode_entry<lanes::Q4_K>(),
    encode_entry<lanes::Q5_K>(), encode_entry<lanes::Q6_K>(), encode_entry<lanes::IQ4_XS>(),
    {-1, 0, 0, nullptr},
};

}  // namespace

extern const EncodeEntry* const super_encoders = kTable;

}  // namespace cuda
}  // namespace qk
