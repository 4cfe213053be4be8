// Features of several tables: equal to bags of single tables, and safe concurrently with them.
#include "table/features.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/tables.h"

using namespace monolith;

namespace {

constexpr size_t kDim = 4, kBatch = 13'200, kWidth = 4 * kDim;

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
  JoinedIds get() const {
    return {keys.data(), keys.size(), splits.data(), kBatch + 1, 3, nullptr, kBatch};
  }
};

void test_a_step_of_features_is_that_of_its_keys(unsigned threads) {
  Table first(adagrad_table(kDim)), second(adagrad_table(kDim)), alone(adagrad_table(kDim));
  const FeatureTables tables({&first, &second}, some_features());
  const Ids ids;
  FeatureKeys keys(tables.features(), ids.get(), 2);
  CHECK(keys.num_keys() == 3 * kBatch - kBatch / 3);
  std::vector<float> out(kBatch * kWidth), grads(kBatch * kWidth);
  tables.lookup(keys, {{out.data(), kWidth}}, {}, true, threads);
  CHECK(out[3 * kDim] == 0.0f && out[kWidth + kDim] != 0.0f && out[kWidth + 2 * kDim] == 0.0f);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = static_cast<float>(i % 11) - 5.0f;
  const FeatureTables::Piece piece{&keys, {{grads.data(), kWidth}}};
  const auto sum = tables.sum({&piece, 1}, threads);
  CHECK(sum->norm() > sum->norm(0) && sum->norm() > sum->norm(1));
  const std::vector<float> rates(2, 0.1f);
  const std::vector<uint32_t> times(2, 9);
  tables.step(*sum, rates.data(), times, threads);
  const BagPiece block{keys.bags(2), {grads.data() + kDim, kWidth, 2}, nullptr};
  GradientSum expected = alone.sum_bag_gradients({&block, 1}, 1);
  alone.apply_bag_gradients(expected, {rates.data(), nullptr, 0}, 9, 1);
  std::vector<float> actual(500 * kDim), wanted(500 * kDim);
  second.lookup(keys_from(0, 500).data(), 500, actual.data(), true, nullptr, 1);
  alone.lookup(keys_from(0, 500).data(), 500, wanted.data(), true, nullptr, 1);
  CHECK(actual == wanted);
}

void test_lookups_run_beside_steps() {
  Table first(adagrad_table(kDim)), second(adagrad_table(kDim));
  const FeatureTables tables({&first, &second}, some_features());
  const Ids ids;
  const FeatureKeys keys(tables.features(), ids.get(), 2);
  const std::vector<float> grads(kBatch * kWidth, 0.5f), rates(2, 0.1f);
  const std::vector<uint32_t> times(2, 9);
  std::atomic<bool> is_done{false};
  std::thread reader([&] {
    FeatureKeys feature_keys(tables.features(), ids.get(), 1);
    std::vector<float> out(kBatch * kWidth);
    while (!is_done) tables.lookup(feature_keys, {{out.data(), kWidth}}, {}, true, 2);
  });
  for (int step = 0; step < 20; ++step) {
    const FeatureTables::Piece pieces[] = {{&keys, {{grads.data(), kWidth}}},
                                           {&keys, {{grads.data(), kWidth}}}};
    const auto sum = tables.sum(pieces, 2);
    tables.step(*sum, rates.data(), times, 2);
  }
  is_done = true;
  reader.join();
  CHECK(first.num_update_calls() == 20 && second.num_update_calls() == 20);
}

