// Every verb beside every other, from many threads. Run under the thread and address sanitizers.
//
// Each key's row holds `dim` equal weights at all times, because every write is uniform over the
// row: a torn read shows as a row of unequal weights.
#include <algorithm>
#include <random>
#include <thread>

#include "check.h"
#include "tables.h"

using namespace monolith;

namespace {

constexpr uint32_t kDim = 16;
constexpr size_t kKeys = 4000;
constexpr size_t kBatch = 600;
constexpr int kRounds = 120;

TableSpec constant_table() {
  TableSpec spec = adagrad_table(kDim);
  spec.segments[0].minval = spec.segments[0].maxval = 1.0f;
  return spec;
}

std::vector<int64_t> some_keys(std::mt19937_64& random) {
  std::vector<int64_t> keys(kBatch);
  for (int64_t& key : keys) key = static_cast<int64_t>(random() % kKeys) - 7;
  return keys;
}

void check_whole(const std::vector<float>& rows) {
  for (size_t i = 0; i < rows.size(); i += kDim) {
    for (size_t c = 1; c < kDim; ++c) CHECK(rows[i + c] == rows[i]);
  }
}

void read(Table& table, std::mt19937_64& random) {
  std::vector<float> out(kBatch * kDim), norm(kBatch * kDim);
  std::vector<int64_t> times(kBatch);
  bool flags[kBatch];
  const Table::Columns columns{times.data(), {out.data(), norm.data()}, {kDim, kDim}};
  const auto keys = some_keys(random);
  table.lookup(keys.data(), kBatch, out.data(), random() % 2, 1 + random() % 2);
  check_whole(out);
  table.entries(keys.data(), kBatch, flags, columns, 1 + random() % 2);
  check_whole(out);
  check_whole(norm);
  table.contains(keys.data(), kBatch, flags, 1 + random() % 2);
  std::vector<int64_t> exported(kBatch);
  const size_t n = table.export_rows(random(), UINT64_MAX, kBatch, exported.data(), columns);
  for (size_t i = 1; i < n; ++i) CHECK(key_hash(exported[i - 1]) < key_hash(exported[i]));
  out.resize(n * kDim);
  check_whole(out);
}

void write(Table& table, std::mt19937_64& random) {
  const auto keys = some_keys(random);
  std::vector<float> values(kBatch * kDim, 0.5f);
  const float rate = 0.1f;
  const auto threads = static_cast<unsigned>(1 + random() % 2);
  bool existed[kBatch];
  std::vector<int32_t> status(kBatch);
  switch (random() % 7) {
    case 0:
      return table.assign(keys.data(), kBatch, values.data(), 5, threads);
    case 1:
      return table.assign_add(keys.data(), kBatch, values.data(), 6, threads);
    case 2:
      return table.erase(keys.data(), kBatch, existed, threads);
    case 3:
      return table.reinitialize(keys.data(), kBatch, status.data(), 7, threads);
    case 4:
      return table.lookup_or_insert(keys.data(), kBatch, values.data(), 8, threads);
    case 5:
      if (random() % 8 == 0) return table.clear();
      [[fallthrough]];
    default:
      table.apply_gradients(keys.data(), kBatch, values.data(), &rate, 0, 9, threads);
  }
}

}  // namespace

int main() {
  Table table(constant_table());
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 6; ++t) {
    threads.emplace_back([&table, t] {
      std::mt19937_64 random(t);
      for (int round = 0; round < kRounds; ++round)
        t < 3 ? read(table, random) : write(table, random);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto& counters = table.counters();
  CHECK(table.num_rows() == counters.inserted.load() - counters.erased.load());
  std::printf("stress: %llu rows, %llu retries, %llu waits\n",
              static_cast<unsigned long long>(table.num_rows()),
              static_cast<unsigned long long>(counters.reader_retries.load()),
              static_cast<unsigned long long>(counters.reader_waits.load()));
}
