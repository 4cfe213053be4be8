// Converts arguments and releases the GIL; meaning and checks: monolith/table/base.py.
#include "table/table.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <string>

#include "optimizer/kernels.h"

namespace nb = nanobind;
using namespace nb::literals;
using monolith::AdmissionKind;
using monolith::AdmissionSpec;
using monolith::BagPiece;
using monolith::Bags;
using monolith::BudgetPolicy;
using monolith::Cut;
using monolith::GradientSum;
using monolith::NonFinite;
using monolith::PoolMode;
using monolith::Recorder;
using monolith::SegmentSpec;
using monolith::SlotValues;
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
  for (const Address column : columns) result.data.push_back(at<char>(column));
  return result;
}

using Named = std::pair<std::string, float>;  // a codec or view and its parameter

void construct_segment(SegmentSpec* self, uint32_t dim, std::string optimizer,
                       std::vector<Named> options, std::pair<float, float> initial, bool is_normal,
                       Named codec, Named view) {
  new (self) SegmentSpec{
      dim,       std::move(optimizer), std::move(options), initial.first, initial.second,
      is_normal, codec.first,          codec.second,       view.first,    view.second};
}

// (kind, threshold, slots, max_bytes, ttl_seconds, capacity, split_num, is_equal)
using AdmissionTuple =
    std::tuple<std::string, uint32_t, SlotValues, uint64_t, uint32_t, uint64_t, uint32_t, bool>;

AdmissionSpec admission_spec(const AdmissionTuple& tuple) {
  const auto& [name, threshold, slots, max_bytes, ttl, capacity, split_num, is_equal] = tuple;
  const AdmissionKind kind = name == "MinCount"        ? AdmissionKind::kMinCount
                             : name == "SlidingFilter" ? AdmissionKind::kSlidingFilter
                             : name == "Probabilistic" ? AdmissionKind::kProbabilistic
                                                       : AdmissionKind::kNone;
  return {kind, threshold, slots, max_bytes, ttl, capacity, split_num, is_equal};
}

void construct(Table* self, std::string name, std::vector<SegmentSpec> segments, uint64_t seed,
               bool is_serving, const std::string& non_finite, float clip_value,
               const AdmissionTuple& admission, const std::pair<uint32_t, SlotValues>& expiry,
               const std::pair<uint64_t, std::string>& budget, uint64_t log_bytes, bool records,
               uint32_t first_generation) {
  TableSpec spec;
  spec.name = std::move(name);
  spec.segments = std::move(segments);
  spec.seed = seed;
  spec.is_serving = is_serving;
  spec.clip_value = clip_value;
  if (non_finite == "skip") spec.non_finite = NonFinite::kSkip;
  if (non_finite == "clip") spec.non_finite = NonFinite::kClip;
  spec.admission = admission_spec(admission);
  std::tie(spec.expiry_days, spec.expiry_slots) = expiry;
  spec.budget_bytes = budget.first;
  if (budget.second == "evict_oldest") spec.budget_policy = BudgetPolicy::kEvictOldest;
  if (budget.second == "evict_least_frequent") {
    spec.budget_policy = BudgetPolicy::kEvictLeastFrequent;
  }
  spec.log_bytes = log_bytes;
  spec.records = records;
  spec.first_generation = first_generation;
  new (self) Table(spec);
}

// Numbers that Python reads as a tensor. The memory is first touched without the GIL, because
// millions of numbers would block every other Python thread.
template <typename T>
nb::bytearray as_bytes(const std::vector<T>& values) {
  const size_t num_bytes = values.size() * sizeof(T);
  nb::bytearray result(nullptr, num_bytes);
  void* data = result.data();
  const nb::gil_scoped_release release;
  if (num_bytes > 0) std::memcpy(data, values.data(), num_bytes);
  return result;
}

using Numbers = nb::typed<nb::dict, nb::str, nb::int_>;

