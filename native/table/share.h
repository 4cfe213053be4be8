// How threads share the parts of a call that is about several tables.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <vector>

#include "table/team.h"

namespace monolith {

constexpr size_t kPartKeys = 8;  // a table costs a call about as much as so many keys

// work(part, threads) for each part, which has n keys: side by side, the largest first. A part is
// done by all threads together where it is large, and one thread would be left with it. beside: may
// be empty; the calling thread does it while the others begin with the parts, or before those that
// need all threads.
template <typename Part, typename Work>
void share(std::vector<Part> parts, unsigned threads, const Work& work,
           const std::function<void()>& caller_work = {}) {
  constexpr size_t kLarge = 8192;  // keys that feed several threads
  threads = std::max(1u, threads);
  const auto is_smaller = [](const Part& a, const Part& b) { return a.n < b.n; };
  const auto largest = std::max_element(parts.begin(), parts.end(), is_smaller);
  if (largest != parts.end() && largest->n > kPartKeys) {
    std::sort(parts.rbegin(), parts.rend(), is_smaller);
  }
  size_t num_large = 0, num_left = 0, num_done = 0;
  for (const Part& part : parts) {
    num_large += part.n >= kLarge;
    num_left += part.n;
  }
  for (; num_done < num_large; ++num_done) {
    const Part& part = parts[num_done];
    if ((num_large - num_done) % threads == 0 && part.n * threads <= num_left) break;
    if (num_done == 0 && caller_work) caller_work();
    work(part, threads);
    num_left -= part.n;
  }
  const bool is_caller_work_left = num_done == 0 && caller_work;
  std::atomic<size_t> next{num_done};
  Team::run(num_left < kLarge / 2 ? 1 : threads, [&](Team& team, unsigned member) {
    team.attempt([&] {
      if (member == 0 && is_caller_work_left) caller_work();
      for (size_t p; (p = next++) < parts.size() && !team.has_failed();) work(parts[p], 1);
    });
  });
}

// The parts in pieces that threads take one by one, where keys do not depend on each other.
template <typename Part>
std::vector<Part> in_pieces(const std::vector<Part>& parts) {
  constexpr size_t kMost = 4096;
  std::vector<Part> pieces;
  for (const Part& part : parts) {
    for (size_t at = 0; at < part.n; at += kMost) {
      pieces.push_back(part.piece(at, std::min(kMost, part.n - at)));
    }
  }
  return pieces;
}

}  // namespace monolith