// Rows apart are those of the ids; their gradients are added to those of the matrix, if there are.
void test_rows_apart_are_trained_with_pooled_rows() {
  Table table(adagrad_table(kDim)), alone(adagrad_table(kDim));
  const FeatureTables tables({&table}, {{"a", 0, PoolMode::kSum, 0, false, 0},
                                        {"b", 0, PoolMode::kSum, 0, false, 0, true}});
  const std::vector<int64_t> ids = {1, 2, 2, 3}, splits = {0, 1, 2, 0, 2, 2};
  FeatureKeys keys(tables.features(), JoinedIds{ids.data(), 4, splits.data(), 3, 2, nullptr, 2}, 1);
  std::vector<float> out(2 * kDim), apart(2 * kDim), expected(2 * kDim);
  tables.lookup(keys, {{out.data(), kDim}, {apart.data()}}, {}, true, 2);
  alone.lookup(ids.data() + 2, 2, expected.data(), true, nullptr, 1);
  CHECK(apart == expected);
  const std::vector<float> ones(2 * kDim, 1.0f), rates(1, 0.1f);
  const FeatureTables::Piece both{&keys, {{ones.data(), kDim}, {ones.data()}}};
  CHECK(tables.sum({&both, 1}, 2)->norm() == std::sqrt(6.0 * kDim));  // 1, 2 and 1
  const FeatureTables::Piece only_apart{&keys, {{nullptr, 0}, {ones.data()}}};
  const FeatureTables::Piece only_matrix{&keys, {{ones.data(), kDim}, {nullptr}}};
  const std::vector<uint32_t> times(1, 9);
  for (const auto& [piece, num_rows] : {std::pair{only_apart, 2}, std::pair{only_matrix, 3}}) {
    const auto sum = tables.sum({&piece, 1}, 2);
    CHECK(sum->norm() == std::sqrt(2.0 * kDim));
    CHECK(tables.step(*sum, rates.data(), times, 2).applied == 2);
    CHECK(table.num_rows() == static_cast<uint64_t>(num_rows));
  }
}

// Each feature has separate memory, some as int32, which is freed before the lookup.
void test_ids_are_copied_from_where_they_are(unsigned threads) {
  Table first(adagrad_table(kDim)), second(adagrad_table(kDim));
  const FeatureTables tables({&first, &second}, some_features());
  const Ids ids;
  const FeatureKeys expected(tables.features(), ids.get(), 1);
  std::vector<std::vector<int64_t>> wide;
  std::vector<std::vector<int32_t>> narrow;
  std::vector<std::vector<int64_t>> splits;
  std::vector<IdColumn> columns;
  const int64_t* next = ids.keys.data();
  for (size_t f = 0; f < 3; ++f) {
    const int64_t* row_splits = ids.splits.data() + f * (kBatch + 1);
    splits.emplace_back(row_splits, row_splits + kBatch + 1);
    wide.emplace_back(next, next + row_splits[kBatch]);
    narrow.emplace_back(next, next + row_splits[kBatch]);
    next += row_splits[kBatch];
    const void* at = f == 1 ? static_cast<const void*>(wide[f].data()) : narrow[f].data();
    columns.push_back({at, wide[f].size(), splits[f].data(), f != 1});
  }
  const FeatureKeys actual(tables.features(), columns, kBatch, threads);
  for (size_t f = 0; f < 3; ++f) {
    std::fill(wide[f].begin(), wide[f].end(), -1);
    std::fill(narrow[f].begin(), narrow[f].end(), -1);
    std::fill(splits[f].begin(), splits[f].end(), -1);
  }
  CHECK(actual.num_keys() == expected.num_keys());
  for (size_t f = 0; f < 3; ++f) {
    const Bags &bags = actual.bags(f), &wanted = expected.bags(f);
    CHECK(bags.num_keys == wanted.num_keys && bags.num_bags == wanted.num_bags);
    CHECK(std::equal(bags.keys, bags.keys + bags.num_keys, wanted.keys));
    CHECK(std::equal(bags.row_splits, bags.row_splits + bags.num_bags + 1, wanted.row_splits));
  }
}