Numbers stats(Table& table) {
  const auto& c = table.counters();
  Numbers result;
  result["num_rows"] = table.num_rows();
  result["num_inserted"] = c.inserted.load();
  result["num_erased"] = c.erased.load();
  result["num_evicted"] = c.evicted.load();
  result["num_evicted_for_budget"] = c.evicted_for_budget.load();
  result["num_refused"] = c.refused.load();
  result["num_skipped"] = c.skipped.load();
  const auto facts = table.admission_facts();
  result["num_candidates"] = facts.candidates;
  result["num_dropped_candidates"] = facts.dropped;
  result["num_filter_overflows"] = facts.overflows;
  result["num_rebuilds"] = table.index_counters().rebuilds.load();
  result["num_splits"] = table.index_counters().splits.load();
  result["lock_waits"] = table.index_counters().lock_waits.load();
  result["lock_wait_max_ns"] = table.index_counters().lock_wait_max_ns.load();
  result["reader_retries"] = c.reader_retries.load();
  result["reader_waits"] = c.reader_waits.load();
  result["reader_wait_max_ns"] = c.reader_wait_max_ns.load();
  return result;
}

Numbers memory_report(Table& table) {
  Numbers result;
  result["row_bytes"] = table.row_bytes();
  result["index_bytes"] = table.index_bytes();
  result["candidate_bytes"] = table.candidate_bytes();
  result["cut_bytes"] = table.cut_bytes();
  result["log_bytes"] = table.log_bytes();
  result["spare_log_bytes"] = table.spare_log_bytes();
  result["total_bytes"] =
      table.row_bytes() + table.index_bytes() + table.candidate_bytes() + sizeof(Table);
  return result;
}

// (keys, num_keys, row_splits or 0, num_bags, mode, weights or 0)
using BagsTuple = std::tuple<Address, size_t, Address, size_t, std::string, Address>;

Bags bags_of(const BagsTuple& tuple) {
  const auto& [keys, num_keys, row_splits, num_bags, name, weights] = tuple;
  const PoolMode mode = name == "mean"    ? PoolMode::kMean
                        : name == "sqrtn" ? PoolMode::kSqrtn
                        : name == "max"   ? PoolMode::kMax
                                          : PoolMode::kSum;
  const size_t width = num_bags == 0 ? 0 : num_keys / num_bags;
  return {at<int64_t>(keys),  num_keys, at<int64_t>(row_splits), num_bags, mode,
          at<float>(weights), width};
}

// Belongs to no table, so the splits are not checked elsewhere before their use.
const Bags& checked(const Bags& bags) {
  if (bags.are_splits_valid()) return bags;
  throw std::invalid_argument("[Bags] expected row_splits from 0 to " +
                              std::to_string(bags.num_keys) + ", ascending, got others");
}

// (bags, gradients, winners or 0)
using PieceTuple = std::tuple<BagsTuple, Address, Address>;

std::vector<BagPiece> pieces_of(const std::vector<PieceTuple>& tuples, size_t dim) {
  std::vector<BagPiece> pieces;
  for (const auto& [bags, grads, winners] : tuples) {
    pieces.push_back({bags_of(bags), {at<float>(grads), dim}, at<int32_t>(winners)});
  }
  return pieces;
}

void bind_bags(nb::class_<Table>& table) {
  table.def(
      "lookup_bags",
      [](const Table& self, const BagsTuple& bags, Address out, Address winners, bool initial,
         const std::vector<float>& scales, unsigned threads) {
        self.lookup_bags(bags_of(bags), {initial, scales.data()}, at<float>(out),
                         at<int32_t>(winners), threads);
      },
      ReleaseGil(), "bags"_a, "out"_a, "winners"_a, "initial"_a, "scales"_a, "threads"_a);
  table.def(
      "bag_weight_gradients",
      [](const Table& self, const BagsTuple& bags, Address grads, Address out, bool initial,
         const std::vector<float>& scales, unsigned threads) {
        self.bag_weight_gradients(bags_of(bags), {initial, scales.data()}, at<float>(grads),
                                  at<float>(out), threads);
      },
      ReleaseGil(), "bags"_a, "grads"_a, "out"_a, "initial"_a, "scales"_a, "threads"_a);
}

