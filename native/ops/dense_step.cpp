#include "ops/dense_step.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "table/team.h"

namespace monolith {
namespace {

constexpr size_t kMaxStates = 3;
constexpr int64_t kLineFloats = 16;  // members begin on cache lines of a large tensor

const DenseKernel& checked(const std::string& rule, const DenseTensors& tensors, size_t num_options,
                           const Kernels& kernels) {
  const auto kernel = std::find_if(kernels.dense.begin(), kernels.dense.end(),
                                   [&](const DenseKernel& entry) { return rule == entry.name; });
  if (kernel == kernels.dense.end()) {
    throw std::invalid_argument("[dense_step] expected a known rule, got '" + rule + "'");
  }
  const auto check = [](const char* what, size_t expected, size_t got) {
    if (expected != got) {
      throw std::invalid_argument("[dense_step] expected " + std::to_string(expected) + " " + what +
                                  ", got " + std::to_string(got));
    }
  };
  const size_t num_tensors = tensors.parameters.size();
  check("options", kernel->options.size(), num_options);
  check("gradients", num_tensors, tensors.gradients.size());
  check("states", num_tensors * kernel->num_states, tensors.states.size());
  check("sizes", num_tensors, tensors.sizes.size());
  return *kernel;
}

}  // namespace

void dense_step(const std::string& rule, const DenseTensors& tensors,
                std::span<const float> options, float rate, unsigned threads,
                const Kernels& chosen) {
  const DenseKernel& kernel = checked(rule, tensors, options.size(), chosen);
  int64_t total = 0;
  for (const int64_t size : tensors.sizes) total += size;
  Team::run(threads, [&](Team& team, unsigned member) {
    // Updates the elements [begin, end) of all tensors, concatenated.
    const auto cut = [&](int64_t part) {
      return part == team.size() ? total : total / team.size() * part / kLineFloats * kLineFloats;
    };
    const int64_t begin = cut(member), end = cut(member + 1);
    int64_t first = 0;  // index of the first element of the tensor
    for (size_t t = 0; t < tensors.sizes.size() && first < end; ++t) {
      const int64_t from = std::max(begin - first, int64_t{0});
      const int64_t to = std::min(end - first, tensors.sizes[t]);
      if (from < to) {
        float* states[kMaxStates];
        for (size_t s = 0; s < kernel.num_states; ++s) {
          states[s] = tensors.states[s * tensors.sizes.size() + t] + from;
        }
        kernel.step(tensors.parameters[t] + from, tensors.gradients[t] + from, states,
                    static_cast<size_t>(to - from), options.data(), rate);
      }
      first += tensors.sizes[t];
    }
  });
}

}  // namespace monolith
