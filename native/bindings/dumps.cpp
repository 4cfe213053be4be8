// Converts arguments and releases the GIL; meaning: native/io/dump_decoder.h.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>
#include <vector>

#include "io/dump_decoder.h"

namespace nb = nanobind;
using namespace nb::literals;
using monolith::DumpBlock;
using monolith::DumpDecoder;
using monolith::DumpError;

namespace {

// Dim, kind, and of each field of state: size, whether it is an integer.
using Segment = std::tuple<uint32_t, uint32_t, std::vector<std::pair<uint32_t, bool>>>;

void make(DumpDecoder* decoder, const std::vector<Segment>& segments, size_t max_bytes,
          bool has_segments, bool with_state, bool skips_non_finite) {
  std::vector<monolith::DumpSegment> made;
  for (const auto& [dim, kind, fields] : segments) {
    monolith::DumpSegment segment{dim, kind, {}};
    for (const auto& [size, is_integer] : fields) segment.state.push_back({size, is_integer});
    made.push_back(std::move(segment));
  }
  new (decoder)
      DumpDecoder(std::move(made), {max_bytes, has_segments, with_state, skips_non_finite});
}

}  // namespace

void init_dumps(nb::module_& module) {
  nb::class_<DumpError>(module, "DumpError")
      .def_prop_ro("fault", [](const DumpError& error) { return monolith::name_of(error.fault); })
      .def_ro("at", &DumpError::at)
      .def_ro("segment", &DumpError::segment)
      .def_ro("field", &DumpError::field)
      .def_ro("expected", &DumpError::expected)
      .def_ro("got", &DumpError::got);
  nb::class_<DumpBlock>(module, "DumpBlock")
      .def_ro("num_records", &DumpBlock::num_records)
      .def_ro("num_rows", &DumpBlock::num_rows)
      .def_ro("num_non_finite", &DumpBlock::num_non_finite)
      .def_ro("consumed", &DumpBlock::consumed)
      .def_ro("needed", &DumpBlock::needed)
      .def_ro("error", &DumpBlock::error);
  nb::class_<DumpDecoder>(module, "DumpDecoder")
      .def("__init__", &make, "segments"_a, "max_bytes"_a, "has_segments"_a, "with_state"_a,
           "skips_non_finite"_a)
      .def(
          "decode",
          [](const DumpDecoder& decoder, uintptr_t data, size_t size, size_t most, uintptr_t keys,
             uintptr_t times, const std::vector<uintptr_t>& columns) {
            std::vector<void*> addresses;
            for (const uintptr_t column : columns) {
              addresses.push_back(reinterpret_cast<void*>(column));
            }
            return decoder.decode(reinterpret_cast<const uint8_t*>(data), size, most,
                                  reinterpret_cast<int64_t*>(keys),
                                  reinterpret_cast<int64_t*>(times), addresses.data());
          },
          nb::call_guard<nb::gil_scoped_release>(), "data"_a, "size"_a, "most"_a, "keys"_a,
          "times"_a, "columns"_a);
}
