// Rows that a load fills in are seen whole or not at all, on any number of threads.
#include <algorithm>
#include <atomic>
#include <thread>

#include "check.h"
#include "table/hash.h"
#include "tables.h"

using namespace monolith;

namespace {

constexpr uint32_t kDim = 4;
constexpr size_t kKeys = 1 << 15;

void fill(Table& table, const int64_t* keys, size_t n) {
  std::vector<int64_t> times(n, 3);
  std::vector<float> weights;
  for (size_t i = 0; i < n * kDim; ++i) weights.push_back(static_cast<float>(keys[i / kDim] + 1));
  auto* bytes = reinterpret_cast<char*>(weights.data());
  table.fill_rows(keys, n, {times.data(), {bytes, bytes}, {4 * kDim, 4 * kDim}});
}

// How many of the keys are there.
size_t count(const Table& table, const std::vector<int64_t>& keys) {
  std::vector<float> seen(keys.size() * kDim);
  table.lookup(keys.data(), keys.size(), seen.data(), false, nullptr, 1);
  size_t num_present = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const float first = seen[i * kDim];
    CHECK(first == 0.0f || first == static_cast<float>(keys[i] + 1));
    for (uint32_t d = 1; d < kDim; ++d) CHECK(seen[i * kDim + d] == first);
    num_present += first != 0.0f;
  }
  return num_present;
}

void check_halves(size_t expected) {
  Table table(adagrad_table(kDim));
  table.expect_rows(expected);
  auto keys = keys_from(0, kKeys);
  std::sort(keys.begin(), keys.end(),
            [](int64_t a, int64_t b) { return key_hash(a) < key_hash(b); });
  std::atomic<int> num_done{0};
  std::vector<std::thread> threads;
  for (size_t half = 0; half < 2; ++half) {
    threads.emplace_back([&, half] {
      for (size_t at = half * kKeys / 2; at < (half + 1) * kKeys / 2; at += 1024) {
        fill(table, keys.data() + at, 1024);
      }
      ++num_done;
    });
  }
  do {
    count(table, keys);
  } while (num_done < 2);
  for (std::thread& thread : threads) thread.join();
  CHECK(count(table, keys) == kKeys);
  CHECK(table.num_rows() == kKeys);
}

void check_without_memory() {
  Table table(adagrad_table(kDim));
  const auto keys = keys_from(0, kKeys);
  fill(table, keys.data(), 1);
  CHECK(table.clear());
  table.set_memory_limit(1 << 20);
  bool has_thrown = false;
  try {
    table.expect_rows(100'000'000);
  } catch (const OutOfMemory&) {
    has_thrown = true;
  }
  CHECK(has_thrown);
  fill(table, keys.data(), 1000);
  CHECK(count(table, keys) == 1000);
}

}  // namespace

int main() {
  for (const size_t expected : {size_t{0}, kKeys, 8 * kKeys}) check_halves(expected);
  check_without_memory();
}
