// Converts arguments and releases the GIL; meaning: the headers of native/io.
#include <nanobind/nanobind.h>

#include "io/crc32c.h"
#include "io/string_hash.h"
#include "io/writeback.h"

namespace nb = nanobind;
using namespace nb::literals;

void init_io(nb::module_& module) {
  module.def(
      "crc32c",
      [](uintptr_t data, size_t n, uint32_t before) {
        return monolith::crc32c(reinterpret_cast<const void*>(data), n, before);
      },
      nb::call_guard<nb::gil_scoped_release>(), "data"_a, "n"_a, "before"_a);
  module.def("start_writeback", &monolith::start_writeback,
             nb::call_guard<nb::gil_scoped_release>(), "file"_a, "offset"_a, "num_bytes"_a);
  module.def(
      "hash_strings",
      [](uintptr_t bytes, uintptr_t splits, size_t n, uint64_t seed, uintptr_t out) {
        monolith::hash_strings(reinterpret_cast<const uint8_t*>(bytes),
                               reinterpret_cast<const int64_t*>(splits), n, seed,
                               reinterpret_cast<int64_t*>(out));
      },
      nb::call_guard<nb::gil_scoped_release>(), "data"_a, "splits"_a, "n"_a, "seed"_a, "out"_a);
}
