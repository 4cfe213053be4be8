// Maps keys to row numbers by an extendible directory of bins. Readers take no lock; writers lock
// one bin.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "ops/fetch.h"
#include "table/bin.h"
#include "table/epochs.h"
#include "table/hash.h"
#include "table/memory.h"

namespace monolith {

struct IndexCounters {
  std::atomic<uint64_t> rebuilds{0};
  std::atomic<uint64_t> splits{0};
  std::atomic<uint64_t> lock_waits{0};  // a writer found its bin locked by another thread
  std::atomic<uint64_t> lock_wait_max_ns{0};
};

// Upper bounds of the size of an index; tests pass smaller bounds.
struct IndexLimits {
  uint32_t max_depth = 28;  // of the directory: 2 GiB
  uint32_t max_lines = BinRef::kMaxLines;
};

// Grows bin by bin: an insert costs at most the rebuild of one bin of a few thousand keys, or the
// doubling of the directory (8 bytes per bin). Thread-safe, except where a method says otherwise;
// every method that takes or returns bins needs an Epochs::Guard. Borrows memory and epochs.
class Index {
  struct Directory {
    uint32_t depth;
    uint32_t shift;  // 63 - depth
    std::atomic<uint64_t>* entries() { return reinterpret_cast<std::atomic<uint64_t>*>(this + 1); }
    const std::atomic<uint64_t>* entries() const {
      return reinterpret_cast<const std::atomic<uint64_t>*>(this + 1);
    }
    size_t bytes() const { return sizeof(Directory) + (size_t{8} << depth); }
  };

 public:
  // `first_version` is the version of fresh lines; tests start near the end of the sequence. `salt`
  // is odd and unpredictable (place_of).
  Index(Memory& memory, Epochs& epochs, uint64_t salt, uint32_t first_version = 0,
        IndexLimits limits = {});
  ~Index();
  Index(const Index&) = delete;
  Index& operator=(const Index&) = delete;

  // A snapshot of the directory that gives the home lines of keys. Lines may be retired after the
  // snapshot.
  class Homes {
   public:
    Homes(const Directory& directory, uint64_t salt) noexcept
        : entries_(directory.entries()), shift_(directory.shift), salt_(salt) {}
    // A shift by 64 is undefined, so depth 0 shifts twice.
    BinRef bin_of(uint64_t hash) const noexcept {
      return BinRef(entries_[hash >> 1 >> shift_].load(std::memory_order_acquire));
    }
    Line* of(uint64_t hash) const noexcept { return bin_of(hash).home(place_of(hash, salt_)); }

   private:
    const std::atomic<uint64_t>* const entries_;
    const uint32_t shift_;
    const uint64_t salt_;
  };
  Homes homes() const noexcept { return {*directory_.load(std::memory_order_acquire), salt_}; }
  BinRef bin_of(uint64_t hash) const noexcept { return homes().bin_of(hash); }

  Line* home(uint64_t hash) const noexcept { return homes().of(hash); }
  uint64_t salt() const noexcept { return salt_; }
  uint32_t depth() const noexcept { return directory_.load(std::memory_order_acquire)->depth; }

  // Row number of a key at some moment of the call, or kNoRow; the row may be reserved. find() is
  // lock-free.
  struct Location {
    uint32_t row;
    bool is_worn;   // the line needs renew() before a change
    Line* line;     // the line that holds the key, or would hold it
    uint32_t slot;  // the slot that holds the key, or any slot
  };
  Location find(int64_t key, uint64_t hash) const noexcept;
  // Searches one line. Returns false if the search must go on in the next line, or if a writer
  // changed the line meanwhile.
  static bool find_in(Line* line, int64_t key, Location& location) noexcept {
    const uint32_t version = line->version.load(std::memory_order_acquire);
    const uint32_t slot = line->find(key);
    const bool is_here = slot != Line::kSlots;
    location = {is_here ? line->rows[slot].load(std::memory_order_relaxed) : kNoRow,
                version >= Line::kWorn, line, is_here ? slot : 0};
    fence_acquire();
    return !(version & (Line::kWriting | Line::kRetired)) &&
           line->version.load(std::memory_order_relaxed) == version &&
           (is_here || !(version & Line::kOverflowed));
  }

  // Returns the line where the search continues. `home` is a recent home() of the hash; it is
  // returned if it is outdated.
  const Line* second(uint64_t hash, const Line* home) const noexcept {
    const BinRef bin = bin_of(hash);
    const uint32_t place = place_of(hash, salt_);
    return bin.home(place) == home ? bin.second(place, bin.home(place)) : home;
  }

  // Prefetches the lines where the search continues.
  void prefetch_after(uint64_t hash, const Line* home) const noexcept {
    const Line* line = second(hash, home);
    fetch_line(line);
    fetch_line(line + 1);
  }

