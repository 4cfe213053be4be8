// Features and the ids of a batch, as bindings take them: addresses and sizes.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "table/features.h"

using Address = uintptr_t;
using ReleaseGil = nanobind::call_guard<nanobind::gil_scoped_release>;

// Addresses and sizes of monolith::JoinedIds, in its order.
using JoinedTuple = std::tuple<Address, size_t, Address, size_t, size_t, Address, size_t>;

// Of each feature, where its ids are, how many, and where its row splits are: one address if all
// have the same. Whether ids are int32: empty if none are. Samples.
using ColumnsTuple = std::tuple<std::vector<Address>, std::vector<size_t>, std::vector<Address>,
                                std::vector<bool>, size_t>;

// Addresses of the rows of features that lie apart, feature after feature.
using ApartAddresses = std::vector<Address>;

template <typename T>
std::vector<T*> apart_at(const ApartAddresses& addresses) {
  std::vector<T*> rows;
  for (const Address address : addresses) rows.push_back(reinterpret_cast<T*>(address));
  return rows;
}

inline std::unique_ptr<monolith::FeatureKeys> keys_of(std::span<const monolith::Feature> features,
                                                      const JoinedTuple& tuple, unsigned threads) {
  const auto& [ids, num_ids, splits, stride, num_columns, columns, batch] = tuple;
  const monolith::JoinedIds joined{reinterpret_cast<const int64_t*>(ids),
                                   num_ids,
                                   reinterpret_cast<const int64_t*>(splits),
                                   stride,
                                   num_columns,
                                   reinterpret_cast<const uint32_t*>(columns),
                                   batch};
  return std::make_unique<monolith::FeatureKeys>(features, joined, threads);
}

inline std::unique_ptr<monolith::FeatureKeys> keys_of(std::span<const monolith::Feature> features,
                                                      const ColumnsTuple& tuple, unsigned threads) {
  const auto& [ids, sizes, splits, are_narrow, batch] = tuple;
  std::vector<monolith::IdColumn> columns;
  columns.reserve(ids.size());
  for (size_t f = 0; f < ids.size(); ++f) {
    columns.push_back({reinterpret_cast<const void*>(ids[f]), sizes[f],
                       reinterpret_cast<const int64_t*>(splits[splits.size() == 1 ? 0 : f]),
                       !are_narrow.empty() && are_narrow[f]});
  }
  return std::make_unique<monolith::FeatureKeys>(features, columns, batch, threads);
}

// (name, table, combiner, max_length, column)
using FeatureTuple = std::tuple<std::string, uint32_t, std::string, uint32_t, size_t>;

inline monolith::Feature feature_of(const FeatureTuple& tuple) {
  const auto& [name, table, combiner, max_length, column] = tuple;
  const monolith::PoolMode mode = combiner == "mean"    ? monolith::PoolMode::kMean
                                  : combiner == "sqrtn" ? monolith::PoolMode::kSqrtn
                                                        : monolith::PoolMode::kSum;
  return {name, table, mode, max_length, combiner == "first", column, combiner == "rows"};
}