void test_dense_columns_lie_behind_those_of_features(unsigned threads) {
  constexpr size_t kDense = 3, kStride = kWidth + kDense + 1, kFrom = 5;
  Table first(adagrad_table(kDim)), second(adagrad_table(kDim));
  const FeatureTables tables({&first, &second}, some_features());
  const Ids ids;
  FeatureKeys keys(tables.features(), ids.get(), threads), again(tables.features(), ids.get(), 1);
  std::vector<float> out(kBatch * kStride, 7.0f), alone(kBatch * kWidth), dense(kBatch * kFrom);
  for (size_t i = 0; i < dense.size(); ++i) dense[i] = static_cast<float>(i);
  tables.lookup(keys, {{out.data(), kStride}}, {{dense.data(), kFrom}, kDense, kWidth}, true,
                threads);
  tables.lookup(again, {{alone.data(), kWidth}}, {}, true, 1);
  for (size_t i = 0; i < kBatch; ++i) {
    const float* row = out.data() + i * kStride;
    CHECK(std::equal(row, row + kWidth, alone.data() + i * kWidth));
    CHECK(std::equal(row + kWidth, row + kWidth + kDense, dense.data() + i * kFrom));
    CHECK(row[kStride - 1] == 7.0f);
  }
}

// Sixteen tables with a feature each, one key a bag: a lookup brings equal keys together.
struct Singles {
  static constexpr size_t kTables = 16, kSamples = 600, kRowWidth = kTables * kDim;
  std::vector<std::unique_ptr<Table>> owned;
  std::vector<Table*> pointers;
  std::vector<Feature> features;
  std::vector<int64_t> keys, splits;
  std::unique_ptr<FeatureTables> tables;

  explicit Singles(const TableSpec& spec = adagrad_table(kDim)) {
    for (uint32_t t = 0; t < kTables; ++t) {
      pointers.push_back(owned.emplace_back(std::make_unique<Table>(spec)).get());
      features.push_back({"f", t, t % 2 ? PoolMode::kSum : PoolMode::kMean, 0, false, t * kDim});
      for (size_t i = 0; i < kSamples; ++i) keys.push_back(static_cast<int64_t>(i * i % 97 + t));
      for (size_t i = 0; i <= kSamples; ++i) splits.push_back(static_cast<int64_t>(i));
    }
    tables = std::make_unique<FeatureTables>(pointers, features);
  }
  std::unique_ptr<FeatureKeys> make_keys() const {
    return std::make_unique<FeatureKeys>(tables->features(),
                                         JoinedIds{keys.data(), keys.size(), splits.data(),
                                                   kSamples + 1, kTables, nullptr, kSamples},
                                         1);
  }
  std::vector<float> lookup(FeatureKeys& of) const {
    std::vector<float> out(kSamples * kRowWidth);
    tables->lookup(of, {{out.data(), kRowWidth}}, {}, true, 2);
    return out;
  }
  void step(std::span<const FeatureKeys* const> of, float scale = 0.01f) const {
    std::vector<float> grads(kSamples * kRowWidth);
    for (size_t i = 0; i < grads.size(); ++i) grads[i] = scale * static_cast<float>(i % 13);
    std::vector<FeatureTables::Piece> pieces;
    for (const FeatureKeys* keys : of) pieces.push_back({keys, {grads.data(), kRowWidth}});
    const auto sum = tables->sum(pieces, 2);
    const std::vector<float> rates(kTables, 0.1f);
    const std::vector<uint32_t> times(kTables, 9);
    tables->step(*sum, rates.data(), times, 2);
  }
  std::vector<float> rows() const { return lookup(*make_keys()); }
};

void test_equal_keys_are_read_once_and_alike() {
  const Singles all;
  const auto keys = all.make_keys();
  CHECK(keys->distinct(0) == nullptr);
  const std::vector<float> out = all.lookup(*keys);
  CHECK(keys->distinct(3) != nullptr && keys->distinct(3)->size() == 49);
  for (size_t t = 0; t < Singles::kTables; ++t) {
    std::vector<float> alone(Singles::kSamples * kDim);
    all.pointers[t]->lookup(keys->bags(t).keys, Singles::kSamples, alone.data(), true, nullptr, 1);
    for (size_t i = 0; i < alone.size(); ++i) {
      CHECK(alone[i] == out[i / kDim * Singles::kRowWidth + t * kDim + i % kDim]);
    }
  }
}

