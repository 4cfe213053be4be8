#include "table/shards.h"

#include <algorithm>

#include "table/hash.h"
#include "table/share.h"

namespace monolith {

namespace {
constexpr size_t kLanes = 4;  // counters of a shard, so that a count does not wait for the last one
}

uint32_t Shards::shard_of(int64_t key) const noexcept {
  if (!owners_.empty()) return owners_[key_hash(key) >> 52];
  const auto n = static_cast<int64_t>(tables_.size());
  const int64_t remainder = key % n;
  return static_cast<uint32_t>(remainder < 0 ? remainder + n : remainder);
}

// Each member counts and then moves a slice of the keys; what is before its slice goes before it.
Shards::Split Shards::split(const int64_t* keys, size_t n, unsigned threads) const {
  const size_t num_shards = tables_.size();
  threads = std::clamp(threads, 1u, Team::kMaxThreads);
  Split made;
  made.keys = std::make_unique_for_overwrite<int64_t[]>(n);
  made.places = std::make_unique_for_overwrite<uint32_t[]>(n);
  const auto shards = std::make_unique_for_overwrite<uint16_t[]>(n);
  const size_t stride = num_shards + 8;  // no two members write to one line
  std::vector<size_t> counts(threads * kLanes * stride);
  Team::run(threads, [&](Team& team, unsigned member) {
    const size_t first = n * member / team.size(), last = n * (member + 1) / team.size();
    size_t* own = counts.data() + member * kLanes * stride;
    for (size_t i = first; i < last; ++i) {
      shards[i] = static_cast<uint16_t>(shard_of(keys[i]));
      ++own[i % kLanes * stride + shards[i]];
    }
    for (size_t shard = 0; shard < num_shards; ++shard) {
      for (size_t lane = 1; lane < kLanes; ++lane) own[shard] += own[lane * stride + shard];
    }
    team.barrier();
    if (member == 0) {
      size_t next = 0;
      for (size_t shard = 0; shard < num_shards; ++shard) {
        const size_t start = next;
        for (unsigned m = 0; m < team.size(); ++m) {
          next += std::exchange(counts[m * kLanes * stride + shard], next);
        }
        made.parts.push_back({tables_[shard], start, next - start});
      }
    }
    team.barrier();
    for (size_t i = first; i < last; ++i) {
      const size_t at = own[shards[i]]++;
      made.keys[at] = keys[i];
      made.places[at] = static_cast<uint32_t>(i);
    }
  });
  return made;
}

void Shards::lookup(const int64_t* keys, size_t n, float* out, bool initial, const float* scales,
                    unsigned threads) const {
  const Split by_shard = split(keys, n, threads);
  share(in_pieces(by_shard.parts), threads, [&](const Part& part, unsigned members) {
    part.table->lookup(by_shard.keys.get() + part.first, part.n, out, initial, scales, members,
                       by_shard.places.get() + part.first);
  });
}

AppliedCounts Shards::apply_gradients(const int64_t* keys, size_t n, const float* grads,
                                      const Table::StepOptions& options, uint32_t now,
                                      unsigned threads) {
  tables_.front()->check_finite(grads, n, threads);
  const Split by_shard = split(keys, n, threads);
  std::atomic<uint64_t> applied{0}, inserted{0}, refused{0};
  share(by_shard.parts, threads, [&](const Part& part, unsigned members) {
    const AppliedCounts counts =
        part.table->apply_finite(by_shard.keys.get() + part.first, part.n, grads,
                                 by_shard.places.get() + part.first, options, now, members);
    applied += counts.applied;
    inserted += counts.inserted;
    refused += counts.refused;
  });
  return {applied, inserted, refused, 0};
}

}  // namespace monolith
