// Python binding of the exchange with servers. Takes addresses and sizes; the checks are in Python.
#include "table/exchange.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings/feature_ids.h"
#include "ops/placement.h"

namespace nb = nanobind;
using namespace nb::literals;
using monolith::Exchange;
using monolith::ExchangeKeys;
using monolith::Feature;

namespace {

// Keys; address and stride of the gradients; those of features that lie apart.
using PieceTuple = std::tuple<const ExchangeKeys*, Address, size_t, ApartAddresses>;

std::vector<Exchange::Piece> pieces_of(const std::vector<PieceTuple>& tuples) {
  std::vector<Exchange::Piece> pieces;
  for (const auto& [keys, grads, stride, apart] : tuples) {
    pieces.push_back(
        {keys, {{reinterpret_cast<const float*>(grads), stride}, apart_at<const float>(apart)}});
  }
  return pieces;
}

template <typename Ids>
std::unique_ptr<ExchangeKeys> group(const Exchange& self, const Ids& ids, unsigned threads) {
  return self.keys_of(keys_of(self.features(), ids, threads), threads);
}

std::vector<size_t> list_of(std::span<const size_t> numbers) {
  return {numbers.begin(), numbers.end()};
}

void bind_keys(nb::module_& module) {
  nb::class_<ExchangeKeys>(module, "ExchangeKeys")
      .def_prop_ro("num_ids", &ExchangeKeys::num_ids)
      .def_prop_ro("key_starts",
                   [](const ExchangeKeys& self) { return list_of(self.key_starts()); })
      .def_prop_ro("float_starts",
                   [](const ExchangeKeys& self) { return list_of(self.float_starts()); })
      .def(
          "write",
          [](const ExchangeKeys& self, Address keys, Address splits, unsigned threads) {
            self.write(reinterpret_cast<int64_t*>(keys), reinterpret_cast<int64_t*>(splits),
                       threads);
          },
          ReleaseGil(), "keys"_a, "splits"_a, "threads"_a);
}

}  // namespace

void init_exchange(nb::module_& module) {
  bind_keys(module);
  module.def(
      "find_foreign",
      [](Address keys, size_t n, bool by_partition, uint32_t num_shards, uint32_t shard) {
        return monolith::find_foreign(reinterpret_cast<const int64_t*>(keys), n,
                                      {by_partition, num_shards, shard});
      },
      ReleaseGil(), "keys"_a, "n"_a, "by_partition"_a, "num_shards"_a, "shard"_a);
  nb::class_<Exchange>(module, "Exchange")
      .def(
          "__init__",
          [](Exchange* self, std::vector<uint32_t> dims, const std::vector<FeatureTuple>& tuples,
             std::vector<uint16_t> owners, size_t num_servers) {
            std::vector<Feature> features;
            for (const FeatureTuple& tuple : tuples) features.push_back(feature_of(tuple));
            new (self)
                Exchange(std::move(dims), std::move(features), std::move(owners), num_servers);
          },
          "dims"_a, "features"_a, "owners"_a, "num_servers"_a)
      .def("group", group<ColumnsTuple>, ReleaseGil(), "ids"_a, "threads"_a, nb::keep_alive<0, 1>())
      .def("group", group<JoinedTuple>, ReleaseGil(), "ids"_a, "threads"_a, nb::keep_alive<0, 1>())
      .def(
          "group_trained",
          [](const Exchange& self, const std::vector<PieceTuple>& pieces, unsigned threads) {
            return self.keys_of(pieces_of(pieces), threads);
          },
          ReleaseGil(), "pieces"_a, "threads"_a, nb::keep_alive<0, 1>())
      .def(
          "pool",
          [](const Exchange& self, const ExchangeKeys& keys, const std::vector<Address>& answers,
             Address out, size_t stride, const ApartAddresses& apart, unsigned threads) {
            self.pool(keys, apart_at<const float>(answers),
                      {{reinterpret_cast<float*>(out), stride}, apart_at<float>(apart)}, threads);
          },
          ReleaseGil(), "keys"_a, "answers"_a, "out"_a, "stride"_a, "apart"_a, "threads"_a)
      .def(
          "sum",
          [](const Exchange& self, const ExchangeKeys& keys, const std::vector<PieceTuple>& pieces,
             Address out, Address counts, unsigned threads) {
            return self.sum(keys, pieces_of(pieces), reinterpret_cast<float*>(out),
                            reinterpret_cast<int32_t*>(counts), threads);
          },
          ReleaseGil(), "keys"_a, "pieces"_a, "out"_a, "counts"_a, "threads"_a)
      .def(
          "num_ids",
          [](const Exchange& self, const std::vector<PieceTuple>& pieces, size_t table) {
            return self.num_ids(pieces_of(pieces), table);
          },
          "pieces"_a, "table"_a)
      .def(
          "write_out",
          [](const Exchange& self, const std::vector<PieceTuple>& pieces, size_t table,
             Address keys, Address grads) {
            self.write_out(pieces_of(pieces), table, reinterpret_cast<int64_t*>(keys),
                           reinterpret_cast<float*>(grads));
          },
          ReleaseGil(), "pieces"_a, "table"_a, "keys"_a, "grads"_a);
}
