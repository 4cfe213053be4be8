#include "ops/codec.h"

#include "optimizer/kernels.h"

namespace monolith {

void encode_rows(const std::string& codec, const float* weights, size_t n, size_t dim, char* codes,
                 float parameter) {
  const CodecKernel& kernel = find_kernel(kernels().codecs, codec);
  for (size_t i = 0; i < n; ++i) {
    kernel.encode(codes + i * kernel.bytes(dim), weights + i * dim, dim, parameter);
  }
}

void decode_rows(const std::string& codec, const char* codes, size_t n, size_t dim, float* weights,
                 float parameter) {
  const CodecKernel& kernel = find_kernel(kernels().codecs, codec);
  for (size_t i = 0; i < n; ++i) {
    kernel.decode(weights + i * dim, codes + i * kernel.bytes(dim), dim, parameter);
  }
}

}  // namespace monolith
