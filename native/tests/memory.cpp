// A call that runs out of memory changes nothing, wherever that happens; and memory is given back.
#include <cstring>
#include <new>

#include "check.h"
#include "table/epochs.h"
#include "table/page_heap.h"
#include "tables.h"

using namespace monolith;

namespace {

std::vector<float> read_all(const Table& table, const std::vector<int64_t>& keys) {
  std::vector<float> rows(keys.size() * 4);
  table.lookup(keys.data(), keys.size(), rows.data(), false, 1);
  return rows;
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
    const auto before = read_all(table, new_keys);
    table.set_memory_limit(table.held_bytes() + extra);
    try {
      table.apply_gradients(new_keys.data(), new_keys.size(), grads.data(), &rate, 0, 2, 2);
      CHECK(table.num_rows() == 30500);
      break;
    } catch (const std::bad_alloc& error) {
      CHECK(std::strstr(error.what(), "out of memory") != nullptr);
      ++failures;
    }
    CHECK(table.num_rows() == old_keys.size());
    CHECK(table.counters().inserted.load() == old_keys.size());
    CHECK(read_all(table, new_keys) == before);
    table.set_memory_limit(SIZE_MAX);
    table.apply_gradients(new_keys.data(), new_keys.size(), grads.data(), &rate, 0, 2, 2);
    CHECK(table.num_rows() == 30500);
  }
  CHECK(failures >= 3);
}

void test_clear_gives_memory_back() {
  Table table(adagrad_table(4));
  const size_t empty = table.held_bytes();
  const auto keys = keys_from(0, 200000);
  std::vector<float> rows(keys.size() * 4);
  table.lookup_or_insert(keys.data(), keys.size(), rows.data(), 1, 1);
  CHECK(table.held_bytes() > 40 * keys.size());
  table.clear();
  table.clear();
  CHECK(table.held_bytes() <= empty + 4096);
}

void test_erase_gives_index_back() {
  Table table(adagrad_table(4));
  const auto keys = keys_from(0, 200000);
  std::vector<float> rows(keys.size() * 4);
  table.lookup_or_insert(keys.data(), keys.size(), rows.data(), 1, 1);
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
    table.lookup_or_insert(keys.data(), keys.size(), rows.data(), 1, 1);
    table.erase(keys.data(), keys.size(), existed.get(), 1);
  }
  CHECK(table.row_bytes() <= 50000 * 40);
}

void test_page_heap_merges_neighbours() {
  Memory memory;
  PageHeap heap(memory);
  std::vector<void*> blocks;
  for (int i = 0; i < 1024; ++i) blocks.push_back(heap.allocate(kPageBytes));
  const size_t held = memory.held_bytes();
  for (void* block : blocks) heap.release(block, kPageBytes);
  CHECK(memory.held_bytes() == 0);
  for (int i = 0; i < 4; ++i) blocks[i] = heap.allocate(256 * kPageBytes);
  CHECK(memory.held_bytes() <= held);
  for (int i = 0; i < 4; ++i) heap.release(blocks[i], 256 * kPageBytes);
  CHECK(memory.held_bytes() == 0);
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
  test_failed_apply_changes_nothing();
  test_clear_gives_memory_back();
  test_erase_gives_index_back();
  test_erased_rows_are_reused();
  test_page_heap_merges_neighbours();
  test_retired_memory_waits_for_its_readers();
  std::printf("memory: ok\n");
}
