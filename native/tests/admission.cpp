// Compares the candidates and filters of admission with plain maps, with undone steps; and measures
// error rates.
#include "table/admission.h"

#include <algorithm>
#include <list>
#include <random>
#include <set>

#include "check.h"
#include "table/hash.h"
#include "tables.h"

using namespace monolith;

namespace {

// Keys in order of their last sighting.
struct PlainMap {
  std::list<CandidateRow> order;
  size_t cap;

  bool ask(int64_t key, uint32_t count, uint32_t now, uint32_t threshold) {
    CandidateRow row{key, 0, now};
    for (auto at = order.begin(); at != order.end(); ++at) {
      if (at->key != key) continue;
      row = *at;
      order.erase(at);
      break;
    }
    if (row.count >= threshold) return true;
    order.push_back({key, row.count + count, std::max(row.time, now)});
    if (order.size() > cap) order.pop_front();
    return false;
  }
};

bool same(const std::vector<CandidateRow>& a, const std::list<CandidateRow>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.key == y.key && x.count == y.count && x.time == y.time;
  });
}

std::vector<CandidateRow> rows_of(const Candidates& candidates) {
  std::vector<CandidateRow> rows;
  candidates.append_to(rows);
  return rows;
}

void check_same_set(const std::vector<CandidateRow>& a, const std::list<CandidateRow>& b) {
  CHECK(a.size() == b.size());
  for (const auto& row : a) {
    const auto is_twin = [&](const auto& other) {
      return other.key == row.key && other.count == row.count && other.time == row.time;
    };
    CHECK(std::any_of(b.begin(), b.end(), is_twin));
  }
}

// Every third call fails and is undone.
void test_candidates_equal_a_plain_map(uint32_t cap, const std::vector<int64_t>& keys) {
  Memory memory;
  Account account(memory);
  Candidates candidates;
  Candidates::Counters counters;
  const Candidates::Limits limits{cap, 0};
  PlainMap plain{{}, cap};
  std::mt19937_64 random(cap);
  int num_reordered = 0;
  for (int call = 0; call < 3000; ++call) {
    AdmissionLog log;
    const PlainMap old = plain;
    for (uint64_t i = 0; i < random() % 5; ++i) {
      const int64_t key = keys[random() % keys.size()];
      const auto count = static_cast<uint32_t>(1 + random() % 3);
      const auto now = static_cast<uint32_t>(random() % 100);
      const bool expected = plain.ask(key, count, now, 5);
      CHECK(candidates.ask(key, key_hash(key), count, now, 5, limits, account, counters, log) ==
            expected);
    }
    if (call % 3 == 0) {
      for (auto step = log.rbegin(); step != log.rend(); ++step) {
        candidates.undo(*step, key_hash(step->key), limits, counters);
      }
      plain = old;
      const auto rows = rows_of(candidates);
      if (!same(rows, plain.order)) {  // the log was squeezed: the rows stay, the order may not
        ++num_reordered;
        check_same_set(rows, plain.order);
        plain.order.assign(rows.begin(), rows.end());
      }
    }
    CHECK(same(rows_of(candidates), plain.order));
    CHECK(candidates.size() == plain.order.size());
  }
  CHECK(cap < 100 || num_reordered < 20);
  candidates.free(account);
  CHECK(candidates.size() == 0 && account.bytes() == 0 && memory.held_bytes() == 0);
}

