// Features of several tables: equal to bags of single tables, and safe beside them.
#include "table/features.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/tables.h"

using namespace monolith;

namespace {

constexpr size_t kDim = 4, kBatch = 3000, kWidth = 4 * kDim;

// Two features of the first table, a block of 2 rows of the second.
std::vector<Feature> some_features() {
  return {{"a", 0, PoolMode::kSum, 0, false, 3 * kDim},
          {"b", 0, PoolMode::kMean, 1, false, 0},
          {"c", 1, PoolMode::kSum, 2, true, kDim}};
}

// Of each feature 0, 1, 2, 0, 1, 2 ... ids of a sample.
struct Ids {
  std::vector<int64_t> keys, splits;
  Ids() {
    for (int64_t feature = 0; feature < 3; ++feature) {
      int64_t last = 0;
      splits.push_back(0);
      for (int64_t sample = 0; sample < static_cast<int64_t>(kBatch); ++sample) {
        last += sample % 3;
        splits.push_back(last);
      }
      for (int64_t i = 0; i < last; ++i) keys.push_back((i * 7 + feature) % 500);
    }
  }
  FeatureIds get() const {
    return {keys.data(), keys.size(), splits.data(), kBatch + 1, 3, nullptr, kBatch};
  }
};

void test_a_step_of_features_is_that_of_its_keys(unsigned threads) {
  Table first(adagrad_table(kDim)), second(adagrad_table(kDim)), alone(adagrad_table(kDim));
  const FeatureTables tables({&first, &second}, some_features(), kWidth);
  const Ids ids;
  const FeatureKeys keys(tables.features(), ids.get());
  CHECK(keys.num_keys() == 3 * kBatch - kBatch / 3);
  std::vector<float> out(kBatch * kWidth), grads(kBatch * kWidth);
  tables.lookup(keys, out.data(), true, threads);
  CHECK(out[3 * kDim] == 0.0f && out[kWidth + kDim] != 0.0f && out[kWidth + 2 * kDim] == 0.0f);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = static_cast<float>(i % 11) - 5.0f;
  const FeatureTables::Piece piece{&keys, grads.data()};
  const auto sum = tables.sum({&piece, 1}, threads);
  CHECK(sum->norm() > sum->norm(0) && sum->norm() > sum->norm(1));
  const std::vector<float> rates(2, 0.1f);
  const std::vector<uint32_t> times(2, 9);
  tables.step(*sum, rates.data(), times, threads);
  const BagPiece block{keys.bags(2), {grads.data() + kDim, kWidth, 2}, nullptr};
  GradientSum expected = alone.sum_bag_gradients({&block, 1}, 1);
  alone.apply_bag_gradients(expected, {rates.data(), nullptr, 0}, 9, 1);
  std::vector<float> found(500 * kDim), wanted(500 * kDim);
  second.lookup(keys_from(0, 500).data(), 500, found.data(), true, nullptr, 1);
  alone.lookup(keys_from(0, 500).data(), 500, wanted.data(), true, nullptr, 1);
  CHECK(found == wanted);
}

void test_lookups_run_beside_steps() {
  Table first(adagrad_table(kDim)), second(adagrad_table(kDim));
  const FeatureTables tables({&first, &second}, some_features(), kWidth);
  const Ids ids;
  const FeatureKeys keys(tables.features(), ids.get());
  const std::vector<float> grads(kBatch * kWidth, 0.5f), rates(2, 0.1f);
  const std::vector<uint32_t> times(2, 9);
  std::atomic<bool> is_done{false};
  std::thread reader([&] {
    std::vector<float> out(kBatch * kWidth);
    while (!is_done) tables.lookup(keys, out.data(), true, 2);
  });
  for (int step = 0; step < 20; ++step) {
    const FeatureTables::Piece pieces[] = {{&keys, grads.data()}, {&keys, grads.data()}};
    const auto sum = tables.sum(pieces, 2);
    tables.step(*sum, rates.data(), times, 2);
  }
  is_done = true;
  reader.join();
  CHECK(first.num_update_calls() == 20 && second.num_update_calls() == 20);
}

}  // namespace

int main() {
  test_a_step_of_features_is_that_of_its_keys(1);
  test_a_step_of_features_is_that_of_its_keys(3);
  test_lookups_run_beside_steps();
}