// Rows that a step's lookup has seen are erased and inserted again meanwhile, and bins grow.
void test_steps_after_lookups_run_beside_erasures() {
  const Singles all;
  std::atomic<bool> is_done{false};
  std::thread other([&] {
    for (int64_t round = 0; !is_done; ++round) {
      const std::vector<int64_t> keys = keys_from(0, 60), fresh = keys_from(1000 * round, 500);
      bool existed[60];
      std::vector<float> out(fresh.size() * kDim);
      for (Table* table : all.pointers) {
        table->erase(keys.data(), keys.size(), existed, 1);
        table->lookup_or_insert(fresh.data(), fresh.size(), out.data(), nullptr, 3, 1);
      }
    }
  });
  for (int step = 0; step < 30; ++step) {
    const auto keys = all.make_keys();
    all.lookup(*keys);
    const FeatureKeys* one[] = {keys.get()};
    all.step(one);
  }
  is_done = true;
  other.join();
  for (const Table* table : all.pointers) CHECK(table->num_update_calls() == 30);
}

// change(tables): between the lookup and the step.
template <typename Change>
void test_a_step_after_a_lookup_is_one_without(const TableSpec& spec, const Change& change) {
  const Singles grouped(spec), plain(spec);
  for (int step = 0; step < 4; ++step) {
    const auto known = grouped.make_keys(), again = grouped.make_keys(), other = plain.make_keys();
    grouped.lookup(*known);
    if (step == 2) grouped.lookup(*again);
    change(grouped, step);
    change(plain, step);
    const FeatureKeys* twice[] = {known.get(), again.get()};
    const FeatureKeys* same[] = {other.get(), other.get()};
    const size_t count = step == 2 ? 2 : 1;
    grouped.step({twice, count});
    plain.step({same, count});
    CHECK(grouped.rows() == plain.rows());
    for (size_t t = 0; t < Singles::kTables; ++t) {
      CHECK(grouped.pointers[t]->num_rows() == plain.pointers[t]->num_rows());
    }
  }
}

void test_what_happens_between_lookup_and_step() {
  const auto nothing = [](const Singles&, int) {};
  const auto erase = [](const Singles& all, int) {
    const std::vector<int64_t> keys = keys_from(0, 60);
    bool existed[60];
    for (Table* table : all.pointers) table->erase(keys.data(), keys.size(), existed, 1);
  };
  const auto replace = [&](const Singles& all, int step) {
    erase(all, step);
    const std::vector<int64_t> keys = keys_from(5, 5000);  // rows go to others, and bins grow
    std::vector<float> out(keys.size() * kDim);
    for (Table* table : all.pointers) {
      table->lookup_or_insert(keys.data(), keys.size(), out.data(), nullptr, 3, 1);
    }
  };
  const auto grow = [](const Singles& all, int step) {  // keys move to other lines
    const std::vector<int64_t> keys = keys_from(1000 * (step + 1), 1000);
    std::vector<float> out(keys.size() * kDim);
    for (Table* table : all.pointers) {
      table->lookup_or_insert(keys.data(), keys.size(), out.data(), nullptr, 3, 1);
    }
  };
  const auto clear = [](const Singles& all, int) {
    for (Table* table : all.pointers) CHECK(table->clear());
  };
  const auto evict = [](const Singles& all, int step) {
    for (Table* table : all.pointers) table->evict(step == 1 ? 9 + 86400 * 3 : 9);
  };
  TableSpec spec = adagrad_table(kDim);
  test_a_step_after_a_lookup_is_one_without(spec, nothing);
  test_a_step_after_a_lookup_is_one_without(spec, erase);
  test_a_step_after_a_lookup_is_one_without(spec, replace);
  test_a_step_after_a_lookup_is_one_without(spec, grow);
  spec.budget_bytes = 5000;  // for some of the keys
  test_a_step_after_a_lookup_is_one_without(spec, nothing);
  spec.budget_bytes = SIZE_MAX;
  spec.first_version = UINT32_MAX - 7;  // of lines that are worn
  test_a_step_after_a_lookup_is_one_without(spec, nothing);
  spec.first_version = 0;
  test_a_step_after_a_lookup_is_one_without(spec, clear);
  spec.expiry_days = 1;
  test_a_step_after_a_lookup_is_one_without(spec, evict);
  spec.admission.kind = AdmissionKind::kMinCount;
  spec.admission.threshold = 20;
  spec.admission.max_bytes = 1 << 20;
  test_a_step_after_a_lookup_is_one_without(spec, nothing);
}

