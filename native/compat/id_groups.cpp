#include "compat/id_groups.h"

#include <algorithm>
#include <bit>
#include <random>
#include <stdexcept>
#include <string>

namespace monolith {

void check_splits(const std::string& start, std::span<const int64_t> splits, size_t num_values) {
  const bool is_right = !splits.empty() && splits.front() == 0 &&
                        splits.back() == static_cast<int64_t>(num_values) &&
                        std::is_sorted(splits.begin(), splits.end());
  if (is_right) return;
  throw std::invalid_argument(start + " from 0 to " + std::to_string(num_values) +
                              ", the number of values, ascending, got others");
}

FirstSeen::FirstSeen() : salt_((uint64_t{std::random_device()()} << 32) | 1) {}

void FirstSeen::clear(size_t n) {
  mask_ = std::bit_ceil(2 * n + 1) - 1;
  slots_.assign(mask_ + 1, Slot{});
}

void first_seen(std::span<const int64_t> ids, std::span<const int64_t> row_splits, int64_t* groups,
                int64_t* firsts, int64_t* counts) {
  check_splits("[first_seen] expected row_splits", row_splits, ids.size());
  FirstSeen seen;
  uint32_t next = 0;
  for (size_t row = 0; row + 1 < row_splits.size(); ++row) {
    const auto begin = static_cast<size_t>(row_splits[row]);
    const auto end = static_cast<size_t>(row_splits[row + 1]);
    const uint32_t first = next;
    seen.clear(end - begin);
    for (size_t at = begin; at < end; ++at) {
      const uint32_t group = seen.find(ids[at], next);
      if (group == next) firsts[next++] = static_cast<int64_t>(at);
      groups[at] = group;
    }
    counts[row] = next - first;
  }
}

bool bucket_order(std::span<const int64_t> values, int64_t* order, std::span<int64_t> counts) {
  std::fill(counts.begin(), counts.end(), 0);
  for (const int64_t value : values) {
    if (static_cast<uint64_t>(value) >= counts.size()) return false;
    ++counts[value];
  }
  std::vector<int64_t> starts(counts.size());
  for (size_t i = 1; i < counts.size(); ++i) starts[i] = starts[i - 1] + counts[i - 1];
  for (size_t at = 0; at < values.size(); ++at) {
    order[starts[values[at]]++] = static_cast<int64_t>(at);
  }
  return true;
}

}  // namespace monolith
