// Converts arguments and releases the GIL; meaning: record_decoder.h and decode_ahead.h of
// native/io.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "io/decode_ahead.h"
#include "io/record_decoder.h"

namespace nb = nanobind;
using namespace nb::literals;
using monolith::ColumnSpec;
using monolith::DecodeAhead;
using monolith::RecordBlock;
using monolith::RecordDecoder;

namespace {

// Name, whether ids, width, fill, whether the first of more floats are taken, whether one id each.
using Spec = std::tuple<std::string, bool, uint32_t, std::optional<float>, bool, bool>;
// Addresses of values and of row splits; number of values; whether each row has exactly one id.
using Buffers = std::tuple<uintptr_t, uintptr_t, size_t, bool>;
// Record, byte, row or -1, text, reason.
using Bad = std::tuple<size_t, size_t, int64_t, std::string, std::string>;

// Owns a DecodeAhead and keeps alive the bytes that it decodes. Members are destroyed in reverse
// order, so the thread ends first.
struct OwningDecoder {
  explicit OwningDecoder(RecordDecoder& decoder) : ahead(decoder) {}
  nb::object owner;
  DecodeAhead ahead;
};

constexpr size_t kMaxBytes = INT32_MAX;

ColumnSpec to_spec(const Spec& spec) {
  const auto& [name, is_ids, width, fill, takes_first, is_one_each] = spec;
  return {name, is_ids, width, fill.has_value(), fill.value_or(0.0f), takes_first, is_one_each};
}

void make(RecordDecoder* decoder, const std::vector<Spec>& specs, int type, int framing,
          size_t max_bytes, bool keeps_fid_v1, bool skips) {
  if (max_bytes > kMaxBytes) {
    throw std::invalid_argument("[data] expected max_record_bytes of at most " +
                                std::to_string(kMaxBytes) + ", got " + std::to_string(max_bytes));
  }
  std::vector<ColumnSpec> columns;
  for (const Spec& spec : specs) columns.push_back(to_spec(spec));
  monolith::FrameOptions frames;
  frames.is_tfrecord = (framing & 1) != 0;
  frames.lagrangex_header = (framing & 2) != 0;
  frames.kafka_dump_prefix = (framing & 4) != 0;
  frames.has_sort_id = (framing & 8) != 0;
  frames.kafka_dump = (framing & 16) != 0;
  frames.checks_crc = (framing & 32) == 0;
  frames.max_bytes = max_bytes;
  const monolith::DecoderOptions options{static_cast<monolith::RecordType>(type), keeps_fid_v1,
                                         !skips};
  new (decoder) RecordDecoder(columns, options, frames);
}

std::vector<Buffers> buffers_of(const RecordBlock& block) {
  const size_t rows = block.columns.num_rows;
  std::vector<Buffers> buffers;
  for (const monolith::Column& column : block.columns.columns) {
    if (column.spec.is_ids) {
      buffers.emplace_back(reinterpret_cast<uintptr_t>(column.ids.data()),
                           reinterpret_cast<uintptr_t>(column.splits.data()), column.ids.size(),
                           column.has_one_each(rows));
    } else {
      buffers.emplace_back(reinterpret_cast<uintptr_t>(column.floats.data()), 0,
                           rows * column.spec.width, false);
    }
  }
  return buffers;
}

std::vector<Bad> bad_of(const RecordBlock& block) {
  std::vector<Bad> bad_records;
  for (const auto& bad : block.bad) {
    bad_records.emplace_back(bad.record, bad.at, bad.row, bad.text, bad.reason);
  }
  return bad_records;
}

}  // namespace

void init_records(nb::module_& module) {
  nb::class_<RecordBlock>(module, "RecordBlock")
      .def_prop_ro("num_rows", [](const RecordBlock& block) { return block.columns.num_rows; })
      .def_ro("num_records", &RecordBlock::num_records)
      .def_ro("consumed", &RecordBlock::consumed)
      .def_ro("needed", &RecordBlock::needed)
      .def_ro("broken", &RecordBlock::broken)
      .def_ro("broken_at", &RecordBlock::broken_at)
      .def_prop_ro("bad", &bad_of)
      .def("buffers", &buffers_of);
  nb::class_<RecordDecoder>(module, "RecordDecoder")
      .def("__init__", &make, "specs"_a, "kind"_a, "framing"_a, "max_bytes"_a, "keeps_fid_v1"_a,
           "skips"_a)
      .def(
          "decode",
          [](RecordDecoder& decoder, uintptr_t data, size_t size) {
            return decoder.decode(reinterpret_cast<const uint8_t*>(data), size);
          },
          nb::call_guard<nb::gil_scoped_release>(), "data"_a, "size"_a)
      .def(
          "spans",
          [](const RecordDecoder& decoder, uintptr_t data, size_t size, size_t most) {
            return decoder.spans(reinterpret_cast<const uint8_t*>(data), size, most);
          },
          nb::call_guard<nb::gil_scoped_release>(), "data"_a, "size"_a, "most"_a)
      .def(
          "decode_split",
          [](RecordDecoder& decoder, uintptr_t data, uintptr_t splits, size_t n) {
            return decoder.decode_split(reinterpret_cast<const uint8_t*>(data),
                                        reinterpret_cast<const int64_t*>(splits), n);
          },
          nb::call_guard<nb::gil_scoped_release>(), "data"_a, "splits"_a, "n"_a);
  nb::class_<OwningDecoder>(module, "DecodeAhead")
      .def(nb::init<RecordDecoder&>(), nb::keep_alive<1, 2>(), "decoder"_a)
      .def(
          "start",
          [](OwningDecoder& decoder, uintptr_t data, size_t size, nb::object owner) {
            decoder.ahead.start(reinterpret_cast<const uint8_t*>(data), size);
            decoder.owner = std::move(owner);
          },
          "data"_a, "size"_a, "owner"_a)
      .def(
          "wait", [](OwningDecoder& decoder) { return decoder.ahead.wait(); },
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("num_blocks",
                   [](const OwningDecoder& decoder) { return decoder.ahead.num_blocks(); });
  module.def(
      "masked_crc32c",
      [](uintptr_t data, size_t n) {
        return monolith::masked_crc32c(reinterpret_cast<const void*>(data), n);
      },
      nb::call_guard<nb::gil_scoped_release>(), "data"_a, "n"_a);
}
