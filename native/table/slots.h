// Maps the slot of a key to a number, with a default for slots that are not listed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace monolith {

using SlotValues = std::vector<std::pair<uint32_t, uint32_t>>;  // (slot, value), ascending

// Immutable, hence thread-safe.
class SlotRule {
 public:
  explicit SlotRule(uint32_t fallback = 0, SlotValues values = {})
      : fallback_(fallback), values_(std::move(values)) {}

  // Returns the number for the slot of the key, which is bits 48 to 62 (fid v2).
  uint32_t of(int64_t key) const noexcept {
    if (values_.empty()) return fallback_;
    const auto slot = static_cast<uint32_t>(static_cast<uint64_t>(key) >> 48) & 0x7FFF;
    const auto at = std::lower_bound(values_.begin(), values_.end(), std::pair(slot, 0u));
    return at != values_.end() && at->first == slot ? at->second : fallback_;
  }

 private:
  uint32_t fallback_;
  SlotValues values_;
};

}  // namespace monolith
