// Converts arguments and releases the GIL; meaning and checks: monolith/embedding/verbs.py.
#include "table/table.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "optimizer/kernels.h"

namespace nb = nanobind;
using namespace nb::literals;
using monolith::NonFinite;
using monolith::SegmentSpec;
using monolith::Table;
using monolith::TableSpec;

namespace {

using Address = uintptr_t;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

Table::Columns columns_at(Address times, const std::vector<Address>& columns,
                          const std::vector<uint32_t>& sizes) {
  Table::Columns result{at<int64_t>(times), {}, sizes};
  for (const Address column : columns) result.data.push_back(at<float>(column));
  return result;
}

using Segments = std::vector<
    std::tuple<uint32_t, std::string, std::vector<std::pair<std::string, float>>, float, float>>;

void construct(Table* self, std::string name, const Segments& segments, uint64_t seed,
               const std::string& non_finite, float clip_value) {
  TableSpec spec{std::move(name), {}, seed, NonFinite::kRefuse, clip_value};
  for (const auto& [dim, optimizer, options, minval, maxval] : segments) {
    spec.segments.push_back(SegmentSpec{dim, optimizer, options, minval, maxval});
  }
  if (non_finite == "skip") spec.non_finite = NonFinite::kSkip;
  if (non_finite == "clip") spec.non_finite = NonFinite::kClip;
  new (self) Table(spec);
}

using Numbers = nb::typed<nb::dict, nb::str, nb::int_>;

Numbers stats(Table& table) {
  const auto& c = table.counters();
  Numbers result;
  result["num_rows"] = table.num_rows();
  result["num_inserted"] = c.inserted.load();
  result["num_erased"] = c.erased.load();
  result["num_refused"] = 0;
  result["num_skipped"] = c.skipped.load();
  result["num_rebuilds"] = table.index_counters().rebuilds.load();
  result["num_splits"] = table.index_counters().splits.load();
  result["reader_retries"] = c.reader_retries.load();
  result["reader_waits"] = c.reader_waits.load();
  result["reader_wait_max_ns"] = c.reader_wait_max_ns.load();
  return result;
}

Numbers memory_report(Table& table) {
  Numbers result;
  result["row_bytes"] = table.row_bytes();
  result["index_bytes"] = table.index_bytes();
  result["total_bytes"] = table.row_bytes() + table.index_bytes() + sizeof(Table);
  return result;
}

void bind_reads(nb::class_<Table>& table) {
  table.def(
      "lookup",
      [](const Table& self, Address keys, size_t n, Address out, bool initial, unsigned threads) {
        self.lookup(at<int64_t>(keys), n, at<float>(out), initial, threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "out"_a, "initial"_a, "threads"_a);
  table.def(
      "contains",
      [](const Table& self, Address keys, size_t n, Address out, unsigned threads) {
        self.contains(at<int64_t>(keys), n, at<bool>(out), threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "out"_a, "threads"_a);
  table.def(
      "entries",
      [](const Table& self, Address keys, size_t n, Address present, Address times,
         const std::vector<Address>& columns, const std::vector<uint32_t>& sizes,
         unsigned threads) {
        self.entries(at<int64_t>(keys), n, at<bool>(present), columns_at(times, columns, sizes),
                     threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "present"_a, "times"_a, "columns"_a, "sizes"_a, "threads"_a);
  table.def(
      "export_rows",
      [](Table& self, uint64_t first, uint64_t last, size_t limit, Address keys, Address times,
         const std::vector<Address>& columns, const std::vector<uint32_t>& sizes) {
        return self.export_rows(first, last, limit, at<int64_t>(keys),
                                columns_at(times, columns, sizes));
      },
      ReleaseGil(), "first"_a, "last"_a, "limit"_a, "keys"_a, "times"_a, "columns"_a, "sizes"_a);
  table.def("__len__", &Table::num_rows);
  table.def("stats", stats);
  table.def("memory_report", memory_report);
}

void bind_writes(nb::class_<Table>& table) {
  table.def(
      "lookup_or_insert",
      [](Table& self, Address keys, size_t n, Address out, uint32_t now, unsigned threads) {
        self.lookup_or_insert(at<int64_t>(keys), n, at<float>(out), now, threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "out"_a, "now"_a, "threads"_a);
  table.def(
      "assign",
      [](Table& self, Address keys, size_t n, Address values, uint32_t now, unsigned threads) {
        self.assign(at<int64_t>(keys), n, at<float>(values), now, threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "values"_a, "now"_a, "threads"_a);
  table.def(
      "assign_add",
      [](Table& self, Address keys, size_t n, Address values, uint32_t now, unsigned threads) {
        self.assign_add(at<int64_t>(keys), n, at<float>(values), now, threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "values"_a, "now"_a, "threads"_a);
  table.def(
      "apply_gradients",
      [](Table& self, Address keys, size_t n, Address grads, const std::vector<float>& rates,
         int64_t step, uint32_t now, unsigned threads) {
        const auto counts = self.apply_gradients(at<int64_t>(keys), n, at<float>(grads),
                                                 rates.data(), step, now, threads);
        return std::make_tuple(counts.applied, counts.inserted, counts.refused, counts.skipped);
      },
      ReleaseGil(), "keys"_a, "n"_a, "grads"_a, "rates"_a, "step"_a, "now"_a, "threads"_a);
  table.def(
      "reinitialize",
      [](Table& self, Address keys, size_t n, Address existed, uint32_t now, unsigned threads) {
        self.reinitialize(at<int64_t>(keys), n, at<int32_t>(existed), now, threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "existed"_a, "now"_a, "threads"_a);
  table.def(
      "erase",
      [](Table& self, Address keys, size_t n, Address existed, unsigned threads) {
        self.erase(at<int64_t>(keys), n, at<bool>(existed), threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "existed"_a, "threads"_a);
  table.def(
      "import_rows",
      [](Table& self, Address keys, size_t n, Address times, const std::vector<Address>& columns,
         const std::vector<uint32_t>& sizes, unsigned threads) {
        self.import_rows(at<int64_t>(keys), n, columns_at(times, columns, sizes), threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "times"_a, "columns"_a, "sizes"_a, "threads"_a);
  table.def("clear", &Table::clear, ReleaseGil());
  table.def("set_memory_limit", &Table::set_memory_limit, "limit_bytes"_a);
}

}  // namespace

void init_table(nb::module_& module) {
  nb::class_<Table> table(module, "Table");
  table.def("__init__", construct, "name"_a, "segments"_a, "seed"_a, "non_finite"_a,
            "clip_value"_a);
  bind_reads(table);
  bind_writes(table);
  module.def("kernels_name", [] { return monolith::kernels().name; });
}
