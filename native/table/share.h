// Divides the parts of a call over several tables among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "table/team.h"

namespace monolith {

constexpr size_t kPartKeys = 8;  // overhead of a table in a call, in keys

// Calls work(part, threads) concurrently for each part, the largest part first; a part has `n`
// keys. All threads work on one large part together if it would otherwise keep one thread busy
// after the others.
template <typename Part, typename Work>
void share(std::vector<Part> parts, unsigned threads, const Work& work) {
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
    work(part, threads);
    num_left -= part.n;
  }
  std::atomic<size_t> next{num_done};
  Team::run(num_left < kLarge / 2 ? 1 : threads, [&](Team& team, unsigned) {
    team.attempt([&] {
      for (size_t p; (p = next++) < parts.size() && !team.has_failed();) work(parts[p], 1);
    });
  });
}

// Splits the parts into pieces that threads claim one by one, for calls whose keys are independent.
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
