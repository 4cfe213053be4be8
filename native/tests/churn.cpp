// Keys that come and go must not leave the index full of overflow flags, which make misses slow.
#include <vector>

#include "check.h"
#include "table/index.h"
#include "tables.h"

using namespace monolith;

namespace {

void insert(Index& index, int64_t key, uint32_t row) {
  const uint64_t hash = key_hash(key);
  Bin* bin = index.make_room(index.lock_bin(hash), hash);
  bin->insert(key, hash, row, bin->find_free(hash));
  bin->lock.unlock();
}

void remove(Index& index, int64_t key) {
  const uint64_t hash = key_hash(key);
  Bin* bin = index.lock_bin(hash);
  bin->remove(bin->find(key, hash));
  index.tidy(bin)->lock.unlock();
}

// Share of lines that send a search for a missing key on to the next line.
double overflowed_share(const Index& index) {
  size_t lines = 0, overflowed = 0;
  for (uint64_t hash = 0;;) {
    const BinRef ref = index.bin_of(hash);
    for (uint32_t i = 0; i < ref.num_lines(); ++i) {
      overflowed += (ref.lines()[i].version.load() & Line::kOverflowed) != 0;
    }
    lines += ref.num_lines();
    if (ref.bin()->last_hash() == UINT64_MAX) break;
    hash = ref.bin()->last_hash() + 1;
  }
  return static_cast<double>(overflowed) / static_cast<double>(lines);
}

void test_misses_stay_short_while_keys_turn_over() {
  Memory memory;
  Epochs epochs;
  Index index(memory, epochs, 0x9E3779B97F4A7C15u);
  constexpr int64_t kRows = 30000;
  for (int64_t key = 0; key < kRows; ++key) insert(index, key, static_cast<uint32_t>(key));
  const double at_first = overflowed_share(index);
  for (int64_t key = 0; key < 20 * kRows; ++key) {
    remove(index, key);
    insert(index, key + kRows, static_cast<uint32_t>(key % kRows));
  }
  CHECK(overflowed_share(index) < at_first + 0.2);
}

// The hash is public, so an attacker can choose keys with equal low bits; the salt keeps them
// apart.
void test_chosen_keys_do_not_meet_in_one_line() {
  Memory memory;
  Epochs epochs;
  Index index(memory, epochs, 0x9E3779B97F4A7C15u);
  const auto unmix = [](uint64_t x) {  // inverse of key_hash
    const auto unshift = [](uint64_t y, int by) { return y ^ (y >> by) ^ (y >> 2 * by); };
    x = unshift(x, 31) * 0x319642b2d24d8ec3u;
    x = unshift(x, 27) * 0x96de1b173f119089u;
    return static_cast<int64_t>(unshift(x, 30));
  };
  for (uint64_t i = 0; i < 20000; ++i) {
    const int64_t key = unmix((i << 40) | 12345);
    CHECK(key_hash(key) == ((i << 40) | 12345));
    insert(index, key, static_cast<uint32_t>(i));
  }
  CHECK(overflowed_share(index) < 0.5);
}

void test_a_sweep_holds_a_lock_for_few_rows_and_only_where_some_go() {
  constexpr uint32_t kDay = 86400;
  TableSpec spec = adagrad_table(4);
  spec.expiry_days = 1;
  Table table(spec);
  const auto keys = keys_from(0, 20000);
  const std::vector<float> values(keys.size() * 4, 1.0f);
  table.assign(keys.data(), keys.size(), values.data(), kDay, 1);
  CHECK(table.evict(kDay) == 0);
  CHECK(table.counters().sweep_held_max == 0);
  CHECK(table.evict(2 * kDay) == keys.size());
  CHECK(table.counters().sweep_held_max > 0);
  CHECK(table.counters().sweep_held_max <= 80);
}

void test_a_lonely_writer_waits_for_nobody() {
  Table table(adagrad_table(4));
  const auto keys = keys_from(0, 20000);
  const std::vector<float> values(keys.size() * 4, 1.0f);
  for (int round = 0; round < 3; ++round) {
    table.assign(keys.data(), keys.size(), values.data(), 1, 1);
  }
  CHECK(table.index_counters().lock_waits == 0);
}

}  // namespace

int main() {
  test_misses_stay_short_while_keys_turn_over();
  test_chosen_keys_do_not_meet_in_one_line();
  test_a_sweep_holds_a_lock_for_few_rows_and_only_where_some_go();
  test_a_lonely_writer_waits_for_nobody();
  std::printf("churn: ok\n");
}