void bind_bags_alone(nb::module_& module) {
  module.def(
      "pool_rows",
      [](const BagsTuple& bags, Address rows, size_t dim, Address out, Address winners,
         unsigned threads) {
        monolith::pool_rows(checked(bags_of(bags)), at<float>(rows), dim, at<float>(out),
                            at<int32_t>(winners), threads);
      },
      ReleaseGil(), "bags"_a, "rows"_a, "dim"_a, "out"_a, "winners"_a, "threads"_a);
  nb::class_<GradientSum>(module, "GradientSum")
      .def(
          "__init__",
          [](GradientSum* self, const std::vector<PieceTuple>& tuples, size_t dim,
             unsigned threads) {
            std::vector<BagPiece> pieces = pieces_of(tuples, dim);
            for (const BagPiece& piece : pieces) checked(piece.bags);
            new (self) GradientSum(pieces, dim, monolith::kernels(), 0, 0, threads);
          },
          ReleaseGil(), "pieces"_a, "dim"_a, "threads"_a)
      .def_prop_ro("norm", &GradientSum::norm)
      .def(
          "write_out",
          [](const GradientSum& self, Address out) {
            self.grads().write_out(monolith::kernels(), at<float>(out));
          },
          ReleaseGil(), "out"_a);
}

void bind_bag_gradients(nb::class_<Table>& table) {
  table.def(
      "apply_bag_gradients",
      [](Table& self, GradientSum& sum, const std::vector<float>& rates,
         const std::vector<float>& scales, int64_t step, uint32_t now, unsigned threads) {
        const auto counts =
            self.apply_bag_gradients(sum, {rates.data(), scales.data(), step}, now, threads);
        return std::make_tuple(counts.applied, counts.inserted, counts.refused, counts.skipped);
      },
      ReleaseGil(), "summed"_a, "rates"_a, "scales"_a, "step"_a, "now"_a, "threads"_a);
  table.def(
      "sum_bag_gradients",
      [](const Table& self, const std::vector<PieceTuple>& pieces, unsigned threads) {
        return new GradientSum(
            self.sum_bag_gradients(pieces_of(pieces, self.layout().dim()), threads));
      },
      ReleaseGil(), "pieces"_a, "threads"_a);
}

