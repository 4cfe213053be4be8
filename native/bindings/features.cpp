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
using monolith::FeatureKeys;
using monolith::FeatureSum;
using monolith::FeatureTables;
using monolith::IdColumn;
using monolith::JoinedIds;
using monolith::PoolMode;
using monolith::Table;

namespace {

using Address = uintptr_t;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

// Addresses and sizes of JoinedIds, in its order.
using JoinedTuple = std::tuple<Address, size_t, Address, size_t, size_t, Address, size_t>;

// Of each feature, where its ids are, how many, and where its row splits are: one address if all
// have the same. Whether ids are int32: empty if none are. Samples.
using ColumnsTuple = std::tuple<std::vector<Address>, std::vector<size_t>, std::vector<Address>,
                                std::vector<bool>, size_t>;

// Address and stride of the result; of dense columns the same, their number and first column there.
using OutTuple = std::tuple<Address, size_t, Address, size_t, size_t, size_t>;

// Addresses of the rows of features that lie apart, feature after feature.
using ApartAddresses = std::vector<Address>;

template <typename T>
std::vector<T*> apart_at(const ApartAddresses& addresses) {
  std::vector<T*> rows;
  for (const Address address : addresses) rows.push_back(reinterpret_cast<T*>(address));
  return rows;
}

std::unique_ptr<FeatureKeys> keys_of(const FeatureTables& tables, const JoinedTuple& tuple,
                                     unsigned threads) {
  const auto& [ids, num_ids, splits, stride, num_columns, columns, batch] = tuple;
  const JoinedIds joined{reinterpret_cast<const int64_t*>(ids),
                         num_ids,
                         reinterpret_cast<const int64_t*>(splits),
                         stride,
                         num_columns,
                         reinterpret_cast<const uint32_t*>(columns),
                         batch};
  return std::make_unique<FeatureKeys>(tables.features(), joined, threads);
}

std::unique_ptr<FeatureKeys> keys_of(const FeatureTables& tables, const ColumnsTuple& tuple,
                                     unsigned threads) {
  const auto& [ids, sizes, splits, are_narrow, batch] = tuple;
  std::vector<IdColumn> columns;
  columns.reserve(ids.size());
  for (size_t f = 0; f < ids.size(); ++f) {
    columns.push_back({reinterpret_cast<const void*>(ids[f]), sizes[f],
                       reinterpret_cast<const int64_t*>(splits[splits.size() == 1 ? 0 : f]),
                       !are_narrow.empty() && are_narrow[f]});
  }
  return std::make_unique<FeatureKeys>(tables.features(), columns, batch, threads);
}

template <typename Ids>
std::unique_ptr<FeatureKeys> lookup(const FeatureTables& self, const Ids& ids, const OutTuple& to,
                                    const ApartAddresses& apart, bool initial, unsigned threads) {
  const auto& [out, stride, dense, dense_stride, num_dense, column] = to;
  auto made = keys_of(self, ids, threads);
  self.lookup(*made, {{reinterpret_cast<float*>(out), stride}, apart_at<float>(apart)},
              {{reinterpret_cast<const float*>(dense), dense_stride}, num_dense, column}, initial,
              threads);
  return made;
}

// Keys; address and stride of the gradients; those of features that lie apart.
using PieceTuple = std::tuple<const FeatureKeys*, Address, size_t, ApartAddresses>;

// (name, table, combiner, max_length, column)
using FeatureTuple = std::tuple<std::string, uint32_t, std::string, uint32_t, size_t>;

Feature feature_of(const FeatureTuple& tuple) {
  const auto& [name, table, combiner, max_length, column] = tuple;
  const PoolMode mode = combiner == "mean"    ? PoolMode::kMean
                        : combiner == "sqrtn" ? PoolMode::kSqrtn
                                              : PoolMode::kSum;
  return {name, table, mode, max_length, combiner == "first", column, combiner == "rows"};
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
      .def("lookup", lookup<ColumnsTuple>, ReleaseGil(), "ids"_a, "out"_a, "apart"_a, "initial"_a,
           "threads"_a)
      .def("lookup", lookup<JoinedTuple>, ReleaseGil(), "ids"_a, "out"_a, "apart"_a, "initial"_a,
           "threads"_a)
      .def(
          "sum",
          [](const FeatureTables& self, const std::vector<PieceTuple>& given, unsigned threads) {
            std::vector<FeatureTables::Piece> pieces;
            for (const auto& [keys, grads, stride, apart] : given) {
              pieces.push_back({keys,
                                {{reinterpret_cast<const float*>(grads), stride},
                                 apart_at<const float>(apart)}});
            }
            return self.sum(pieces, threads);
          },
          ReleaseGil(), "pieces"_a, "threads"_a)
      .def(
          "step",
          [](const FeatureTables& self, FeatureSum& summed, Address rates,
             const std::vector<uint32_t>& times, unsigned threads) {
            const auto counts =
                self.step(summed, reinterpret_cast<const float*>(rates), times, threads);
            return std::make_tuple(counts.applied, counts.inserted, counts.refused, counts.skipped);
          },
          ReleaseGil(), "summed"_a, "rates"_a, "times"_a, "threads"_a);
}
