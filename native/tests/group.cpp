// Groups of tables: equal to single tables, and safe concurrently with them.
#include "table/group.h"

#include <memory>
#include <thread>
#include <vector>

#include "table/share.h"
#include "tests/check.h"
#include "tests/tables.h"

using namespace monolith;

namespace {

constexpr size_t kDim = 4;
constexpr size_t kKeys = 20000;

std::vector<std::unique_ptr<Table>> make_tables(size_t n) {
  std::vector<std::unique_ptr<Table>> tables;
  for (size_t i = 0; i < n; ++i) tables.push_back(std::make_unique<Table>(adagrad_table(kDim)));
  return tables;
}

std::vector<Table*> borrowed(const std::vector<std::unique_ptr<Table>>& tables) {
  std::vector<Table*> cores;
  for (const auto& table : tables) cores.push_back(table.get());
  return cores;
}

std::vector<float> some_gradients(size_t n) {
  std::vector<float> grads(n * kDim);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = static_cast<float>(i % 7) - 3.0f;
  return grads;
}

const float kRate = 0.1f;
const Table::StepOptions kOptions{&kRate, nullptr, 0};

// A large part, small ones and an empty one.
void test_a_group_equals_its_tables() {
  const auto tables = make_tables(4), alone = make_tables(4);
  TableGroup group(borrowed(tables));
  const std::vector<int64_t> splits = {0, 100, 15000, 15000, kKeys};
  auto keys = keys_from(0, kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] %= 3000;
  const auto grads = some_gradients(kKeys);
  const std::vector<float> rates(4, kRate), scales(4, 1.0f);
  std::vector<float> actual(kKeys * kDim), expected(kKeys * kDim);
  for (const unsigned threads : {1u, 3u}) {
    const AppliedCounts counts =
        group.apply_gradients({keys.data(), kKeys, splits.data()}, grads.data(),
                              {rates.data(), scales.data(), 0}, 9, threads);
    group.lookup({keys.data(), kKeys, splits.data()}, actual.data(), true, scales.data(), threads);
    uint64_t applied = 0;
    for (size_t t = 0; t < 4; ++t) {
      const auto first = static_cast<size_t>(splits[t]);
      const size_t n = static_cast<size_t>(splits[t + 1]) - first;
      if (n == 0) continue;
      applied +=
          alone[t]
              ->apply_gradients(keys.data() + first, n, grads.data() + first * kDim, kOptions, 9, 1)
              .applied;
      alone[t]->lookup(keys.data() + first, n, expected.data() + first * kDim, true, nullptr, 1);
    }
    CHECK(counts.applied == applied);
    CHECK(actual == expected);
  }
}

// The first table has most of the keys.
void test_steps_together_equal_single_steps() {
  const auto tables = make_tables(3), alone = make_tables(3);
  auto keys = keys_from(0, kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] %= 3000;
  const auto grads = some_gradients(kKeys);
  const std::vector<size_t> splits = {0, 19000, 19600, kKeys};
  const auto sum_of = [&](const Table& table, size_t t) {
    const size_t n = splits[t + 1] - splits[t];
    const Bags bags{keys.data() + splits[t], n, nullptr, n, PoolMode::kSum, nullptr, 1};
    const BagPiece piece{bags, {grads.data() + splits[t] * kDim, kDim}, nullptr};
    return table.sum_bag_gradients({&piece, 1}, 1);
  };
  for (const unsigned threads : {1u, 3u}) {
    std::vector<std::unique_ptr<GradientSum>> sums;
    std::vector<TableStep> steps;
    std::vector<uint8_t> are_done(3);
    std::vector<AppliedCounts> counts(3);
    uint64_t applied = 0;
    for (size_t t = 0; t < 3; ++t) {
      sums.emplace_back(new GradientSum(sum_of(*tables[t], t)));
      steps.push_back({tables[t].get(), sums[t].get(), &kRate, 9, &are_done[t],
                       splits[t + 1] - splits[t], &counts[t]});
      GradientSum gradient_sum = sum_of(*alone[t], t);
      applied += alone[t]->apply_bag_gradients(gradient_sum, kOptions, 9, 1).applied;
    }
    step_tables(steps, threads);
    CHECK(counts[0].applied + counts[1].applied + counts[2].applied == applied);
    CHECK(are_done == std::vector<uint8_t>(3, 1));
    for (size_t t = 0; t < 3; ++t) {
      std::vector<float> actual(3000 * kDim), expected(3000 * kDim);
      tables[t]->lookup(keys.data(), 3000, actual.data(), true, nullptr, 1);
      alone[t]->lookup(keys.data(), 3000, expected.data(), true, nullptr, 1);
      CHECK(actual == expected);
    }
  }
}

void test_groups_beside_their_tables() {
  const auto tables = make_tables(3);
  TableGroup group(borrowed(tables));
  const auto keys = keys_from(0, 9000);
  const std::vector<int64_t> splits = {0, 3000, 6000, 9000};
  const auto grads = some_gradients(keys.size());
  const std::vector<float> rates(3, kRate), scales(3, 1.0f);
  const auto repeat = [](const auto& work) {
    return std::thread([work] {
      for (int i = 0; i < 20; ++i) work();
    });
  };
  std::vector<std::thread> threads;
  threads.push_back(repeat([&] {
    group.apply_gradients({keys.data(), keys.size(), splits.data()}, grads.data(),
                          {rates.data(), scales.data(), 0}, 9, 2);
  }));
  const std::vector<int32_t> counts(keys.size(), 1);
  const std::vector<uint8_t> are_stepped(3, 1);
  const std::vector<int64_t> times(3, 9);
  threads.push_back(repeat([&] {
    group.push({{keys.data(), keys.size(), splits.data()},
                grads.data(),
                counts.data(),
                are_stepped.data(),
                times.data(),
                rates.data(),
                scales.data()},
               2);
  }));
  threads.push_back(repeat([&] {
    std::vector<float> rows(keys.size() * kDim);
    group.lookup({keys.data(), keys.size(), splits.data()}, rows.data(), true, scales.data(), 2);
  }));
  threads.push_back(repeat([&] {
    const auto existed = std::make_unique<bool[]>(100);
    tables[1]->erase(keys.data(), 100, existed.get(), 1);
  }));
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main() {
  test_a_group_equals_its_tables();
  test_steps_together_equal_single_steps();
  test_groups_beside_their_tables();
}