// A table gives rows away for new keys, but none that the same step has seen and will write.
void test_rows_that_a_step_has_seen_are_no_victims() {
  TableSpec spec = adagrad_table(kDim);
  spec.budget_bytes = 8000;
  spec.budget_policy = BudgetPolicy::kEvictOldest;
  Singles tight(spec), roomy;
  const std::vector<int64_t> others = keys_from(5000, 1000);  // older than what comes
  std::vector<float> out(others.size() * kDim);
  for (Table* table : tight.pointers) {
    table->lookup_or_insert(others.data(), others.size(), out.data(), nullptr, 3, 1);
  }
  for (Singles* all : {&tight, &roomy}) {
    const auto first = all->make_keys();
    const FeatureKeys* one[] = {first.get()};
    all->step(one);
    for (size_t i = 0; i < all->keys.size(); i += 2) all->keys[i] = static_cast<int64_t>(9000 + i);
    const auto mixed = all->make_keys();
    all->lookup(*mixed);
    const FeatureKeys* two[] = {mixed.get()};
    all->step(two);
  }
  const std::vector<float> actual = tight.rows(), wanted = roomy.rows();
  for (size_t i = 1; i < Singles::kSamples; i += 2) {  // keys that were seen
    const auto at = static_cast<ptrdiff_t>(i * Singles::kRowWidth);
    CHECK(std::equal(wanted.begin() + at, wanted.begin() + at + Singles::kRowWidth,
                     actual.begin() + at));
  }
  CHECK(tight.pointers[0]->counters().evicted_for_budget > 0);
}

// Rows as they were before the step, also where the step has seen them before the cut.
void test_a_cut_between_lookup_and_step() {
  const Singles all;
  const auto first = all.make_keys(), second = all.make_keys();
  const FeatureKeys* one[] = {first.get()};
  all.step(one);
  const std::vector<float> old = all.rows();
  all.lookup(*second);
  Table& table = *all.pointers[0];
  const std::shared_ptr<Cut> cut = table.open_cut();
  const FeatureKeys* next[] = {second.get()};
  all.step(next);
  CHECK(all.rows() != old);
  const size_t n = table.num_rows();
  std::vector<int64_t> keys(n), times(n);
  std::vector<float> weights(n * kDim), state(n * kDim);
  const Table::Columns columns{
      times.data(),
      {reinterpret_cast<char*>(weights.data()), reinterpret_cast<char*>(state.data())},
      {kDim * 4, kDim * 4}};
  CHECK(table.export_rows(0, UINT64_MAX, n, keys.data(), columns, cut.get()) == n);
  for (size_t i = 0; i < Singles::kSamples; ++i) {
    const auto at = std::find(keys.begin(), keys.end(), all.keys[i]) - keys.begin();
    for (size_t c = 0; c < kDim; ++c) {
      CHECK(weights[at * kDim + c] == old[i * Singles::kRowWidth + c]);
    }
  }
  table.close_cut(*cut);
}

