// Converts arguments and releases the GIL; meaning: native/io/crc32c.h.
#include <nanobind/nanobind.h>

#include "io/crc32c.h"

namespace nb = nanobind;
using namespace nb::literals;

void init_io(nb::module_& module) {
  module.def(
      "crc32c",
      [](uintptr_t data, size_t n, uint32_t before) {
        return monolith::crc32c(reinterpret_cast<const void*>(data), n, before);
      },
      nb::call_guard<nb::gil_scoped_release>(), "data"_a, "n"_a, "before"_a);
}
