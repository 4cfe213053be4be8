// Python binding of features. Takes addresses and sizes; the checks are in Python.
#include "table/features.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using monolith::Feature;
using monolith::FeatureIds;
using monolith::FeatureKeys;
using monolith::FeatureSum;
using monolith::FeatureTables;
using monolith::PoolMode;
using monolith::Table;

namespace {

using Address = uintptr_t;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

// Addresses and sizes of FeatureIds, in its order.
using IdsTuple = std::tuple<Address, size_t, Address, size_t, size_t, Address, size_t>;

FeatureIds ids_of(const IdsTuple& tuple) {
  const auto& [keys, num_keys, splits, stride, num_columns, columns, batch] = tuple;
  return {reinterpret_cast<const int64_t*>(keys),
          num_keys,
          reinterpret_cast<const int64_t*>(splits),
          stride,
          num_columns,
          reinterpret_cast<const uint32_t*>(columns),
          batch};
}

// (name, table, combiner, max_length, column)
using FeatureTuple = std::tuple<std::string, uint32_t, std::string, uint32_t, size_t>;

Feature feature_of(const FeatureTuple& tuple) {
  const auto& [name, table, combiner, max_length, column] = tuple;
  const PoolMode mode = combiner == "mean"    ? PoolMode::kMean
                        : combiner == "sqrtn" ? PoolMode::kSqrtn
                                              : PoolMode::kSum;
  return {name, table, mode, max_length, combiner == "first", column};
}

void construct(FeatureTables* self, const nb::typed<nb::list, Table>& tables,
               const std::vector<FeatureTuple>& tuples) {
  std::vector<Table*> cores;
  for (nb::handle table : tables) cores.push_back(nb::cast<Table*>(table));
  std::vector<Feature> features;
  for (const FeatureTuple& tuple : tuples) features.push_back(feature_of(tuple));
  new (self) FeatureTables(std::move(cores), std::move(features));
}

}  // namespace

void init_features(nb::module_& module) {
  nb::class_<FeatureKeys>(module, "FeatureKeys").def_prop_ro("num_keys", &FeatureKeys::num_keys);
  nb::class_<FeatureSum>(module, "FeatureSum")
      .def_prop_ro("norm", [](const FeatureSum& self) { return self.norm(); })
      .def(
          "norm_of", [](const FeatureSum& self, size_t table) { return self.norm(table); },
          "table"_a);
  nb::class_<FeatureTables>(module, "FeatureTables")
      .def("__init__", construct, "tables"_a, "features"_a, nb::keep_alive<1, 2>())
      .def(
          "lookup",
          [](const FeatureTables& self, const IdsTuple& ids, Address out, size_t stride,
             bool initial, unsigned threads) {
            auto made = std::make_unique<FeatureKeys>(self.features(), ids_of(ids));
            self.lookup(*made, {reinterpret_cast<float*>(out), stride}, initial, threads);
            return made;
          },
          ReleaseGil(), "ids"_a, "out"_a, "stride"_a, "initial"_a, "threads"_a)
      .def(
          "sum",
          [](const FeatureTables& self,
             const std::vector<std::tuple<const FeatureKeys*, Address, size_t>>& given,
             unsigned threads) {
            std::vector<FeatureTables::Piece> pieces;
            for (const auto& [keys, grads, stride] : given) {
              pieces.push_back({keys, {reinterpret_cast<const float*>(grads), stride}});
            }
            return self.sum(pieces, threads);
          },
          ReleaseGil(), "pieces"_a, "threads"_a)
      .def(
          "step",
          [](const FeatureTables& self, FeatureSum& summed, Address rates,
             const std::vector<uint32_t>& times, unsigned threads) {
            self.step(summed, reinterpret_cast<const float*>(rates), times, threads);
          },
          ReleaseGil(), "summed"_a, "rates"_a, "times"_a, "threads"_a);
}
