// What happens where something cannot grow: row numbers, bins, the directory, threads.
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "check.h"
#include "table/arena.h"
#include "table/epochs.h"
#include "table/index.h"
#include "table/team.h"
#include "tables.h"

using namespace monolith;

namespace {

std::atomic<bool> is_new_failing{false};

}  // namespace

[[gnu::noinline]] void* operator new(size_t bytes) {
  void* block = is_new_failing ? nullptr : std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, size_t) noexcept { std::free(block); }

namespace {

template <typename Call>
bool runs_out(const Call& call) {
  try {
    call();
    return false;
  } catch (const OutOfMemory& error) {
    CHECK(std::strstr(error.what(), "out of memory") != nullptr);
    return true;
  }
}

// The first chunk is one page, the second twice as large: 64 + 128 rows of 48 bytes and 8 of meta.
void test_arena_ends_with_its_last_chunk() {
  Memory memory;
  Epochs epochs;
  Arena arena(memory, epochs, 48, 2);
  std::vector<uint32_t> numbers(1000);
  size_t count = 0;
  const auto take_all = [&] {
    while (count < numbers.size()) count += arena.allocate(numbers.data() + count, 100);
  };
  CHECK(runs_out(take_all));
  CHECK(count == 64 + 128 && arena.bytes() == count * 56);
  arena.free(numbers.data(), 1);
  uint32_t again;
  CHECK(arena.allocate(&again, 1) == 1 && again == numbers[0]);
  CHECK(runs_out([&] { arena.allocate(&again, 1); }));
}

// After 8 chunks the directory is replaced; the new directory is freed if the rest fails.
void test_arena_gives_back_a_directory_that_it_cannot_use() {
  Memory memory;
  Epochs epochs;
  Arena arena(memory, epochs, 48, 16);
  std::vector<uint32_t> numbers(64 * 255);
  for (size_t count = 0; count < numbers.size();) {
    count += arena.allocate(numbers.data() + count, numbers.size() - count);
  }
  const size_t held = memory.held_bytes();
  bool has_failed = false;
  uint32_t next = 0;
  is_new_failing = true;
  try {
    arena.allocate(&next, 1);
  } catch (const std::bad_alloc&) {
    has_failed = true;
  }
  is_new_failing = false;
  CHECK(has_failed && memory.held_bytes() == held);
  CHECK(arena.allocate(&next, 1) == 1 && arena.bytes() == (numbers.size() + 1) * 56);
}

// Rows of chunks from 2 MiB on begin at an odd line if they are of an even number of lines. None
// lies upon another, and all memory goes back.
void test_rows_of_large_chunks_begin_at(size_t row_bytes, uintptr_t line_of_large) {
  Memory memory;
  Epochs epochs;
  {
    Arena arena(memory, epochs, row_bytes);
    std::vector<uint32_t> numbers(100'000);
    for (size_t count = 0; count < numbers.size();) {
      count += arena.allocate(numbers.data() + count, numbers.size() - count);
    }
    for (const uint32_t number : numbers) std::memset(arena.row(number), 0, row_bytes);
    for (const uint32_t number : numbers) {
      char* row = arena.row(number);
      CHECK(row[0] == 0 && row[row_bytes - 1] == 0);
      std::memset(row, 1, row_bytes);
    }
    const uint32_t first = numbers.back() >> Arena::kIndexBits << Arena::kIndexBits;
    CHECK(reinterpret_cast<uintptr_t>(arena.row(first)) / 64 % 2 == line_of_large);
    CHECK(arena.bytes() == numbers.size() * (row_bytes + sizeof(Meta)));
    epochs.reserve(arena.num_retired_by_clear());
    arena.clear();
    epochs.reclaim();
    CHECK(memory.held_bytes() < 4096);  // the directory of chunks
    uint32_t number;
    CHECK(arena.allocate(&number, 1) == 1 && arena.row(number) != nullptr);
  }
  CHECK(memory.held_bytes() == 0);
}

void test_a_chunk_of_few_rows_has_all_of_its_places() {
  constexpr size_t kRowBytes = size_t{2} << 20;
  Memory memory;
  Epochs epochs;
  Arena arena(memory, epochs, kRowBytes);
  uint32_t numbers[3];
  for (uint32_t& number : numbers) CHECK(arena.allocate(&number, 1) == 1);
  CHECK(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
  for (const uint32_t number : numbers) std::memset(arena.row(number), 1, kRowBytes);
  CHECK(arena.bytes() == 3 * (kRowBytes + sizeof(Meta)));
}

void test_last_row_number_is_not_a_mark() {
  const uint32_t last = (Arena::kMaxChunks << Arena::kIndexBits) - 1;
  CHECK((last & kReserved) == 0 && (last | kReserved) != kNoRow);
}

void insert(Index& index, int64_t key, uint32_t row) {
  const uint64_t hash = key_hash(key);
  Bin* bin = index.lock_bin(hash);
  try {
    bin = index.make_room(bin, hash);
  } catch (...) {
    bin->lock.unlock();
    throw;
  }
  bin->insert(key, hash, row, bin->find_free(hash));
  bin->lock.unlock();
}

// Four bins of 8 lines, each full at 7 of 8 slots.
void test_index_ends_with_its_last_bin() {
  Memory memory;
  Epochs epochs;
  Index index(memory, epochs, 0x9E3779B97F4A7C15u, 0, {2, 8});
  Epochs::Guard guard(epochs);
  std::vector<int64_t> inserted;
  for (int64_t key = 0; key < 1000; ++key) {
    const size_t bytes = index.bytes();
    if (runs_out([&] { insert(index, key, static_cast<uint32_t>(key)); })) {
      CHECK(index.bytes() == bytes && index.find(key, key_hash(key)).row == kNoRow);
    } else {
      inserted.push_back(key);
    }
  }
  CHECK(index.counters().splits == 3);
  CHECK(inserted.size() == 4 * static_cast<size_t>(8 * Line::kSlots * 0.875));
  for (const int64_t key : inserted) CHECK(index.find(key, key_hash(key)).row == key);
}

// At its depth the directory stays, and bins grow instead.
void test_bins_grow_where_the_directory_cannot() {
  Memory memory;
  Epochs epochs;
  Index index(memory, epochs, 0x9E3779B97F4A7C15u, 0, {1, BinRef::kMaxLines});
  Epochs::Guard guard(epochs);
  for (int64_t key = 0; key < 50000; ++key) insert(index, key, static_cast<uint32_t>(key));
  CHECK(index.counters().splits == 1);
  for (int64_t key = 0; key < 50000; ++key) CHECK(index.find(key, key_hash(key)).row == key);
}

void test_reference_to_the_largest_bin() {
  Memory memory;
  const size_t bytes = (size_t{BinRef::kMaxLines} + 1) * sizeof(Line);  // untouched but the first
  Bin* bin = new (memory.allocate(bytes)) Bin;
  bin->num_lines = BinRef::kMaxLines;
  const BinRef ref(bin);
  CHECK(ref.bin() == bin && ref.num_lines() == BinRef::kMaxLines && bin->bytes() == bytes);
  CHECK(BinRef(ref.bits()).home(UINT32_MAX) == bin->lines() + BinRef::kMaxLines - 1);
  memory.free(bin, bytes);
}

// A table needs memory for its index and its admission before the first row.
void test_budget_that_is_too_small_for_an_empty_table() {
  TableSpec spec = adagrad_table(4);
  spec.admission.kind = AdmissionKind::kMinCount;
  const size_t least = sizeof(Table) + Table(spec).index_bytes() + sizeof(Admission);
  spec.budget_bytes = least;
  CHECK(Table(spec).num_rows() == 0);
  for (const size_t bytes : {least - 1, least - sizeof(Admission) - 1}) {
    spec.budget_bytes = bytes;
    bool is_refused = false;
    try {
      const Table table(spec);
    } catch (const OverBudget&) {
      is_refused = true;
    }
    CHECK(is_refused);
  }
}

#ifdef __GLIBC__
// Threads whose stacks do not fit into the address space.
class NoThreads {
 public:
  NoThreads() {
    CHECK(pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t huge;
    CHECK(pthread_attr_init(&huge) == 0 && pthread_attr_setstacksize(&huge, size_t{1} << 50) == 0);
    CHECK(pthread_setattr_default_np(&huge) == 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

void test_call_without_threads_runs_on_its_own() {
  const NoThreads none;
  unsigned size = 0;
  Team::run(4, [&](Team& team, unsigned member) { size += team.size() + member; });
  CHECK(size == 1);
  Table table(adagrad_table(4));
  const auto keys = keys_from(0, 20000);
  std::vector<float> ones(keys.size() * 4, 1.0f), rows(ones.size());
  table.assign(keys.data(), keys.size(), ones.data(), 1, 4);
  table.lookup(keys.data(), keys.size(), rows.data(), true, nullptr, 4);
  CHECK(table.num_rows() == keys.size() && rows == ones);
}
#endif

}  // namespace

int main() {
  test_arena_ends_with_its_last_chunk();
  test_arena_gives_back_a_directory_that_it_cannot_use();
  test_rows_of_large_chunks_begin_at(128, 1);
  test_rows_of_large_chunks_begin_at(256, 1);
  test_rows_of_large_chunks_begin_at(320, 0);
  test_a_chunk_of_few_rows_has_all_of_its_places();
  test_last_row_number_is_not_a_mark();
  test_index_ends_with_its_last_bin();
  test_bins_grow_where_the_directory_cannot();
  test_reference_to_the_largest_bin();
  test_budget_that_is_too_small_for_an_empty_table();
#ifdef __GLIBC__
  test_call_without_threads_runs_on_its_own();
#endif
  std::printf("limits: ok\n");
}
