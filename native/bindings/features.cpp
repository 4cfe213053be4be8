// Python binding of features. Takes addresses and sizes; the checks are in Python.
#include "table/features.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/feature_ids.h"

namespace nb = nanobind;
using namespace nb::literals;
using monolith::Feature;
using monolith::FeatureKeys;
using monolith::FeatureSum;
using monolith::FeatureTables;
using monolith::Table;

namespace {

// Address and stride of the result; of dense columns the same, their number and first column there.
using OutTuple = std::tuple<Address, size_t, Address, size_t, size_t, size_t>;

template <typename Ids>
std::unique_ptr<FeatureKeys> lookup(const FeatureTables& self, const Ids& ids, const OutTuple& to,
                                    const ApartAddresses& apart, bool initial, unsigned threads) {
  const auto& [out, stride, dense, dense_stride, num_dense, column] = to;
  auto made = keys_of(self.features(), ids, threads);
  self.lookup(*made, {{reinterpret_cast<float*>(out), stride}, apart_at<float>(apart)},
              {{reinterpret_cast<const float*>(dense), dense_stride}, num_dense, column}, initial,
              threads);
  return made;
}

// Keys; address and stride of the gradients; those of features that lie apart.
using PieceTuple = std::tuple<const FeatureKeys*, Address, size_t, ApartAddresses>;

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
