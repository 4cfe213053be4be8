// A call that runs out of memory changes nothing, at any allocation; and memory is freed.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

#include "check.h"
#include "table/epochs.h"
#include "table/page_heap.h"
#include "tables.h"

using namespace monolith;

namespace {

std::atomic<int64_t> failing_allocation{0};  // counts down; the one that reaches 0 fails
std::atomic<size_t> asked_bytes{0}, most_asked_bytes{0};

}  // namespace

// The core allocates small objects with it; rows and index come from Memory.
[[gnu::noinline]] void* operator new(size_t bytes) {
  asked_bytes += bytes;
  if (bytes > most_asked_bytes) most_asked_bytes = bytes;
  if (failing_allocation > 0 && --failing_allocation == 0) throw std::bad_alloc();
  void* block = std::malloc(bytes + (bytes == 0));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }
// As memory resources ask; no alignment of theirs is above that of malloc.
[[gnu::noinline]] void* operator new(size_t bytes, std::align_val_t) { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t, std::align_val_t) noexcept {
  std::free(block);
}

namespace {

std::vector<float> read_all(const Table& table, const std::vector<int64_t>& keys) {
  std::vector<float> rows(keys.size() * 4);
  table.lookup(keys.data(), keys.size(), rows.data(), false, nullptr, 1);
  return rows;
}

// There are rows for all keys, but no memory to note that they changed.
void test_no_memory_for_the_log_changes_nothing() {
  Table table(adagrad_table(4));
  const auto keys = keys_from(0, 20000);
  const std::vector<float> grads(keys.size() * 4, 1.0f);
  const float rate = 0.1f;
  table.assign(keys.data(), keys.size(), grads.data(), 1, 1);
  table.changes("reader", 1);
  const auto old_rows = read_all(table, keys);
  table.set_memory_limit(table.held_bytes() + 100000);
  bool has_failed = false;
  try {
    table.apply_gradients(keys.data(), keys.size(), grads.data(), {&rate, nullptr, 0}, 2, 2);
  } catch (const OutOfMemory&) {
    has_failed = true;
  }
  CHECK(has_failed && read_all(table, keys) == old_rows);
  table.set_memory_limit(SIZE_MAX);
  CHECK(table.changes("reader", 1).present.empty());
}

// Allows a little more memory each time, until the call passes.
void test_failed_apply_changes_nothing() {
  const auto old_keys = keys_from(0, 1000);
  const auto new_keys = keys_from(500, 30000);
  const std::vector<float> grads(new_keys.size() * 4, 1.0f);
  const float rate = 0.1f;
  int failures = 0;
  for (size_t extra = 0;; extra += 100000) {
    Table table(adagrad_table(4));
    table.assign(old_keys.data(), old_keys.size(), grads.data(), 1, 1);
    const auto old_rows = read_all(table, new_keys);
    table.set_memory_limit(table.held_bytes() + extra);
    try {
      table.apply_gradients(new_keys.data(), new_keys.size(), grads.data(), {&rate, nullptr, 0}, 2,
                            2);
      CHECK(table.num_rows() == 30500);
      break;
    } catch (const std::bad_alloc& error) {
      CHECK(std::strstr(error.what(), "out of memory") != nullptr);
      ++failures;
    }
    CHECK(table.num_rows() == old_keys.size());
    CHECK(table.counters().inserted.load() == old_keys.size());
    CHECK(read_all(table, new_keys) == old_rows);
    table.set_memory_limit(SIZE_MAX);
    table.apply_gradients(new_keys.data(), new_keys.size(), grads.data(), {&rate, nullptr, 0}, 2,
                          2);
    CHECK(table.num_rows() == 30500);
  }
  CHECK(failures >= 3);
}

// What admission remembers, row by row, in order of the rows.
std::vector<std::vector<int64_t>> remembered(Table& table) {
  const auto values = table.export_candidates(all_partitions());
  std::vector<std::vector<int64_t>> rows;
  const uint32_t width = table.num_candidate_columns();
  for (auto at = values.begin(); at != values.end(); at += width) rows.emplace_back(at, at + width);
  std::sort(rows.begin(), rows.end());
  return rows;
}

void check_same(const Admission::Facts& a, const Admission::Facts& b) {
  CHECK(a.candidates == b.candidates && a.dropped == b.dropped && a.overflows == b.overflows);
}

TableSpec asking_table(const AdmissionSpec& admission) {
  TableSpec spec = adagrad_table(4);
  spec.admission = admission;
  return spec;
}

const AdmissionSpec kMinCountSpec{
    AdmissionKind::kMinCount, 2, {}, 4096 * 16 * 200, 50, 0, 0, false};
const AdmissionSpec kFilterSpec{AdmissionKind::kSlidingFilter, 2, {}, 0, 0, 1, 7, false};

// Some keys are admitted, some are counted and some are new.
void test_failed_apply_takes_its_questions_back(const AdmissionSpec& admission) {
  const auto keys = crowded_keys(30000);
  const std::vector<float> grads(2 * keys.size() * 4, 1.0f);
  const float rate = 0.1f;
  int failures = 0;
  for (size_t extra = 0;; extra += 100000) {
    Table table(asking_table(admission));
    for (const uint32_t n : {9000u, 6000u}) {
      table.apply_gradients(keys.data(), n, grads.data(), {&rate, nullptr, 0}, 1, 1);
    }
    const auto old_rows = remembered(table);
    CHECK(old_rows.size() > 8000);
    const auto facts = table.admission_facts();
    const uint64_t num_rows = table.num_rows(), num_refused = table.counters().refused;
    table.set_memory_limit(table.held_bytes() + extra);
    bool has_failed = false;
    try {
      table.apply_gradients(keys.data(), keys.size(), grads.data(), {&rate, nullptr, 0}, 20, 2);
    } catch (const std::bad_alloc&) {
      has_failed = true;
    }
    if (!has_failed) {
      CHECK(table.admission_facts().dropped > facts.dropped);
      break;
    }
    ++failures;
    CHECK(table.num_rows() == num_rows && table.counters().refused == num_refused);
    CHECK(remembered(table) == old_rows);
    check_same(table.admission_facts(), facts);
    table.set_memory_limit(SIZE_MAX);
    const auto counts =
        table.apply_gradients(keys.data(), keys.size(), grads.data(), {&rate, nullptr, 0}, 20, 2);
    CHECK(counts.applied + counts.refused == 30000 && counts.inserted > 4000);
  }
  CHECK(failures >= 3);
}

// Some of the imported rows replace others, and some make others go.
void test_failed_import_of_candidates_changes_nothing(const AdmissionSpec& admission) {
  const auto keys = crowded_keys(60000);
  const std::vector<float> values(keys.size() * 4, 1.0f);
  Table source(asking_table(admission));
  source.assign(keys.data() + 20000, 40000, values.data(), 7, 1);
  const auto rows = source.export_candidates(all_partitions());
  const size_t n = rows.size() / source.num_candidate_columns();
  int failures = 0;
  for (size_t extra = 0;; extra += 20000) {
    Table table(asking_table(admission));
    table.assign(keys.data(), 2000, values.data(), 5, 1);
    table.assign(keys.data() + 19000, 2000, values.data(), 5, 1);
    const auto old_rows = remembered(table);
    const auto facts = table.admission_facts();
    table.set_memory_limit(table.held_bytes() + extra);
    try {
      table.import_candidates(rows.data(), n);
      CHECK(remembered(table) != old_rows);
      break;
    } catch (const std::bad_alloc& error) {
      CHECK(std::strstr(error.what(), "out of memory") != nullptr);
      ++failures;
    }
    CHECK(remembered(table) == old_rows);
    check_same(table.admission_facts(), facts);
  }
  CHECK(failures >= 3);
}

// Admission stays consistent: its number of counts is right, and its partitions still work. batch:
// keys of a call; a large one takes its turn for whole groups of partitions.
void test_failing_calls_beside_others(const AdmissionSpec& admission, size_t batch) {
  Table table(asking_table(admission));
  const auto keys = crowded_keys(2 * batch);
  const std::vector<float> values(keys.size() * 4, 1.0f);
  std::atomic<int> num_failed{0};
  const auto write = [&](size_t first) {
    for (uint32_t round = 0; round < 40; ++round) {
      table.set_memory_limit(round % 2 == 0 ? table.held_bytes() + 20000 : SIZE_MAX);
      try {
        table.assign(keys.data() + first, batch, values.data(), round, 2);
        if (round % 4 == 0) {
          const auto rows = table.export_candidates(all_partitions());
          table.import_candidates(rows.data(), rows.size() / table.num_candidate_columns());
        }
        if (round % 8 == 0) table.clear();
      } catch (const std::bad_alloc&) {
        ++num_failed;
      }
    }
  };
  std::vector<std::thread> threads;
  for (const size_t first : {size_t{0}, batch / 2, batch}) threads.emplace_back(write, first);
  for (std::thread& thread : threads) thread.join();
  size_t num_counts = 0;
  for (const auto& row : remembered(table)) num_counts += row.size() == 3 || row[1] >= 0;
  CHECK(table.admission_facts().candidates == num_counts);
  CHECK(num_failed > 0);
}

// The visible state of a table, except for its bytes.
std::vector<int64_t> seen(Table& table) {
  constexpr size_t kMost = 2000;
  std::vector<int64_t> numbers(2 * kMost);
  std::vector<char> weights(kMost * 16), state(kMost * 16);
  const size_t n =
      table.export_rows(0, UINT64_MAX, kMost, numbers.data(),
                        {numbers.data() + kMost, {weights.data(), state.data()}, {16, 16}});
  for (const auto* bytes : {&weights, &state}) {
    numbers.insert(numbers.end(), bytes->begin(), bytes->end());
  }
  const auto candidates = table.export_candidates(all_partitions());
  numbers.insert(numbers.end(), candidates.begin(), candidates.end());
  for (const uint64_t fact : {uint64_t{n}, table.num_rows(), table.num_update_calls(),
                              uint64_t{table.latest_time()}, uint64_t{table.num_cuts()},
                              uint64_t{table.cursors().size()}, table.counters().erased.load()}) {
    numbers.push_back(static_cast<int64_t>(fact));
  }
  return numbers;
}

// Fails the first allocation of the call, then the second, until it passes. Returns the number of
// failures.
template <typename Call>
int fail_each_allocation(Table& table, const Call& call) {
  const auto old_rows = seen(table);
  for (int n = 1;; ++n) {
    try {
      failing_allocation = n;
      call();
      failing_allocation = 0;
      return n - 1;
    } catch (const std::bad_alloc&) {
      failing_allocation = 0;
    }
    CHECK(seen(table) == old_rows);
  }
}

void test_each_failing_allocation_changes_nothing(const AdmissionSpec& admission) {
  Table table(asking_table(admission));
  const auto keys = crowded_keys(1500);
  const std::vector<float> values(keys.size() * 4, 1.0f);
  for (uint32_t i = 0; i < 3; ++i) table.assign(keys.data(), 700, values.data(), i, 1);
  table.changes("reader", 1);
  std::shared_ptr<Cut> cut;
  const std::string cursor = "reader";
  table.erase(keys.data(), 100, std::make_unique<bool[]>(100).get(), 1);
  CHECK(fail_each_allocation(table, [&] { cut = table.open_cut(&cursor); }) > 1);
  const auto then = table.export_candidates(all_partitions());
  const auto assign = [&] { table.assign(keys.data(), keys.size(), values.data(), 9, 1); };
  CHECK(fail_each_allocation(table, assign) > 5);
  CHECK(table.export_candidates(all_partitions(), cut.get()) == then);
  Table::Changes changes;
  CHECK(fail_each_allocation(table, [&] { changes = table.changes(*cut, 1); }) > 5);
  CHECK(!changes.is_full && changes.present.empty() && changes.gone.size() == 100);
  CHECK(fail_each_allocation(table, [&] { changes = table.changes(cursor, 1); }) > 0);
  CHECK(changes.is_full);
  assign();
  changes = table.changes(cursor, 1);
  CHECK(!changes.is_full && changes.present.size() >= 600 && changes.gone.empty());
  table.close_cut(*cut);
  CHECK(fail_each_allocation(table, [&] { table.clear(); }) > 0);
  CHECK(table.num_rows() == 0);
}

void test_failed_clears_reserve_nothing() {
  Table table(adagrad_table(4));
  const auto keys = keys_from(0, 20000);
  std::vector<float> rows(keys.size() * 4);
  table.lookup_or_insert(keys.data(), keys.size(), rows.data(), nullptr, 1, 1);
  const size_t index_bytes = table.index_bytes();
  table.set_memory_limit(0);
  most_asked_bytes = 0;
  for (int i = 0; i < 1000; ++i) {
    bool has_failed = false;
    try {
      table.clear();
    } catch (const std::bad_alloc&) {
      has_failed = true;
    }
    CHECK(has_failed && table.index_bytes() == index_bytes);
  }
  table.set_memory_limit(SIZE_MAX);
  CHECK(table.clear() && most_asked_bytes < 50000);
}

void test_a_cut_is_small() {
  Table table(adagrad_table(4));
  asked_bytes = 0;
  const size_t held = table.held_bytes();
  const auto cut = table.open_cut();
  CHECK(asked_bytes < 4096 && table.held_bytes() == held);
  table.close_cut(*cut);
}

void test_evicted_rows_and_candidates_are_given_back() {
  TableSpec spec = adagrad_table(4);
  spec.admission = {AdmissionKind::kMinCount, 1, {}, size_t{1} << 28, 0, 0, 0, false};
  spec.expiry_days = 1;
  Table table(spec);
  const size_t empty = table.held_bytes();
  const auto keys = keys_from(0, 100000);
  const std::vector<float> values(keys.size() * 4, 1.0f);
  for (int round = 0; round < 2; ++round) {
    table.assign(keys.data(), keys.size(), values.data(), 100, 1);
  }
  CHECK(table.num_rows() == 100000 && table.admission_facts().candidates == 0);
  const size_t full = table.index_bytes();
  uint64_t evicted = 0, next = 0;
  do {
    const auto slice = table.evict_slice(next, 100 + 86400);
    evicted += slice.count;
    next = slice.next;
  } while (next != 0);
  CHECK(evicted == 100000 && table.num_rows() == 0);
  CHECK(table.index_bytes() < full / 4);
  table.clear();
  table.clear();
  CHECK(table.held_bytes() <= empty + 4096);
}

void test_clear_gives_memory_back() {
  Table table(adagrad_table(4));
  const size_t empty = table.held_bytes();
  const auto keys = keys_from(0, 200000);
  std::vector<float> rows(keys.size() * 4);
  table.lookup_or_insert(keys.data(), keys.size(), rows.data(), nullptr, 1, 1);
  CHECK(table.held_bytes() > 40 * keys.size());
  table.clear();
  table.clear();
  CHECK(table.held_bytes() <= empty + 4096);
}

void test_erase_gives_index_back() {
  Table table(adagrad_table(4));
  const auto keys = keys_from(0, 200000);
  std::vector<float> rows(keys.size() * 4);
  table.lookup_or_insert(keys.data(), keys.size(), rows.data(), nullptr, 1, 1);
  const size_t full = table.index_bytes();
  const auto existed = std::make_unique<bool[]>(keys.size());
  table.erase(keys.data(), keys.size(), existed.get(), 1);
  CHECK(table.num_rows() == 0);
  CHECK(table.index_bytes() < full / 4);
}

void test_erased_rows_are_reused() {
  Table table(adagrad_table(4));
  const auto keys = keys_from(0, 50000);
  std::vector<float> rows(keys.size() * 4);
  const auto existed = std::make_unique<bool[]>(keys.size());
  for (int round = 0; round < 5; ++round) {
    table.lookup_or_insert(keys.data(), keys.size(), rows.data(), nullptr, 1, 1);
    table.erase(keys.data(), keys.size(), existed.get(), 1);
  }
  CHECK(table.row_bytes() <= 50000 * 40);
}

void test_page_heap_merges_neighbours() {
  PageHeap& heap = PageHeap::shared();
  CHECK(heap.held_bytes() == 0);  // all tables are gone
  std::vector<void*> blocks;
  for (int i = 0; i < 1024; ++i) blocks.push_back(heap.allocate(kPageBytes));
  const size_t held = heap.held_bytes();
  for (void* block : blocks) heap.free(block, kPageBytes);
  CHECK(heap.held_bytes() == 0);
  for (int i = 0; i < 4; ++i) blocks[i] = heap.allocate(256 * kPageBytes);
  CHECK(heap.held_bytes() <= held);
  for (int i = 0; i < 4; ++i) heap.free(blocks[i], 256 * kPageBytes);
  CHECK(heap.held_bytes() == 0);
}

// Two tables of half a slab each fit into few slabs.
void test_tables_share_slabs() {
  Table first(adagrad_table(16)), second(adagrad_table(16));
  const auto keys = keys_from(0, 12000);
  std::vector<float> rows(keys.size() * 16);
  for (Table* table : {&first, &second}) {
    table->lookup_or_insert(keys.data(), keys.size(), rows.data(), nullptr, 1, 1);
  }
  const size_t used = first.held_bytes() + second.held_bytes();
  const size_t held = PageHeap::shared().held_bytes();
  CHECK(held >= kHugeBytes && held <= used + kHugeBytes);
}

void test_retired_memory_waits_for_its_readers() {
  static int freed = 0;
  Epochs epochs;
  const auto free = [](void*, void*, size_t) { ++freed; };
  {
    Epochs::Guard reader(epochs);
    epochs.reserve(2);
    epochs.retire(free, nullptr, nullptr, 0);
    epochs.reclaim();
    CHECK(freed == 0);
    reader.refresh();
    epochs.reclaim();
    CHECK(freed == 1);
    epochs.retire(free, nullptr, nullptr, 0);
  }
  epochs.reclaim();
  CHECK(freed == 2);
}

}  // namespace

int main() {
  test_no_memory_for_the_log_changes_nothing();
  test_failed_apply_changes_nothing();
  for (const AdmissionSpec& admission : {kMinCountSpec, kFilterSpec}) {
    test_failed_apply_takes_its_questions_back(admission);
    test_failed_import_of_candidates_changes_nothing(admission);
    for (const size_t batch : {3000, 20000}) test_failing_calls_beside_others(admission, batch);
    test_each_failing_allocation_changes_nothing(admission);
  }
  test_failed_clears_reserve_nothing();
  test_a_cut_is_small();
  test_evicted_rows_and_candidates_are_given_back();
  test_clear_gives_memory_back();
  test_erase_gives_index_back();
  test_erased_rows_are_reused();
  test_page_heap_merges_neighbours();
  test_tables_share_slabs();
  test_retired_memory_waits_for_its_readers();
  std::printf("memory: ok\n");
}
