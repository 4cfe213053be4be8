// A few threads that work on one call together.
//
// They are torch's own where torch has loaded OpenMP: its threads wait for work on their cores for
// milliseconds, and others would have to fight them for the processor. Elsewhere, and in a process
// made by fork, whose parent keeps those threads, they are started per call.
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

  // To be called once, before threads are used: a fork is noticed from then on.
  static void watch_forks() noexcept;

  // Runs body(team, member) on at most num_threads threads, the calling one among them. The body
  // must not throw (attempt() is for work that may); the first failure is thrown here, after all
  // have ended.
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

  // Runs work() and keeps what it throws. has_failed() is for everyone after the next barrier().
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
