// A bounded set of touched keys that many threads fill and one thread empties.
//
// The home of a key is a stripe, a run of buckets with a lock of its own. A key lies in one of the
// 32 buckets from its place in the stripe on, or else in the overflow set buckets of the stripe.
// Thread-safe. Owns its memory, which is allocated at the first insert.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "table/bin.h"

namespace monolith {

class TouchedKeySet {
 public:
  // `concurrency_level` is the number of locks, rounded up to a power of two.
  TouchedKeySet(uint64_t capacity, uint64_t concurrency_level);

  uint64_t capacity() const noexcept { return capacity_; }
  uint64_t num_buckets() const noexcept { return num_buckets_; }
  uint64_t num_locks() const noexcept { return num_stripes_; }
  uint64_t size() const noexcept { return size_.load(); }

  // Inserts the keys in order. If the set has more than `capacity` keys, the next key empties the
  // set first, even if the key is in the set. Returns the number of keys that were dropped this
  // way. Throws std::bad_alloc without memory; earlier keys are then inserted.
  uint64_t insert(const int64_t* keys, size_t n);
  // Removes and returns all keys, in no order. Inserts wait meanwhile.
  std::vector<int64_t> steal();

 private:
  struct alignas(64) Stripe {
    Lock lock;
    uint64_t num_keys = 0;
    bool has_zero = false;  // whether the key 0 is in the set, as 0 marks a free bucket
    std::unordered_set<int64_t> overflow;
  };
  struct Store {
    Store(uint64_t num_stripes, uint64_t num_buckets);
    struct Free {
      void operator()(void* memory) const noexcept;
    };
    std::vector<Stripe> stripes;
    std::unique_ptr<int64_t[], Free> buckets;  // zeros that cost nothing until they are written
  };
  class AllLocks;

  struct Place {
    Stripe& stripe;
    int64_t* buckets;  // of the stripe
    uint64_t first;    // first bucket in which the key may lie
  };
  enum class Insertion { kDone, kFull };
  Place place_of_key(Store& store, int64_t key) const noexcept;
  Insertion insert_key(Store& store, int64_t key);
  bool add_new(int64_t key, Stripe& stripe, int64_t* free_bucket);
  uint64_t drop_all(Store& store);
  void empty(Store& store) noexcept;
  Store& store();

  const uint64_t capacity_;
  const uint64_t num_buckets_;  // powers of two, both
  const uint64_t num_stripes_;
  std::atomic<uint64_t> size_{0};
  std::mutex
      emptying_;  // held while a thread takes all locks; also guards the creation of the store
  std::unique_ptr<Store> owned_;
  std::atomic<Store*> store_{nullptr};
};

}  // namespace monolith
