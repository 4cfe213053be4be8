// Converts arguments and releases the GIL; meaning and checks: monolith/optim/dense_step.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "ops/dense_step.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Addresses = std::vector<uintptr_t>;

template <typename T>
std::span<T* const> pointers(const Addresses& addresses) {
  return {reinterpret_cast<T* const*>(addresses.data()), addresses.size()};
}

}  // namespace

void init_dense(nb::module_& module) {
  module.def(
      "dense_step",
      [](const std::string& rule, const Addresses& parameters, const Addresses& gradients,
         const Addresses& states, const std::vector<int64_t>& sizes,
         const std::vector<float>& options, float rate, unsigned threads) {
        const monolith::DenseTensors tensors{pointers<float>(parameters),
                                             pointers<const float>(gradients),
                                             pointers<float>(states), sizes};
        monolith::dense_step(rule, tensors, options, rate, threads);
      },
      nb::call_guard<nb::gil_scoped_release>(), "rule"_a, "parameters"_a, "gradients"_a, "states"_a,
      "sizes"_a, "options"_a, "rate"_a, "threads"_a);
}
