// Large lookups: they write past the caches where they can, and their keys lie in first, second and
// further lines.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "check.h"
#include "tables.h"

using namespace monolith;

namespace {

constexpr size_t kKeys = 200'000;  // some of them overflowed two lines
constexpr float kUntouched = -7.0f;

// A table with a value for each key but every 97th, which a lookup reads as zeros.
struct FilledTable {
  explicit FilledTable(uint32_t dim)
      : table(adagrad_table(dim)), keys(keys_from(1, kKeys)), values(kKeys * dim) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1'000'003);
    table.assign(keys.data(), kKeys, values.data(), 1, 2);
    for (size_t i = 0; i < kKeys; i += 97) {
      keys[i] = -keys[i];
      std::fill_n(values.begin() + static_cast<ptrdiff_t>(i * dim), dim, 0.0f);
    }
  }
  Table table;
  std::vector<int64_t> keys;
  std::vector<float> values;
};

// shift: values between the start of a cache line and the output.
void test_a_large_lookup(const FilledTable& filled, unsigned threads, size_t shift) {
  constexpr size_t kLine = 16;  // values
  const size_t size = filled.values.size();
  std::vector<float> memory(size + 2 * kLine, kUntouched);
  const size_t address = reinterpret_cast<uintptr_t>(memory.data()) / sizeof(float);
  float* const out = memory.data() + (kLine - address % kLine) % kLine + shift;
  filled.table.lookup(filled.keys.data(), kKeys, out, false, nullptr, threads);
  CHECK(std::equal(filled.values.begin(), filled.values.end(), out));
  CHECK(std::count(memory.data(), out, kUntouched) == out - memory.data());
  const float* const end = memory.data() + memory.size();
  const float* const rest = out + size;
  CHECK(std::count(rest, end, kUntouched) == end - rest);
}

// A row that changes while it is copied is copied again.
void test_rows_are_whole_beside_a_writer(uint32_t dim) {
  constexpr size_t kSome = 20'000;
  Table table(adagrad_table(dim));
  const std::vector<int64_t> keys = keys_from(1, kSome);
  std::vector<float> values(kSome * dim);
  table.assign(keys.data(), kSome, values.data(), 1, 1);
  std::atomic<bool> is_done{false};
  std::thread writer([&] {
    for (float value = 1.0f; !is_done; value += 1.0f) {
      std::fill(values.begin(), values.end(), value);
      table.assign(keys.data(), kSome, values.data(), 1, 1);
    }
  });
  auto* out = static_cast<float*>(std::aligned_alloc(64, kSome * dim * sizeof(float)));
  for (int round = 0; round < 50; ++round) {
    table.lookup(keys.data(), kSome, out, false, nullptr, 1);
    for (const float* row = out; row != out + kSome * dim; row += dim) {
      CHECK(std::count(row, row + dim, row[0]) == dim);
    }
  }
  is_done = true;
  writer.join();
  std::free(out);
}

}  // namespace

int main() {
  for (const uint32_t dim : {16u, 48u, 10u}) {  // one line, several, and no whole ones
    const FilledTable filled(dim);
    for (const unsigned threads : {1u, 2u}) {
      test_a_large_lookup(filled, threads, 0);
      test_a_large_lookup(filled, threads, 1);
    }
  }
  test_rows_are_whole_beside_a_writer(16);
  test_rows_are_whole_beside_a_writer(64);
}
