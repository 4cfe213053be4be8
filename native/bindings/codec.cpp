// Converts arguments and releases the GIL; meaning and checks: monolith/table/codecs.py.
#include "ops/codec.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;
using namespace nb::literals;

void init_codec(nb::module_& module) {
  using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;
  module.def(
      "encode",
      [](const std::string& codec, uintptr_t weights, size_t n, size_t dim, uintptr_t codes,
         float parameter) {
        monolith::encode_rows(codec, reinterpret_cast<const float*>(weights), n, dim,
                              reinterpret_cast<char*>(codes), parameter);
      },
      ReleaseGil(), "codec"_a, "weights"_a, "n"_a, "dim"_a, "codes"_a, "parameter"_a);
  module.def(
      "decode",
      [](const std::string& codec, uintptr_t codes, size_t n, size_t dim, uintptr_t weights,
         float parameter) {
        monolith::decode_rows(codec, reinterpret_cast<const char*>(codes), n, dim,
                              reinterpret_cast<float*>(weights), parameter);
      },
      ReleaseGil(), "codec"_a, "codes"_a, "n"_a, "dim"_a, "weights"_a, "parameter"_a);
}
