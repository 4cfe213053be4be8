// Converts arguments and releases the GIL; meaning: native/compat/pack.h.
#include "compat/pack.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

void init_pack(nb::module_& module) {
  module.def(
      "pack_buffers",
      [](const std::vector<uintptr_t>& buffers, const std::vector<size_t>& sizes, uintptr_t out) {
        monolith::pack_buffers(buffers, sizes, reinterpret_cast<char*>(out));
      },
      nb::call_guard<nb::gil_scoped_release>(), "buffers"_a, "sizes"_a, "out"_a);
  module.def(
      "fused_value_rowids",
      [](uintptr_t splits, size_t num_splits, uintptr_t out, size_t num_values) {
        monolith::value_rowids(reinterpret_cast<const int64_t*>(splits), num_splits,
                               reinterpret_cast<int64_t*>(out), num_values);
      },
      nb::call_guard<nb::gil_scoped_release>(), "row_splits"_a, "num_splits"_a, "out"_a,
      "num_values"_a);
}
