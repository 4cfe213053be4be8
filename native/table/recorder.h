// Records the order in which rows changed, for the comparison of a replay.
#pragma once

#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace monolith {

// Thread-safe. An event is noted under the lock of the bin of its row, so the events of a key are
// in the order of its changes.
class Recorder {
 public:
  enum Kind : int64_t { kEdited, kRemoved };
  struct Event {
    int64_t call;  // the argument of set_call() on the calling thread
    int64_t key;
    int64_t kind;
    int64_t number;  // number of the updating call, which seeds its rounding; 0 for other calls
  };

  static void set_call(int64_t call) noexcept { current_call() = call; }
  static int64_t call() noexcept { return current_call(); }

  void note(int64_t call, int64_t key, Kind kind, uint64_t number = 0) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      events_.push_back({call, key, kind, static_cast<int64_t>(number)});
    } catch (const std::bad_alloc&) {
      is_complete_ = false;
    }
  }
  uint64_t size() noexcept {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }
  // Throws std::bad_alloc if memory was missing for an earlier event.
  std::vector<Event> events() {
    const std::lock_guard lock(mutex_);
    if (!is_complete_) throw std::bad_alloc();
    return events_;
  }

 private:
  static int64_t& current_call() noexcept {
    static thread_local int64_t call = -1;
    return call;
  }
  std::mutex mutex_;
  std::vector<Event> events_;
  bool is_complete_ = true;
};

}  // namespace monolith