void bind_reads(nb::class_<Table>& table) {
  table.def(
      "lookup",
      [](const Table& self, Address keys, size_t n, Address out, bool initial,
         const std::vector<float>& scales, unsigned threads) {
        self.lookup(at<int64_t>(keys), n, at<float>(out), initial, scales.data(), threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "out"_a, "initial"_a, "scales"_a, "threads"_a);
  table.def(
      "contains",
      [](const Table& self, Address keys, size_t n, Address out, unsigned threads) {
        self.contains(at<int64_t>(keys), n, at<bool>(out), threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "out"_a, "threads"_a);
  table.def(
      "entries",
      [](const Table& self, Address keys, size_t n, Address present, Address times,
         const std::vector<Address>& columns, const std::vector<uint32_t>& sizes, unsigned threads,
         Cut* cut) {
        self.entries(at<int64_t>(keys), n, at<bool>(present), columns_at(times, columns, sizes),
                     threads, cut);
      },
      ReleaseGil(), "keys"_a, "n"_a, "present"_a, "times"_a, "columns"_a, "sizes"_a, "threads"_a,
      "cut"_a.none() = nb::none());
  table.def(
      "export_rows",
      [](Table& self, uint64_t first, uint64_t last, size_t limit, Address keys, Address times,
         const std::vector<Address>& columns, const std::vector<uint32_t>& sizes, Cut* cut) {
        return self.export_rows(first, last, limit, at<int64_t>(keys),
                                columns_at(times, columns, sizes), cut);
      },
      ReleaseGil(), "first"_a, "last"_a, "limit"_a, "keys"_a, "times"_a, "columns"_a, "sizes"_a,
      "cut"_a.none() = nb::none());
  table.def("__len__", &Table::num_rows);
  table.def("stats", stats);
  table.def("memory_report", memory_report);
}

void bind_writes(nb::class_<Table>& table) {
  table.def(
      "lookup_or_insert",
      [](Table& self, Address keys, size_t n, Address out, const std::vector<float>& scales,
         uint32_t now, unsigned threads) {
        self.lookup_or_insert(at<int64_t>(keys), n, at<float>(out), scales.data(), now, threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "out"_a, "scales"_a, "now"_a, "threads"_a);
  table.def(
      "assign",
      [](Table& self, Address keys, size_t n, Address values, uint32_t now, unsigned threads,
         Address absent) {
        self.assign(at<int64_t>(keys), n, at<float>(values), now, threads, at<uint8_t>(absent));
      },
      ReleaseGil(), "keys"_a, "n"_a, "values"_a, "now"_a, "threads"_a, "absent"_a);
  table.def(
      "assign_add",
      [](Table& self, Address keys, size_t n, Address values, uint32_t now, unsigned threads) {
        self.assign_add(at<int64_t>(keys), n, at<float>(values), now, threads);
      },
      ReleaseGil(), "keys"_a, "n"_a, "values"_a, "now"_a, "threads"_a);
  table.def(
      "apply_gradients",
      [](Table& self, Address keys, size_t n, Address grads, const std::vector<float>& rates,
         const std::vector<float>& scales, int64_t step, uint32_t now, unsigned threads,
         Address occurrences) {
        const auto counts = self.apply_gradients(at<int64_t>(keys), n, at<float>(grads),
                                                 {rates.data(), scales.data(), step}, now, threads,
                                                 at<int32_t>(occurrences));
        return std::make_tuple(counts.applied, counts.inserted, counts.refused, counts.skipped);
      },
      ReleaseGil(), "keys"_a, "n"_a, "grads"_a, "rates"_a, "scales"_a, "step"_a, "now"_a,
      "threads"_a, "occurrences"_a = 0);
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
         const std::vector<uint32_t>& sizes, unsigned threads, Address absent) {
        self.import_rows(at<int64_t>(keys), n, columns_at(times, columns, sizes), threads,
                         at<uint8_t>(absent));
      },
      ReleaseGil(), "keys"_a, "n"_a, "times"_a, "columns"_a, "sizes"_a, "threads"_a, "absent"_a);
  table.def(
      "fill_rows",
      [](Table& self, Address keys, size_t n, Address times, const std::vector<Address>& columns,
         const std::vector<uint32_t>& sizes) {
        self.fill_rows(at<int64_t>(keys), n, columns_at(times, columns, sizes));
      },
      ReleaseGil(), "keys"_a, "n"_a, "times"_a, "columns"_a, "sizes"_a);
  table.def("expect_rows", &Table::expect_rows, ReleaseGil(), "n"_a);
  table.def("clear", &Table::clear, ReleaseGil());
  table.def_prop_rw("num_update_calls", &Table::num_update_calls, &Table::set_num_update_calls);
  table.def_prop_rw("latest_time", &Table::latest_time, &Table::set_latest_time);
  table.def("set_memory_limit", &Table::set_memory_limit, "limit_bytes"_a);
}

void bind_retention(nb::class_<Table>& table) {
  table.def("evict", &Table::evict, ReleaseGil(), "reference"_a);
  table.def(
      "evict_slice",
      [](Table& self, uint64_t first, uint32_t reference) {
        const auto [count, next] = self.evict_slice(first, reference);
        return std::make_pair(count, next);
      },
      ReleaseGil(), "first"_a, "reference"_a);
  table.def(
      "export_candidates",
      [](Table& self, const std::vector<uint32_t>& partitions, Cut* cut) {
        std::vector<int64_t> values;
        {
          const nb::gil_scoped_release release;
          values = self.export_candidates(partitions, cut);
        }
        return as_bytes(values);
      },
      "partitions"_a, "cut"_a.none() = nb::none());
  table.def(
      "import_candidates",
      [](Table& self, Address values, size_t n) { self.import_candidates(at<int64_t>(values), n); },
      ReleaseGil(), "values"_a, "n"_a);
}

// (is_full, keys, tombstones) of a read that runs without the GIL.
template <typename Read>
auto changes_tuple(const Read& read) {
  Table::Changes changes;
  {
    const nb::gil_scoped_release release;
    changes = read();
  }
  return std::make_tuple(changes.is_full, as_bytes(changes.present), as_bytes(changes.gone));
}

void bind_changes(nb::class_<Table>& table) {
  // A cut frees its memory through the table, so the table must outlive the cut.
  table.def(
      "open_cut",
      [](Table& self, const std::optional<std::string>& cursor) {
        return self.open_cut(cursor ? &*cursor : nullptr);
      },
      ReleaseGil(), nb::keep_alive<0, 1>(), "cursor"_a);
  table.def("close_cut", &Table::close_cut, ReleaseGil(), "cut"_a, "is_read"_a);
  table.def_prop_ro("num_cuts", &Table::num_cuts, ReleaseGil());
  table.def(
      "changes",
      [](Table& self, const std::string& cursor, unsigned threads) {
        return changes_tuple([&] { return self.changes(cursor, threads); });
      },
      "cursor"_a, "threads"_a);
  table.def(
      "cut_changes",
      [](Table& self, Cut& cut, unsigned threads) {
        return changes_tuple([&] { return self.changes(cut, threads); });
      },
      "cut"_a, "threads"_a);
  table.def("drop_cursor", &Table::drop_cursor, ReleaseGil(), "cursor"_a);
  table.def("cursors", &Table::cursors);
  // (call, key, kind, number) of every change, if the table records; kind 1: removed.
  table.def("recorded", [](Table& self) {
    return self.recorder() == nullptr ? nb::bytearray() : as_bytes(self.recorder()->events());
  });
}

void bind_cut(nb::module_& module) {
  nb::class_<Cut>(module, "Cut")
      .def_prop_ro("num_rows", [](const Cut& self) { return self.facts().num_rows; })
      .def_prop_ro("num_update_calls",
                   [](const Cut& self) { return self.facts().num_update_calls; })
      .def_prop_ro("num_recorded", [](const Cut& self) { return self.facts().num_recorded; })
      .def_prop_ro("latest_time", [](const Cut& self) { return self.facts().latest_time; })
      .def_prop_ro("num_bytes", &Cut::bytes)
      .def("release", &Cut::release, ReleaseGil(), "partition"_a);
}

}  // namespace

void init_table(nb::module_& module) {
  bind_cut(module);
  nb::class_<SegmentSpec>(module, "SegmentSpec")
      .def("__init__", construct_segment, "dim"_a, "optimizer"_a, "options"_a, "initial"_a,
           "is_normal"_a, "codec"_a, "view"_a);
  nb::class_<Table> table(module, "Table");
  table.def("__init__", construct, "name"_a, "segments"_a, "seed"_a, "is_serving"_a, "non_finite"_a,
            "clip_value"_a, "admission"_a = AdmissionTuple(),
            "expiry"_a = std::pair<uint32_t, SlotValues>(),
            "budget"_a = std::pair<uint64_t, std::string>(UINT64_MAX, "refuse"),
            "log_bytes"_a = uint64_t{64} << 20, "records"_a = false, "first_generation"_a = 1);
  bind_reads(table);
  bind_bags(table);
  bind_bags_alone(module);
  bind_bag_gradients(table);
  bind_writes(table);
  bind_retention(table);
  bind_changes(table);
  module.def("set_recorded_call", Recorder::set_call, "call"_a);
  module.def("kernels_name", [] { return monolith::kernels().name; });
}