  // Locks and returns the bin that covers the hash. The caller unlocks the bin.
  Bin* lock_bin(uint64_t hash) noexcept {
    for (;;) {
      Bin* bin = bin_of(hash).bin();
      if (!bin->lock.try_lock()) wait_for(*bin);
      if (!bin->is_retired) return bin;
      bin->lock.unlock();
    }
  }

  // Makes room for one more key in the locked bin. Returns the locked bin that now covers the hash.
  // Throws OutOfMemory or OverBudget; the bin is then unchanged and still locked.
  Bin* make_room(Bin* bin, uint64_t hash);
  // Gives the bin of the hash fresh versions. Throws OutOfMemory.
  void renew(uint64_t hash);
  // Rebuilds the locked bin after removals, if that pays. Returns the locked bin that replaces it.
  Bin* tidy(Bin* bin) noexcept;

  // Allocates bins for `num_keys` keys of any hash, if the index is empty. The caller excludes
  // writers. Throws OutOfMemory and changes nothing.
  void expect(size_t num_keys);
  // Removes every key, and reserves `num_more` retirements for the caller. The caller excludes
  // writers. Throws OutOfMemory and changes nothing.
  void clear(size_t num_more);

  size_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
  const IndexCounters& counters() const noexcept { return counters_; }

 private:
  uint32_t lines_for(uint32_t num_keys, uint64_t prefix, uint32_t depth,
                     uint32_t generation) const noexcept;
  Bin* allocate_bin(uint32_t num_lines, uint64_t prefix, uint8_t depth, uint32_t generation);
  void free_bin(Bin* bin) noexcept { memory_.free(bin, bin->bytes()); }
  void count_bytes(size_t added, size_t removed);
  void reserve(size_t num_retired, size_t new_bytes, size_t old_bytes);
  Directory* allocate_directory(uint32_t depth);
  void free_directory(Directory* directory) noexcept {
    memory_.free(directory, directory->bytes());
  }
  static void free_retired(void* owner, void* block, size_t bytes);

  Bin* rebuild(Bin* bin, uint32_t num_lines);
  Bin* try_split(Bin* bin, uint64_t hash);
  bool reserve_depth(uint8_t depth, bool is_forced);
  void publish(Bin* bin) noexcept;
  void wait_for(Bin& bin) noexcept;
  void retire(Bin* bin) noexcept;

  Memory& memory_;
  Epochs& epochs_;
  const uint64_t salt_;
  const uint32_t first_version_;
  const IndexLimits limits_;
  std::atomic<Directory*> directory_{nullptr};
  std::mutex directory_mutex_;  // locked after the lock of a bin
  size_t num_bins_ = 0;         // under directory_mutex_
  std::atomic<size_t> bytes_{0};
  IndexCounters counters_;
};

// Holds the bin lock of one thread that walks over keys in about the order of their hashes. The
// lock is kept while consecutive keys belong to one bin: locking costs as much as changing a row,
// and keeps the processor from starting early on the next key. Needs an Epochs::Guard. For one
// thread.
class HeldBin {
 public:
  explicit HeldBin(Index& index) noexcept : index_(index) {}
  ~HeldBin() { release(); }
  HeldBin(const HeldBin&) = delete;
  HeldBin& operator=(const HeldBin&) = delete;

  // Locks and returns the bin that covers the hash; releases another bin.
  [[gnu::always_inline]] Bin* lock(uint64_t hash) noexcept {
    if (hash - first_ <= width_ && left_ > 0) [[likely]] {
      --left_;
      return bin_;
    }
    return lock_other(hash);
  }
  // Releases the bin at the end of a scope, also after an exception.
  struct Scope {
    explicit Scope(HeldBin& held) noexcept : held(held) {}
    ~Scope() { held.release(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    HeldBin& held;
  };
  // Replaces the held bin by `bin`, which is locked.
  void replace(Bin* bin) noexcept {
    bin_ = bin;
    note();
  }
  void release() noexcept {
    if (bin_ != nullptr) bin_->lock.unlock();
    bin_ = nullptr;
    left_ = 0;
  }

 private:
  [[gnu::noinline]] Bin* lock_other(uint64_t hash) noexcept {
    release();
    bin_ = index_.lock_bin(hash);
    note();
    return bin_;
  }
  static constexpr uint32_t kKeys = 64;  // keys per lock; other writers wait a few microseconds
  void note() noexcept {
    first_ = bin_->prefix;
    width_ = bin_->last_hash() - first_;
    left_ = kKeys - 1;
  }

  Index& index_;
  Bin* bin_ = nullptr;
  uint64_t first_ = 0, width_ = 0;  // range of hashes of the bin
  uint32_t left_ = 0;               // keys before the bin is released
};

}  // namespace monolith
