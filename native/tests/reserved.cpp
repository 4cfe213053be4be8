// A call that meets rows which another one has reserved and not drawn yet shows initial values, and
// leaves them alone if the other one has written them since.
#include <atomic>
#include <thread>

#include "check.h"
#include "tables.h"

using namespace monolith;

namespace {

constexpr uint32_t kDim = 4;
constexpr size_t kKeys = 4096;
constexpr float kImported = 7.0f;
constexpr uint32_t kImportTime = 5, kLater = 9;

void import_all(Table& table, const std::vector<int64_t>& keys) {
  std::vector<int64_t> times(keys.size(), kImportTime);
  std::vector<float> weights(keys.size() * kDim, kImported);
  table.import_rows(
      keys.data(), keys.size(),
      {times.data(),
       {reinterpret_cast<char*>(weights.data()), reinterpret_cast<char*>(weights.data())},
       {4 * kDim, 4 * kDim}},
      1);
}

// An import replaces the row, and an insert leaves one that exists: the order does not matter.
void check_times(const Table& table, const std::vector<int64_t>& keys) {
  const auto present = std::make_unique<bool[]>(kKeys);
  std::vector<int64_t> times(kKeys);
  std::vector<float> weights(kKeys * kDim), state(kKeys * kDim);
  table.entries(keys.data(), kKeys, present.get(),
                {times.data(),
                 {reinterpret_cast<char*>(weights.data()), reinterpret_cast<char*>(state.data())},
                 {4 * kDim, 4 * kDim}},
                1);
  for (const int64_t time : times) CHECK(time == kImportTime);
}

}  // namespace

int main() {
  Table table(adagrad_table(kDim));
  const Table empty(adagrad_table(kDim));
  size_t num_initial = 0, num_imported = 0;
  for (int round = 0; round < 200; ++round) {
    const auto keys = keys_from(round * int64_t{1} << 32, kKeys);
    std::vector<float> seen(kKeys * kDim), initial(kKeys * kDim);
    empty.lookup(keys.data(), kKeys, initial.data(), true, nullptr, 1);
    std::atomic<int> num_ready{0};
    const auto meet = [&] {
      for (++num_ready; num_ready < 2;) pause_cpu();
    };
    std::thread importer([&] {
      meet();
      import_all(table, keys);
    });
    meet();
    table.lookup_or_insert(keys.data(), kKeys, seen.data(), nullptr, kLater, 1);
    importer.join();
    check_times(table, keys);
    for (size_t i = 0; i < seen.size(); ++i) {
      const bool is_imported = seen[i] == kImported;
      CHECK(is_imported || seen[i] == initial[i]);
      ++(is_imported ? num_imported : num_initial);
    }
    const auto existed = std::make_unique<bool[]>(kKeys);
    table.erase(keys.data(), kKeys, existed.get(), 1);  // the next round gets rows that held others
  }
  CHECK(num_initial > 0);
  std::printf("reserved: %zu initial, %zu imported\n", num_initial, num_imported);
}