// Keys of few buckets come and go many times around the log, and none of them comes back.
void test_new_keys_for_ever_find_room() {
  Memory memory;
  Account account(memory);
  Candidates candidates;
  Candidates::Counters counters;
  const std::vector<int64_t> keys = crowded_keys(20'000);
  for (const int64_t key : keys) {
    AdmissionLog log;
    CHECK(!candidates.ask(key, key_hash(key), 1, 0, 2, {64, 0}, account, counters, log));
  }
  const auto rows = rows_of(candidates);
  CHECK(rows.size() == 64 && counters.dropped == keys.size() - 64);
  for (size_t i = 0; i < 64; ++i) CHECK(rows[i].key == keys[keys.size() - 64 + i]);
  candidates.free(account);
}

// A call fails after other calls dropped every candidate that it counted.
void test_late_undo_keeps_the_order_sound() {
  Memory memory;
  Account account(memory);
  Candidates candidates;
  Candidates::Counters counters;
  const Candidates::Limits limits{3, 0};
  int64_t next = 0;
  const auto ask = [&](int64_t key, uint32_t threshold, AdmissionLog& log) {
    return candidates.ask(key, key_hash(key), 1, 0, threshold, limits, account, counters, log);
  };
  for (int num_others = 0; num_others < 30; ++num_others) {
    AdmissionLog failed, others;
    for (int i = 0; i < 3; ++i) ask(next++, 9, others);
    for (int i = 0; i < 2; ++i) ask(next++, 9, failed);
    for (int i = 0; i < num_others; ++i) ask(next++, 9, others);
    CHECK(ask(next - 1, 1, others));  // leaves, so that there is room
    for (auto step = failed.rbegin(); step != failed.rend(); ++step) {
      candidates.undo(*step, key_hash(step->key), limits, counters);
    }
    CHECK(candidates.size() <= 3 && rows_of(candidates).size() == candidates.size());
  }
  candidates.free(account);
}

// Every third call fails and is undone. Half of the keys start at the same cell: filters slide,
// forget, and have no cell for some keys.
void test_failed_calls_leave_a_filter_as_it_was() {
  Memory memory;
  Account account(memory);
  const FilterRing::Shape shape(300, 5);
  FilterRing ring;
  Candidates::Counters counters;
  std::mt19937_64 random(1);
  const auto state = [&] {
    std::vector<FilterRow> rows;
    ring.append_to(rows, shape);
    std::vector<int64_t> numbers = {static_cast<int64_t>(counters.dropped),
                                    static_cast<int64_t>(counters.overflows),
                                    static_cast<int64_t>(ring.size(shape))};
    for (const auto& row : rows) numbers.insert(numbers.end(), {row.split, row.cell, row.value});
    return numbers;
  };
  for (int call = 0; call < 600; ++call) {
    AdmissionLog log;
    const auto old = state();
    const uint64_t num_keys = random() % 200;
    for (uint64_t i = 0; i < num_keys; ++i) {
      const uint64_t start = random() % 2 * (random() % 8);
      const uint64_t hash = random() % 100 << 32 | start << 29;
      bool is_over = false;
      ring.add(hash, 1 + static_cast<uint32_t>(random() % 3), shape, account, counters, log,
               is_over);
    }
    if (call % 3 != 0) continue;
    CHECK(num_keys == 0 || state() != old);
    for (auto step = log.rbegin(); step != log.rend(); ++step) ring.undo(*step, shape, counters);
    CHECK(state() == old);
  }
  CHECK(counters.dropped > 0 && counters.overflows > 0);
  ring.free(shape, account);
}

// Share of keys whose count is wrong after each occurred twice (native-core 4.2).
double error_rate(uint64_t capacity) {
  Memory memory;
  Account account(memory);
  const FilterRing::Shape shape(capacity, 7);
  FilterRing ring;
  Candidates::Counters counters;
  AdmissionLog log;
  bool is_over = false;
  constexpr int kKeys = 1'000'000;
  int errors = 0;
  for (int64_t key = 0; key < kKeys; ++key) {
    ring.add(key_hash(key), 2, shape, account, counters, log, is_over);
  }
  for (int64_t key = 0; key < kKeys; ++key) {
    errors += ring.get(key_hash(key), shape) != 2;
  }
  CHECK(counters.overflows < kKeys / 10000);
  ring.free(shape, account);
  CHECK(memory.held_bytes() == 0 && ring.size(shape) == 0);
  return static_cast<double>(errors) / kKeys;
}

void test_filter_error_rates() {
  const double roomy = error_rate(1'000'000), tight = error_rate(500'000);
  std::printf("admission: filter errors %.5f, %.3f\n", roomy, tight);
  CHECK(roomy < 1.5 * 0.00908);
  CHECK(tight < 1.5 * 0.50);
}

// Most candidates that partitions have taken in when they grow from 256 on: if it were the same
// number for all, one call would pay for the whole table.
void test_partitions_grow_one_after_the_other() {
  Memory memory;
  std::set<int> sizes;
  for (uint32_t number = 0; number < 100; ++number) {
    Account account(memory);
    Candidates candidates;
    candidates.set_up(1, number);
    Candidates::Counters counters;
    AdmissionLog log;
    size_t bytes = 0;
    for (int i = 0; i <= 256; ++i) {
      candidates.ask(i, key_hash(i), 1, 0, 9, {1000, 0}, account, counters, log);
      if (i >= 128 && bytes != 0 && account.bytes() > bytes) sizes.insert(i);
      bytes = account.bytes();
    }
    candidates.free(account);
  }
  CHECK(sizes.size() > 40);
}

void test_empty_admission_is_small() {
  TableSpec spec = adagrad_table(4);
  for (const auto kind : {AdmissionKind::kMinCount, AdmissionKind::kSlidingFilter}) {
    spec.admission.kind = kind;
    spec.admission.threshold = 3;
    const Table table(spec);
    CHECK(sizeof(Table) + table.candidate_bytes() + table.held_bytes() <= 4096);
  }
}

}  // namespace

int main() {
  test_candidates_equal_a_plain_map(1, keys_from(0, 3));
  test_candidates_equal_a_plain_map(7, keys_from(0, 12));
  test_candidates_equal_a_plain_map(100, keys_from(0, 300));
  test_candidates_equal_a_plain_map(1000, keys_from(0, 500));
  test_candidates_equal_a_plain_map(100, crowded_keys(300));  // more than their buckets hold
  test_candidates_equal_a_plain_map(1000, crowded_keys(2000));
  test_new_keys_for_ever_find_room();
  test_late_undo_keeps_the_order_sound();
  test_failed_calls_leave_a_filter_as_it_was();
  test_filter_error_rates();
  test_partitions_grow_one_after_the_other();
  test_empty_admission_is_small();
  std::printf("admission: ok\n");
}
