// Admits many writing calls concurrently, or one call that needs the table exclusively.
#pragma once

#include <condition_variable>
#include <mutex>

namespace monolith {

// A readers-writer lock whose shared holders are the writing calls. A waiting Exclusive goes before
// later Shared holders, so it cannot starve. Both are scoped locks, and borrow the gate.
class Gate {
 public:
  class Shared {
   public:
    explicit Shared(Gate& gate) : gate_(gate) {
      std::unique_lock lock(gate.mutex_);
      gate.changed_.wait(lock, [&] { return gate.num_exclusive_ == 0; });
      ++gate.num_shared_;
    }
    ~Shared() {
      const std::lock_guard lock(gate_.mutex_);
      if (--gate_.num_shared_ == 0 && gate_.num_exclusive_ > 0) gate_.changed_.notify_all();
    }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;

   private:
    Gate& gate_;
  };

  class Exclusive {
   public:
    explicit Exclusive(Gate& gate) : gate_(gate) {
      std::unique_lock lock(gate.mutex_);
      ++gate.num_exclusive_;
      gate.changed_.wait(lock, [&] { return gate.num_shared_ == 0 && !gate.has_exclusive_; });
      gate.has_exclusive_ = true;
    }
    ~Exclusive() {
      const std::lock_guard lock(gate_.mutex_);
      gate_.has_exclusive_ = false;
      --gate_.num_exclusive_;
      gate_.changed_.notify_all();
    }
    Exclusive(const Exclusive&) = delete;
    Exclusive& operator=(const Exclusive&) = delete;

   private:
    Gate& gate_;
  };

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_shared_ = 0;
  int num_exclusive_ = 0;  // waiting or inside
  bool has_exclusive_ = false;
};

}  // namespace monolith