// A step without memory for its new keys changes none of its existing keys.
void test_a_step_without_memory_changes_nothing() {
  Singles all;
  const auto first = all.make_keys();
  const FeatureKeys* one[] = {first.get()};
  all.step(one);
  const std::vector<float> old = all.rows();
  Singles more;
  std::swap(all.keys, more.keys);
  for (size_t i = 0; i < more.keys.size(); ++i) {
    all.keys[i] = i % 2 ? more.keys[i] : static_cast<int64_t>(100'000 + i);
  }
  const auto mixed = all.make_keys();
  all.lookup(*mixed);
  Table& table = *all.pointers[0];
  table.set_memory_limit(table.held_bytes());
  std::vector<float> grads(Singles::kSamples * Singles::kRowWidth, 0.5f);
  const FeatureTables::Piece piece{mixed.get(), {{grads.data(), Singles::kRowWidth}}};
  const auto sum = all.tables->sum({&piece, 1}, 1);
  const std::vector<float> rates(Singles::kTables, 0.1f);
  const std::vector<uint32_t> times(Singles::kTables, 10);
  bool has_failed = false;
  try {
    all.tables->step(*sum, rates.data(), times, 1);
  } catch (const OutOfMemory&) {
    has_failed = true;
  }
  CHECK(has_failed);
  std::swap(all.keys, more.keys);
  const std::vector<float> after = all.rows();
  for (size_t i = 0; i < Singles::kSamples; ++i) {
    for (size_t c = 0; c < kDim; ++c) {
      CHECK(after[i * Singles::kRowWidth + c] == old[i * Singles::kRowWidth + c]);
    }
  }
}

// Nor does one whose rows were erased after its lookup, and taken by other keys.
void test_a_step_without_memory_for_lost_rows_fails() {
  const Singles all;
  const auto keys = all.make_keys();
  const FeatureKeys* one[] = {keys.get()};
  all.step(one);
  all.lookup(*keys);
  Table& table = *all.pointers[0];
  const std::vector<int64_t> lost = keys_from(0, 97);
  bool existed[97];
  table.erase(lost.data(), lost.size(), existed, 1);
  table.set_memory_limit(table.held_bytes());
  const auto is_out_of_memory = [](const auto& call) {
    try {
      call();
      return false;
    } catch (const OutOfMemory&) {
      return true;
    }
  };
  float out[kDim];
  int64_t other = 100'000;
  while (!is_out_of_memory([&] { table.lookup_or_insert(&other, 1, out, nullptr, 3, 1); })) ++other;
  const uint64_t num_rows = table.num_rows();
  CHECK(is_out_of_memory([&] { all.step(one); }));
  CHECK(table.num_rows() == num_rows);
}

// Rows of whole lines go past the caches.
void test_rows_of_whole_lines() {
  constexpr uint32_t kLine = 16;
  constexpr size_t kTables = 16, kSamples = 200, kRowWidth = kTables * kLine;
  std::vector<std::unique_ptr<Table>> owned;
  std::vector<Table*> pointers;
  std::vector<Feature> features;
  std::vector<int64_t> keys, splits;
  for (uint32_t t = 0; t < kTables; ++t) {
    pointers.push_back(owned.emplace_back(std::make_unique<Table>(adagrad_table(kLine))).get());
    features.push_back({"f", t, PoolMode::kSum, 0, false, t * kLine});
    for (size_t i = 0; i < kSamples; ++i) keys.push_back(static_cast<int64_t>(i % 71 + t));
  }
  for (size_t i = 0; i <= kSamples; ++i) splits.push_back(static_cast<int64_t>(i));
  const FeatureTables tables(pointers, features);
  std::vector<float> memory(kSamples * kRowWidth + 2 * kLine);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  float* aligned = memory.data() + (64 - address % 64) % 64 / 4;
  for (float* out : {aligned, aligned + 1}) {
    const JoinedIds ids{keys.data(), keys.size(), splits.data(), 0, kTables, nullptr, kSamples};
    FeatureKeys of(tables.features(), ids, 2);
    tables.lookup(of, {{out, kRowWidth}}, {}, true, 2);
    for (size_t t = 0; t < kTables; ++t) {
      std::vector<float> alone(kSamples * kLine);
      pointers[t]->lookup(keys.data() + t * kSamples, kSamples, alone.data(), true, nullptr, 1);
      for (size_t i = 0; i < alone.size(); ++i) {
        CHECK(alone[i] == out[i / kLine * kRowWidth + t * kLine + i % kLine]);
      }
    }
  }
}

// Gradients of rows of one line, summed by what a lookup has found equal, and without it.
void test_sums_of_rows_of_a_line() {
  constexpr uint32_t kLine = 16;
  constexpr size_t kTables = 16, kSamples = 200, kRowWidth = kTables * kLine;
  std::vector<int64_t> keys, splits;
  for (size_t i = 0; i < kTables * kSamples; ++i) keys.push_back(static_cast<int64_t>(i * i % 71));
  for (size_t i = 0; i <= kSamples; ++i) splits.push_back(static_cast<int64_t>(i));
  std::vector<float> grads(kSamples * kRowWidth), out(kSamples * kRowWidth);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = 0.1f * static_cast<float>(i % 17) - 0.7f;
  std::vector<double> norms;
  std::vector<std::vector<float>> rows;
  for (const bool looks : {true, false}) {
    std::vector<std::unique_ptr<Table>> owned;
    std::vector<Table*> pointers;
    std::vector<Feature> features;
    for (uint32_t t = 0; t < kTables; ++t) {
      pointers.push_back(owned.emplace_back(std::make_unique<Table>(adagrad_table(kLine))).get());
      features.push_back({"f", t, PoolMode::kSum, 0, false, t * kLine});
    }
    const FeatureTables tables(pointers, features);
    const JoinedIds ids{keys.data(), keys.size(), splits.data(), 0, kTables, nullptr, kSamples};
    FeatureKeys of(tables.features(), ids, 1);
    if (looks) tables.lookup(of, {{out.data(), kRowWidth}}, {}, true, 2);
    CHECK((of.distinct(0) != nullptr) == looks);
    const FeatureTables::Piece piece{&of, {{grads.data(), kRowWidth}}};
    const auto sum = tables.sum({&piece, 1}, 2);
    norms.push_back(sum->norm());
    const std::vector<float> rates(kTables, 0.1f);
    tables.step(*sum, rates.data(), std::vector<uint32_t>(kTables, 9), 2);
    FeatureKeys again(tables.features(), ids, 1);
    tables.lookup(again, {{out.data(), kRowWidth}}, {}, true, 2);
    rows.push_back(out);
  }
  CHECK(norms[0] == norms[1] && rows[0] == rows[1]);
}

void test_as_many_keys_as_bags_need_not_be_one_each() {
  Singles all;
  for (size_t i = 1; i < all.splits.size(); i += Singles::kSamples + 1) all.splits[i] = 0;
  const auto keys = all.make_keys();
  const std::vector<float> out = all.lookup(*keys);
  CHECK(keys->distinct(0) == nullptr && keys->distinct(15) == nullptr);
  CHECK(out[0] == 0.0f && out[Singles::kRowWidth] != 0.0f);
}

void test_gradients_that_are_not_finite_are_left_out() {
  TableSpec spec = adagrad_table(kDim);
  spec.non_finite = NonFinite::kSkip;
  const Singles all(spec);
  const auto keys = all.make_keys();
  all.lookup(*keys);
  const FeatureKeys* one[] = {keys.get()};
  all.step(one, std::numeric_limits<float>::infinity());
  CHECK(all.pointers[0]->counters().skipped > 0);
}

}  // namespace

int main() {
  test_equal_keys_are_read_once_and_alike();
  test_steps_after_lookups_run_beside_erasures();
  test_rows_of_whole_lines();
  test_sums_of_rows_of_a_line();
  test_a_cut_between_lookup_and_step();
  test_a_step_without_memory_changes_nothing();
  test_a_step_without_memory_for_lost_rows_fails();
  test_rows_that_a_step_has_seen_are_no_victims();
  test_what_happens_between_lookup_and_step();
  test_as_many_keys_as_bags_need_not_be_one_each();
  test_gradients_that_are_not_finite_are_left_out();
  for (const unsigned threads : {1u, 3u}) {
    test_ids_are_copied_from_where_they_are(threads);
    test_dense_columns_lie_behind_those_of_features(threads);
  }
  test_a_step_of_features_is_that_of_its_keys(1);
  test_a_step_of_features_is_that_of_its_keys(3);
  test_lookups_run_beside_steps();
  test_rows_apart_are_trained_with_pooled_rows();
}
