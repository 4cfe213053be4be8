// Converts arguments and releases the GIL; meaning and checks: native_training/ops/layout.py,
// sharding.py, unique.py, id_groups.py.
#include "compat/layout.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "compat/fid_shards.h"
#include "compat/id_groups.h"
#include "compat/offset_fill.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace monolith;

namespace {

using Address = uintptr_t;
using Addresses = std::vector<Address>;
using Array = std::pair<Address, size_t>;  // address of the first value, number of values
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

template <typename T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}
template <typename T>
std::span<T> span_of(const Array& array) {
  return {at<T>(array.first), array.second};
}
template <typename T>
std::span<T* const> pointers(const Addresses& addresses) {
  return {reinterpret_cast<T* const*>(addresses.data()), addresses.size()};
}

// Dims of features, slices.
using PlanTuple = std::pair<Array, Array>;
LayoutPlan plan_of(const PlanTuple& plan) {
  const auto& [dims, slices] = plan;
  return {span_of<const int64_t>(dims), span_of<const LayoutSlice>(slices)};
}

// fid_offset, feature_offset, nfl_offset, batch size, whether places count rows.
using OffsetsTuple = std::tuple<Array, Array, Array, int64_t, bool>;
LayoutRows rows_of(const OffsetsTuple& offsets, const std::vector<int64_t>& sizes) {
  const auto& [fids, features, nfl, batch_size, is_counted_in_rows] = offsets;
  return {sizes,
          span_of<const uint64_t>(fids),
          span_of<const int32_t>(features),
          span_of<const int64_t>(nfl),
          batch_size,
          is_counted_in_rows};
}

void bind_layout(nb::module_& module) {
  module.def(
      "embeddings_to_layout",
      [](const PlanTuple& plan, const OffsetsTuple& offsets, const Addresses& lists,
         const std::vector<int64_t>& sizes, const Addresses& outputs, unsigned threads) {
        embeddings_to_layout(plan_of(plan), rows_of(offsets, sizes), pointers<const float>(lists),
                             pointers<float>(outputs), threads);
      },
      ReleaseGil(), "plan"_a, "offsets"_a, "lists"_a, "sizes"_a, "outputs"_a, "threads"_a);
  module.def(
      "layout_to_gradients",
      [](const PlanTuple& plan, const OffsetsTuple& offsets, const Addresses& gradients,
         const Addresses& lists, const std::vector<int64_t>& sizes, unsigned threads) {
        layout_to_gradients(plan_of(plan), rows_of(offsets, sizes),
                            pointers<const float>(gradients), pointers<float>(lists), threads);
      },
      ReleaseGil(), "plan"_a, "offsets"_a, "gradients"_a, "lists"_a, "sizes"_a, "threads"_a);
}

void bind_shards(nb::module_& module) {
  module.def(
      "feature_cells",
      [](const Addresses& splits, const std::vector<int64_t>& num_splits,
         const std::vector<int64_t>& sizes, Address cells) {
        return feature_cells(pointers<const int64_t>(splits), num_splits, sizes,
                             at<int32_t>(cells));
      },
      ReleaseGil(), "splits"_a, "num_splits"_a, "sizes"_a, "cells"_a);
  module.def(
      "count_rows",
      [](const Addresses& values, const std::vector<int64_t>& sizes, int64_t num_shards,
         bool is_unique, Address rows, Address counts, unsigned threads) {
        const FeatureIds ids{pointers<const int64_t>(values), sizes, num_shards, is_unique};
        count_rows(ids, at<uint64_t>(rows), at<int64_t>(counts), threads);
      },
      ReleaseGil(), "values"_a, "sizes"_a, "num_shards"_a, "is_unique"_a, "rows"_a, "counts"_a,
      "threads"_a);
  module.def(
      "place_rows",
      [](const Addresses& values, const std::vector<int64_t>& sizes, int64_t num_shards,
         Address places, Address fids, Address codes, unsigned threads) {
        const FeatureIds ids{pointers<const int64_t>(values), sizes, num_shards, false};
        place_rows(ids, at<const ShardPlace>(places), at<int64_t>(fids), at<uint64_t>(codes),
                   threads);
      },
      ReleaseGil(), "values"_a, "sizes"_a, "num_shards"_a, "places"_a, "fids"_a, "codes"_a,
      "threads"_a);
}

// Keys, splits, values of each part.
using PartTuple = std::tuple<Array, Array, Array>;

void bind_fill(nb::module_& module) {
  const auto bind = [&](const char* name, void (*run)(const Fill&, unsigned)) {
    module.def(
        name,
        [run](const std::vector<PartTuple>& parts, const PlanTuple& offsets, const Array& dims,
              const Array& buffer, unsigned threads) {
          Fill fill{{},
                    span_of<const int64_t>(offsets.first),
                    span_of<const int64_t>(offsets.second),
                    span_of<const int64_t>(dims),
                    at<float>(buffer.first),
                    static_cast<int64_t>(buffer.second)};
          for (const auto& [keys, splits, values] : parts) {
            fill.parts.push_back({span_of<const int64_t>(keys), span_of<const int64_t>(splits),
                                  at<float>(values.first), static_cast<int64_t>(values.second)});
          }
          run(fill, threads);
        },
        ReleaseGil(), "parts"_a, "offsets"_a, "dims"_a, "buffer"_a, "threads"_a);
  };
  bind("fill_buffer", fill_buffer);
  bind("sum_from_buffer", sum_from_buffer);
}

void bind_groups(nb::module_& module) {
  module.def(
      "first_seen",
      [](const Array& ids, const Array& row_splits, Address groups, Address firsts,
         Address counts) {
        first_seen(span_of<const int64_t>(ids), span_of<const int64_t>(row_splits),
                   at<int64_t>(groups), at<int64_t>(firsts), at<int64_t>(counts));
      },
      ReleaseGil(), "ids"_a, "row_splits"_a, "groups"_a, "firsts"_a, "counts"_a);
  module.def(
      "bucket_order",
      [](const Array& values, Address order, const Array& counts) {
        return bucket_order(span_of<const int64_t>(values), at<int64_t>(order),
                            span_of<int64_t>(counts));
      },
      ReleaseGil(), "values"_a, "order"_a, "counts"_a);
}

}  // namespace

void init_layout(nb::module_& module) {
  bind_layout(module);
  bind_shards(module);
  bind_fill(module);
  bind_groups(module);
}
