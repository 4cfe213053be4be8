// Runs one call on several threads.
//
// The threads are those of torch's OpenMP pool where torch has loaded OpenMP: pool threads spin on
// their cores for milliseconds after their work, and other threads would compete with them for the
// processor. Without OpenMP, and in a child of fork, which does not inherit the pool threads, the
// team starts threads for each call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "table/bin.h"

namespace monolith {

class Team {
 public:
  static constexpr unsigned kMaxThreads = 256;

  // Registers the fork handler. Call it once, before the first run().
  static void watch_forks() noexcept;

  // Runs body(team, member) on at most `num_threads` threads, including the calling thread. The
  // body must not throw; work that may throw goes through attempt(). After all members have ended,
  // run() rethrows the first exception.
  template <typename Body>
  static void run(unsigned num_threads, Body body) {
    Team team;
    team.start(std::clamp(num_threads, 1u, kMaxThreads), &body, [](Team& self, unsigned member) {
      (*static_cast<Body*>(self.body_))(self, member);
    });
    if (team.error_) std::rethrow_exception(team.error_);
  }

  unsigned size() const noexcept { return size_.load(std::memory_order_relaxed); }

  // Returns when every member has called it.
  void barrier() noexcept {
    const unsigned turn = turn_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size()) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.fetch_add(1, std::memory_order_acq_rel);
      turn_.notify_all();
      return;
    }
    for (int spin = 0; spin < 2000; ++spin) {
      if (turn_.load(std::memory_order_acquire) != turn) return;
      pause_cpu();
    }
    turn_.wait(turn);
  }

  // Runs work() and stores an exception of it. After the next barrier(), has_failed() is the same
  // for every member.
  template <typename Work>
  void attempt(Work work) noexcept {
    try {
      work();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      failed_.store(true, std::memory_order_release);
    }
  }
  bool has_failed() const noexcept { return failed_.load(std::memory_order_acquire); }

 private:
  using Call = void (*)(Team& team, unsigned member);

  Team() = default;
  void start(unsigned num_threads, void* body, Call call);
  void start_threads(unsigned num_threads);
  void member_of_pool() noexcept;

  void* body_ = nullptr;
  Call call_ = nullptr;
  unsigned most_ = 1;  // members
  std::atomic<unsigned> size_{0};
  std::atomic<unsigned> arrived_{0};
  std::atomic<unsigned> turn_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace monolith
