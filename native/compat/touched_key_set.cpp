#include "compat/touched_key_set.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "ops/fetch.h"
#include "table/hash.h"

namespace monolith {
namespace {

constexpr uint64_t kNeighbourhood = 32;  // number of buckets in which a key may lie
constexpr size_t kAhead = 16;            // keys between the fetch of a bucket and its use

// Least power of two that leaves a sixth of the buckets free at capacity.
uint64_t buckets_for(uint64_t capacity) {
  return std::bit_ceil(std::max(uint64_t{1}, capacity + (capacity + 4) / 5));
}

}  // namespace

TouchedKeySet::TouchedKeySet(uint64_t capacity, uint64_t concurrency_level)
    : capacity_(capacity),
      num_buckets_(buckets_for(capacity)),
      num_stripes_(
          std::min(std::bit_ceil(std::max(uint64_t{1}, concurrency_level)), num_buckets_)) {}

void TouchedKeySet::Store::Free::operator()(void* memory) const noexcept { std::free(memory); }

TouchedKeySet::Store::Store(uint64_t num_stripes, uint64_t num_buckets)
    : stripes(num_stripes),
      buckets(static_cast<int64_t*>(std::calloc(num_buckets, sizeof(int64_t)))) {
  if (!buckets) throw std::bad_alloc();
}

// Takes every lock, in order; the caller holds `emptying_`, so two threads cannot deadlock.
class TouchedKeySet::AllLocks {
 public:
  explicit AllLocks(Store& store) noexcept : store_(store) {
    for (Stripe& stripe : store_.stripes) stripe.lock.lock();
  }
  ~AllLocks() {
    for (Stripe& stripe : store_.stripes) stripe.lock.unlock();
  }
  AllLocks(const AllLocks&) = delete;
  AllLocks& operator=(const AllLocks&) = delete;

 private:
  Store& store_;
};

TouchedKeySet::Store& TouchedKeySet::store() {
  if (Store* store = store_.load(std::memory_order_acquire)) return *store;
  const std::lock_guard guard(emptying_);
  if (!owned_) {
    owned_ = std::make_unique<Store>(num_stripes_, num_buckets_);
    store_.store(owned_.get(), std::memory_order_release);
  }
  return *owned_;
}

uint64_t TouchedKeySet::insert(const int64_t* keys, size_t n) {
  if (n == 0) return 0;
  Store& all = store();
  uint64_t num_dropped = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) {
      const Place ahead = place_of_key(all, keys[i + kAhead]);
      fetch_line(ahead.buckets + ahead.first);
    }
    while (insert_key(all, keys[i]) == Insertion::kFull) num_dropped += drop_all(all);
  }
  return num_dropped;
}

TouchedKeySet::Place TouchedKeySet::place_of_key(Store& store, int64_t key) const noexcept {
  const uint64_t hash = key_hash(key), per_stripe = num_buckets_ / num_stripes_;
  const uint64_t number = (hash >> 32) & (num_stripes_ - 1), first = hash & (per_stripe - 1);
  int64_t* const buckets = store.buckets.get() + number * per_stripe;
  return {store.stripes[number], buckets, first};
}

TouchedKeySet::Insertion TouchedKeySet::insert_key(Store& store, int64_t key) {
  const auto [stripe, buckets, first] = place_of_key(store, key);
  const uint64_t per_stripe = num_buckets_ / num_stripes_;
  const std::lock_guard guard(stripe.lock);
  if (size_.load(std::memory_order_relaxed) > capacity_) return Insertion::kFull;
  if (key == 0) {
    if (stripe.has_zero) return Insertion::kDone;
    return add_new(key, stripe, nullptr) ? Insertion::kDone : Insertion::kFull;
  }
  for (uint64_t i = 0; i < std::min(kNeighbourhood, per_stripe); ++i) {
    int64_t& bucket = buckets[(first + i) & (per_stripe - 1)];
    if (bucket == key) return Insertion::kDone;
    if (bucket == 0) return add_new(key, stripe, &bucket) ? Insertion::kDone : Insertion::kFull;
  }
  if (stripe.overflow.contains(key)) return Insertion::kDone;
  return add_new(key, stripe, nullptr) ? Insertion::kDone : Insertion::kFull;
}

// Returns false if other threads filled the set meanwhile. The key is counted first, so that the
// set never holds more than capacity + 1, however many threads insert.
bool TouchedKeySet::add_new(int64_t key, Stripe& stripe, int64_t* free_bucket) {
  if (size_.fetch_add(1, std::memory_order_relaxed) > capacity_) {
    size_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  if (free_bucket) {
    *free_bucket = key;
  } else if (key == 0) {
    stripe.has_zero = true;
  } else {
    try {
      stripe.overflow.insert(key);
    } catch (...) {
      size_.fetch_sub(1, std::memory_order_relaxed);
      throw;
    }
  }
  ++stripe.num_keys;
  return true;
}

uint64_t TouchedKeySet::drop_all(Store& store) {
  const std::lock_guard guard(emptying_);
  const AllLocks locks(store);
  const uint64_t num_keys = size_.load(std::memory_order_relaxed);
  if (num_keys <= capacity_) return 0;  // another thread emptied the set first
  empty(store);
  return num_keys;
}

// Removes all keys; the caller holds all locks.
void TouchedKeySet::empty(Store& store) noexcept {
  const uint64_t per_stripe = num_buckets_ / num_stripes_;
  for (uint64_t number = 0; number < num_stripes_; ++number) {
    Stripe& stripe = store.stripes[number];
    if (stripe.num_keys == 0) continue;
    std::memset(store.buckets.get() + number * per_stripe, 0, per_stripe * sizeof(int64_t));
    stripe.num_keys = 0;
    stripe.has_zero = false;
    stripe.overflow.clear();
  }
  size_.store(0, std::memory_order_relaxed);
}

std::vector<int64_t> TouchedKeySet::steal() {
  std::vector<int64_t> keys;
  const std::lock_guard guard(emptying_);
  if (!owned_) return keys;
  const AllLocks locks(*owned_);
  keys.reserve(size_.load(std::memory_order_relaxed));
  const uint64_t per_stripe = num_buckets_ / num_stripes_;
  for (uint64_t number = 0; number < num_stripes_; ++number) {
    const Stripe& stripe = owned_->stripes[number];
    if (stripe.num_keys == 0) continue;
    const int64_t* const buckets = owned_->buckets.get() + number * per_stripe;
    for (uint64_t i = 0; i < per_stripe; ++i) {
      if (buckets[i] != 0) keys.push_back(buckets[i]);
    }
    if (stripe.has_zero) keys.push_back(0);
    keys.insert(keys.end(), stripe.overflow.begin(), stripe.overflow.end());
  }
  empty(*owned_);
  return keys;
}

}  // namespace monolith
