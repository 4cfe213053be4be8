// The keys of a writing call: equal keys are one, and refused ones are left out of its visits.
#include "ops/batch.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/tables.h"

using namespace monolith;

namespace {

// A call without a team: every step is done by its only member.
struct SingleThread {
  unsigned size() const { return 1; }
  void barrier() const {}
};

void group_all(Batch& batch) {
  SingleThread team;
  batch.arrange(team, 0);
  Batch::Scratch scratch;
  for (uint32_t p = 0; p < batch.num_partitions(); ++p) batch.group(p, scratch);
}

// n keys of `distinct` different ones, the first of them first.
std::vector<int64_t> repeated(size_t n, size_t distinct) {
  std::vector<int64_t> keys;
  for (size_t i = 0; i < n; ++i) keys.push_back(static_cast<int64_t>(i % distinct) - 7);
  return keys;
}

// Keys that were seen come first, with where they were; both kinds stay in order.
void test_keys_that_were_seen_come_first() {
  const std::vector<int64_t> keys = repeated(10, 10);
  Line line;
  std::vector<KeyLocation> seen;
  for (uint32_t i = 0; i < 10; ++i) seen.push_back({i % 3 == 1 ? nullptr : &line, i, i % 5});
  std::pmr::monotonic_buffer_resource memory;
  const Batch batch(keys, seen.data(), 7, memory);
  CHECK(batch.num_partitions() == 1 && batch.size() == 10 && batch.num_removed() == 7);
  CHECK(batch.distinct(0).size() == 10 && batch.unseen(0).size() == 3);
  std::vector<uint32_t> places;
  for (const Batch::Entry& entry : batch.distinct(0)) {
    places.push_back(entry.first);
    CHECK(entry.key == keys[entry.first] && entry.hash == key_hash(entry.key));
    CHECK(entry.line == seen[entry.first].line && entry.row == entry.first);
    CHECK(entry.slot == entry.first % 5 && entry.state == Batch::kOld && entry.num_occurs == 1);
  }
  CHECK((places == std::vector<uint32_t>{0, 2, 3, 5, 6, 8, 9, 1, 4, 7}));
}

void test_refused_keys_come_last() {
  const std::vector<int64_t> keys = repeated(900, 300);
  std::pmr::monotonic_buffer_resource memory;
  Batch batch(keys.data(), 900, nullptr, 1, 0, 1, memory);
  group_all(batch);
  std::vector<int64_t> kept_keys;
  std::set<uint32_t> firsts;
  for (Batch::Entry& entry : batch.distinct(0)) {
    CHECK(entry.first < 900 && firsts.insert(entry.first).second);
    if (entry.key % 3 == 0) {
      entry.state = Batch::kRefused;
    } else {
      kept_keys.push_back(entry.key);
    }
  }
  batch.sort_out_refused(0, true);
  CHECK(batch.distinct(0).size() == 300 && batch.kept(0).size() == kept_keys.size());
  for (size_t i = 0; i < kept_keys.size(); ++i) {
    const Batch::Entry& entry = batch.kept(0)[i];
    CHECK(entry.key == kept_keys[i] && entry.state == Batch::kOld);  // in their order
    for (const uint32_t at : batch.occurrences(entry)) CHECK(keys[at] == entry.key);
  }
  const auto all = batch.distinct(0);
  CHECK(std::all_of(all.begin() + static_cast<ptrdiff_t>(kept_keys.size()), all.end(),
                    [](const Batch::Entry& entry) { return entry.state == Batch::kRefused; }));
  batch.sort_out_refused(0, false);  // of a call that refuses none
  CHECK(batch.kept(0).size() == 300);
  for (Batch::Entry& entry : batch.distinct(0)) entry.state = Batch::kRefused;
  batch.sort_out_refused(0, true);
  CHECK(batch.kept(0).empty() && batch.distinct(0).size() == 300);
}

// Rows of one line and of many; a burst that is not full, whole ones, and one more key.
void test_every_key_is_stepped_once(uint32_t dim, size_t num_rows, size_t num_keys) {
  Table table(adagrad_table(dim)), one_by_one(adagrad_table(dim));
  const std::vector<int64_t> rows = keys_from(0, num_rows), keys = keys_from(0, num_keys);
  std::vector<float> out(num_rows * dim), actual(num_keys * dim), wanted(num_keys * dim);
  std::vector<float> grads(num_keys * dim);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = static_cast<float>(i % 37) - 18.0f;
  const float rate = 0.1f;
  table.lookup_or_insert(rows.data(), num_rows, out.data(), nullptr, 1, 1);
  table.apply_gradients(keys.data(), num_keys, grads.data(), {&rate, nullptr, 0}, 2, 1);
  for (size_t i = 0; i < num_keys; ++i) {
    one_by_one.apply_gradients(&keys[i], 1, &grads[i * dim], {&rate, nullptr, 0}, 2, 1);
  }
  table.lookup(keys.data(), num_keys, actual.data(), true, nullptr, 1);
  one_by_one.lookup(keys.data(), num_keys, wanted.data(), true, nullptr, 1);
  CHECK(actual == wanted);
}

constexpr uint32_t kDim = 4;
constexpr int64_t kKeys = 4000;

TableSpec ruled() {
  TableSpec spec = adagrad_table(kDim);
  spec.admission = {AdmissionKind::kMinCount, 1, {}, 1 << 20};
  return spec;
}

// Keys that have rows are stepped by their own gradients, whatever is refused around them; and a
// sum of gradients can be applied again after it was refused in part. Every key occurs twice.
void test_steps_among_refused_keys(bool is_sum, unsigned threads) {
  constexpr size_t kOccurs = 2 * kKeys;
  Table table(ruled()), plain(adagrad_table(kDim));
  std::vector<int64_t> old;
  for (int64_t key = 0; key < kKeys; key += 3) old.push_back(key);
  std::vector<float> out(kKeys * kDim), wanted(kKeys * kDim), grads(kOccurs * kDim);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = static_cast<float>(i % 37) - 18.0f;
  for (Table* tested : {&table, &plain}) {
    tested->lookup_or_insert(old.data(), old.size(), out.data(), nullptr, 1, 1);
  }
  const std::vector<int64_t> keys = keys_from(0, kKeys);
  std::vector<int64_t> twice = keys;
  twice.insert(twice.end(), keys.rbegin(), keys.rend());
  const float rate = 0.1f;
  const Table::StepOptions options{&rate, nullptr, 0};
  const Bags bags{twice.data(), kOccurs, nullptr, kOccurs, PoolMode::kSum, nullptr, 1};
  const BagPiece piece{bags, {grads.data(), kDim}, nullptr};
  GradientSum sum = table.sum_bag_gradients({&piece, 1}, threads);
  const auto step = [&](Table& to, bool sums) {
    return sums ? to.apply_bag_gradients(sum, options, 2, threads)
                : to.apply_gradients(twice.data(), kOccurs, grads.data(), options, 2, threads);
  };
  const AppliedCounts first = step(table, is_sum);
  CHECK(first.applied == old.size() && first.inserted == 0);
  CHECK(first.refused == kKeys - old.size());
  const AppliedCounts second = step(table, is_sum);  // now every key was seen once
  CHECK(second.applied == kKeys && second.refused == 0);
  CHECK(second.inserted == kKeys - old.size());
  for (const int64_t key : old) {  // two steps for these, one for the others
    const int64_t both[] = {key, key};
    std::vector<float> pair_grads(grads.begin() + key * kDim, grads.begin() + (key + 1) * kDim);
    const auto last = grads.end() - key * kDim;
    pair_grads.insert(pair_grads.end(), last - kDim, last);
    plain.apply_gradients(both, 2, pair_grads.data(), options, 2, 1);
  }
  step(plain, false);
  table.lookup(keys.data(), kKeys, out.data(), true, nullptr, 1);
  plain.lookup(keys.data(), kKeys, wanted.data(), true, nullptr, 1);
  CHECK(out == wanted);
}

// A call asks once about a key, also if it is the only refused key.
void test_a_single_refused_key_is_asked_once() {
  TableSpec spec = ruled();
  spec.admission.threshold = 2;
  Table table(spec);
  const int64_t key = 5;
  const float grads[kDim] = {1, 2, 3, 4}, rate = 0.1f;
  for (const uint64_t refused : {1, 1, 0}) {  // it has its row once it was seen twice
    const AppliedCounts counts = table.apply_gradients(&key, 1, grads, {&rate, nullptr, 0}, 2, 1);
    CHECK(counts.refused == refused && counts.inserted == 1 - refused);
  }
}

// New keys are shown as they are made; keys without room in the budget are shown too.
void test_refused_keys_are_looked_up() {
  TableSpec spec = adagrad_table(kDim);
  spec.budget_bytes = 20'000;
  Table table(spec), roomy(adagrad_table(kDim));
  const std::vector<int64_t> keys = keys_from(0, kKeys);
  std::vector<float> out(kKeys * kDim, -1.0f), wanted(kKeys * kDim);
  table.lookup_or_insert(keys.data(), kKeys, out.data(), nullptr, 1, 1);
  CHECK(table.num_rows() > 0 && table.num_rows() < kKeys);
  roomy.lookup(keys.data(), kKeys, wanted.data(), true, nullptr, 1);
  CHECK(out == wanted);
}

}  // namespace

int main() {
  test_a_single_refused_key_is_asked_once();
  test_refused_keys_are_looked_up();
  test_keys_that_were_seen_come_first();
  test_refused_keys_come_last();
  for (const size_t num_keys : {1, 11, 12, 13, 24, 25}) {
    test_every_key_is_stepped_once(16, 100, num_keys);
  }
  for (const uint32_t dim : {16, 64}) test_every_key_is_stepped_once(dim, 2'000, 1'999);
  for (const unsigned threads : {1, 3}) {
    test_steps_among_refused_keys(false, threads);
    test_steps_among_refused_keys(true, threads);
  }
  std::printf("batch: ok\n");
}
