#include "optimizer/kernels.h"

#include <array>
#include <stdexcept>

namespace monolith {

namespace baseline {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

namespace {

template <typename Kernel>
const Kernel& find(std::span<const Kernel> list, const char* what, const std::string& name) {
  for (const Kernel& kernel : list) {
    if (name == kernel.name) return kernel;
  }
  throw std::invalid_argument(std::string("[Layout] expected a known ") + what + ", got '" + name +
                              "'");
}

}  // namespace

const OptimizerKernel& find_kernel(std::span<const OptimizerKernel> list, const std::string& name) {
  return find(list, "optimizer", name);
}
const CodecKernel& find_kernel(std::span<const CodecKernel> list, const std::string& name) {
  return find(list, "codec", name);
}
const ViewKernel& find_kernel(std::span<const ViewKernel> list, const std::string& name) {
  return find(list, "view", name);
}

std::span<const Kernels* const> all_kernels() noexcept {
#if MONOLITH_X86
  static constexpr std::array kAll{&baseline::kKernels, &avx2::kKernels, &avx512::kKernels};
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  return {kAll.data(), has_avx512 && has_avx2 ? size_t{3} : has_avx2 ? size_t{2} : size_t{1}};
#else
  static constexpr std::array kAll{&baseline::kKernels};
  return kAll;
#endif
}

const Kernels& kernels() noexcept { return *all_kernels().back(); }

}  // namespace monolith
