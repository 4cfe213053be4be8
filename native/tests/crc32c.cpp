// CRC-32C: published vectors, and all kernels against each other.
#include "io/crc32c.h"

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"

using namespace monolith;

namespace {

uint32_t crc_of(const Crc32cKernel& kernel, const void* data, size_t n) {
  return ~kernel.extend(~uint32_t{0}, static_cast<const unsigned char*>(data), n);
}

// RFC 3720 appendix B.4, and the check value of the catalogue of CRC algorithms.
void check_published_vectors(const Crc32cKernel& kernel) {
  std::vector<unsigned char> bytes(32, 0);
  CHECK(crc_of(kernel, bytes.data(), 32) == 0x8a9136aa);
  bytes.assign(32, 0xff);
  CHECK(crc_of(kernel, bytes.data(), 32) == 0x62a8ab43);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  CHECK(crc_of(kernel, bytes.data(), 32) == 0x46dd794e);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<unsigned char>(31 - i);
  CHECK(crc_of(kernel, bytes.data(), 32) == 0x113fdb5c);
  CHECK(crc_of(kernel, "123456789", 9) == 0xe3069283);
  CHECK(crc_of(kernel, "", 0) == 0);
}

void check_kernels_agree() {
  std::mt19937_64 random(1);
  std::vector<unsigned char> bytes(20'000);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  const auto kernels = all_crc32c_kernels();
  for (int i = 0; i < 2000; ++i) {
    const size_t first = random() % 64, n = random() % (bytes.size() - 64);
    const uint32_t expected = crc_of(kernels.front(), bytes.data() + first, n);
    for (const auto& kernel : kernels) CHECK(crc_of(kernel, bytes.data() + first, n) == expected);
    const size_t middle = n == 0 ? 0 : random() % n;
    const uint32_t old = crc32c(bytes.data() + first, middle);
    CHECK(crc32c(bytes.data() + first + middle, n - middle, old) == expected);
  }
}

}  // namespace

int main() {
  for (const auto& kernel : all_crc32c_kernels()) check_published_vectors(kernel);
  check_kernels_agree();
}
