// A few threads that work on one call together.
//
// Threads are started per call: no pool to share, to own, or to lose in a fork. A start costs about
// as much as waking a sleeping thread, and the members claim work in small pieces, so a late one
// costs little.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "table/bin.h"

namespace monolith {

class Team {
 public:
  static constexpr unsigned kMaxThreads = 256;

  // Runs body(team, member) on at most num_threads threads, the calling one among them. The body
  // must not throw (attempt() is for work that may); the first failure is thrown here, after all
  // have ended.
  template <typename Body>
  static void run(unsigned num_threads, Body body) {
    Team team;
    std::vector<std::thread> helpers;
    num_threads = std::clamp(num_threads, 1u, kMaxThreads);
    try {
      helpers.reserve(num_threads - 1);
      for (unsigned member = 1; member < num_threads; ++member) {
        helpers.emplace_back([&team, &body, member] {
          team.size_.wait(0);
          body(team, member);
        });
      }
    } catch (const std::exception&) {
      // The system gives no more threads, or no memory for them: go on with those that run.
    }
    team.size_.store(static_cast<unsigned>(helpers.size()) + 1);
    team.size_.notify_all();
    body(team, 0);
    for (std::thread& helper : helpers) helper.join();
    if (team.error_) std::rethrow_exception(team.error_);
  }

  unsigned size() const noexcept { return size_.load(std::memory_order_relaxed); }

  // Returns when every member has called it.
  void meet() noexcept {
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

  // Runs work() and keeps what it throws. has_failed() is for everyone after the next meet().
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
  std::atomic<unsigned> size_{0};
  std::atomic<unsigned> arrived_{0};
  std::atomic<unsigned> turn_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace monolith
