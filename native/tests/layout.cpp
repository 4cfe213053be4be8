// Layouts and shards by several threads: the same bits as by one, and nothing outside of the
// arrays.
#include "compat/layout.h"

#include <cstdio>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "compat/fid_shards.h"

using namespace monolith;

namespace {

constexpr int64_t kBatch = 500, kFeatures = 5, kDim = 19, kShards = 3;

// Every feature: two ids in each example, SUM into its own columns and into one sum of all.
struct Example {
  std::vector<std::vector<int64_t>> ids;
  std::vector<const int64_t*> values;
  std::vector<int64_t> sizes = std::vector<int64_t>(kFeatures, 2 * kBatch);
  std::vector<int64_t> counts = std::vector<int64_t>(kFeatures * kShards);
  std::vector<uint64_t> codes = std::vector<uint64_t>(kFeatures * 2 * kBatch);
  std::vector<int64_t> fids, list_sizes;
  std::vector<int32_t> cells;
  std::vector<int64_t> nfl, dims = std::vector<int64_t>(kFeatures, kDim);
  std::vector<LayoutSlice> slices;

  explicit Example(unsigned threads) {
    for (int64_t f = 0; f < kFeatures; ++f) {
      ids.emplace_back();
      for (int64_t i = 0; i < 2 * kBatch; ++i) ids[f].push_back((i * i * 7 + f) % 97 - 40);
      nfl.push_back(f * kBatch);
      slices.push_back({f, 0, kDim, Pooling::kSum, 0, 0, f * kDim, kFeatures * kDim, kDim, 0});
      slices.push_back({f, 1, kDim - 1, Pooling::kMean, 0, 1, 0, kDim - 1, kDim - 1, f > 0});
    }
    nfl.push_back(kFeatures * kBatch + 1);
    for (int64_t cell = 0; cell <= kFeatures * kBatch; ++cell) {
      cells.push_back(static_cast<int32_t>(2 * cell));
    }
    for (const auto& list : ids) values.push_back(list.data());
    const FeatureIds all{values, sizes, kShards, true};
    count_rows(all, codes.data(), counts.data(), threads);
    std::vector<ShardPlace> places;
    int64_t first = 0;
    for (int64_t i = 0; i < kFeatures * kShards; ++i) {  // a list for each feature and shard
      places.push_back({first, static_cast<uint64_t>(i) << 32, kDim});
      list_sizes.push_back(counts[i] * kDim);
      first += counts[i];
    }
    fids.resize(first);
    place_rows(all, places.data(), fids.data(), codes.data(), threads);
  }

  LayoutPlan plan() const { return {dims, slices}; }
  LayoutRows rows() const { return {list_sizes, codes, cells, nfl, kBatch, false}; }
};

struct Result {
  std::vector<std::vector<float>> outputs, gradients;
};

Result run(const Example& example, unsigned threads) {
  std::vector<std::vector<float>> lists;
  Result result{
      {std::vector<float>(kBatch * kFeatures * kDim), std::vector<float>(kBatch * (kDim - 1))}, {}};
  std::vector<const float*> rows;
  for (const int64_t size : example.list_sizes) {
    lists.emplace_back(size);
    for (int64_t i = 0; i < size; ++i) lists.back()[i] = 0.1f * static_cast<float>(i % 31);
    result.gradients.emplace_back(size);
  }
  std::vector<float*> outputs, gradients;
  for (auto& list : lists) rows.push_back(list.data());
  for (auto& output : result.outputs) outputs.push_back(output.data());
  for (auto& gradient : result.gradients) gradients.push_back(gradient.data());
  embeddings_to_layout(example.plan(), example.rows(), rows, outputs, threads);
  const std::vector<const float*> upstream(outputs.begin(), outputs.end());
  layout_to_gradients(example.plan(), example.rows(), upstream, gradients, threads);
  return result;
}

void threads_do_not_change_a_bit() {
  const Example one(1), four(4);
  CHECK(one.fids == four.fids);
  CHECK(one.codes == four.codes);
  const Result expected = run(one, 1), actual = run(four, 4);
  CHECK(expected.outputs == actual.outputs);
  CHECK(expected.gradients == actual.gradients);
}

void a_row_outside_of_its_list_is_refused() {
  Example example(1);
  example.codes[700] += kDim * 1000;
  bool is_refused = false;
  try {
    run(example, 4);
  } catch (const std::invalid_argument&) {
    is_refused = true;
  }
  CHECK(is_refused);
}

void cells_begin_where_splits_say() {
  const std::vector<int64_t> first{0, 2, 2}, second{0, 3}, far{0, int64_t{1} << 40, 2};
  const std::vector<const int64_t*> right{first.data(), second.data()};
  const std::vector<const int64_t*> wrong{first.data(), far.data()};
  const std::vector<int64_t> sizes{2, 3}, num_right{3, 2}, num_wrong{3, 3};
  std::vector<int32_t> cells(4);
  CHECK(feature_cells(right, num_right, sizes, cells.data()) == 2);
  CHECK((cells == std::vector<int32_t>{0, 2, 2, 5}));
  CHECK(feature_cells(wrong, num_wrong, sizes, cells.data()) == 1);
}

}  // namespace

int main() {
  threads_do_not_change_a_bit();
  a_row_outside_of_its_list_is_refused();
  cells_begin_where_splits_say();
  std::puts("layout: ok");
}
