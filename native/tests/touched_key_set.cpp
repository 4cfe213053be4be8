// TouchedKeySet from many threads; run under the thread and address sanitizers.
#include "compat/touched_key_set.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "check.h"

using namespace monolith;

namespace {

constexpr int kThreads = 8;
constexpr int64_t kBatch = 100;

std::vector<int64_t> range(int64_t first, int64_t n) {
  std::vector<int64_t> keys(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) keys[static_cast<size_t>(i)] = first + i;
  return keys;
}

// Threads insert disjoint ranges, one steals: every key comes out once.
void check_nothing_is_lost_or_doubled() {
  constexpr int64_t kPerThread = 20'000;
  TouchedKeySet set(kThreads * kPerThread, 64);
  std::atomic<int> num_running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < kPerThread; i += kBatch) {
        const auto keys = range(t * kPerThread + i - 7, kBatch);
        CHECK(set.insert(keys.data(), keys.size()) == 0);
      }
      --num_running;
    });
  }
  std::vector<int64_t> stolen;
  while (num_running > 0) {
    const auto keys = set.steal();
    stolen.insert(stolen.end(), keys.begin(), keys.end());
    std::this_thread::yield();
  }
  for (auto& thread : threads) thread.join();
  const auto rest = set.steal();
  stolen.insert(stolen.end(), rest.begin(), rest.end());
  std::sort(stolen.begin(), stolen.end());
  CHECK(stolen == range(-7, kThreads * kPerThread));
}

// Dropped and remaining keys add up, and a set never holds more than capacity + 1.
void check_drops_add_up() {
  constexpr int64_t kCapacity = 500, kPerThread = 20 * kCapacity;
  TouchedKeySet set(kCapacity, 16);
  std::atomic<uint64_t> num_dropped{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < kPerThread; i += kBatch) {
        const auto keys = range(t * kPerThread + i, kBatch);
        num_dropped += set.insert(keys.data(), keys.size());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(num_dropped % (kCapacity + 1) == 0);
  CHECK(num_dropped + set.size() == static_cast<uint64_t>(kThreads * kPerThread));
  CHECK(set.steal().size() == static_cast<size_t>(kThreads * kPerThread) - num_dropped);
}

// Random keys with duplicates against the rule, word by word.
void check_against_model(uint64_t capacity, uint64_t concurrency_level) {
  std::mt19937_64 random(capacity);
  TouchedKeySet set(capacity, concurrency_level);
  std::set<int64_t> model;
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> keys(random() % 60);
    uint64_t expected = 0;
    for (int64_t& key : keys) {
      key = static_cast<int64_t>(random() % (2 * capacity + 3)) - 2;
      if (model.size() > capacity) {
        expected += model.size();
        model.clear();
      }
      model.insert(key);
    }
    CHECK(set.insert(keys.data(), keys.size()) == expected);
    CHECK(set.size() == model.size());
    if (random() % 16 == 0) {
      auto stolen = set.steal();
      std::sort(stolen.begin(), stolen.end());
      CHECK(std::equal(stolen.begin(), stolen.end(), model.begin(), model.end()));
      model.clear();
    }
  }
}

}  // namespace

int main() {
  check_nothing_is_lost_or_doubled();
  check_drops_add_up();
  for (const uint64_t capacity : {0, 1, 3, 100, 1000}) {
    for (const uint64_t level : {1, 3, 4096}) check_against_model(capacity, level);
  }
  CHECK(TouchedKeySet(1000, 1).num_buckets() == 2048);
  CHECK(TouchedKeySet(2'097'152, 1000).num_buckets() == 4'194'304);
  CHECK(TouchedKeySet(2'097'152, 1000).num_locks() == 1024);
}
