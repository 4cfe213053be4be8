#include "table/cut.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

#include "table/hash.h"

namespace monolith {
namespace {

uint32_t partition_of(uint64_t hash) { return static_cast<uint32_t>(hash >> 52); }

}  // namespace

Cut::Cut(Memory& memory, size_t row_bytes)
    : memory_(memory), row_bytes_(row_bytes), record_bytes_(sizeof(Record) + row_bytes) {}

Cut::~Cut() {
  for (auto& entry : groups_) {
    Group* group = entry.load();
    if (group == nullptr) continue;
    for (Shard& shard : group->shards) free_records(shard);
    group->~Group();
    memory_.release(group, sizeof(Group));
  }
}

Cut::Shard* Cut::find_shard(uint32_t partition) const noexcept {
  Group* group = groups_[partition >> kGroupBits].load();
  return group == nullptr ? nullptr : group->shards + (partition & ((1u << kGroupBits) - 1));
}

Cut::Shard& Cut::make_shard(uint32_t partition) {
  if (Shard* found = find_shard(partition)) return *found;
  auto* fresh = new (memory_.allocate(sizeof(Group))) Group;
  Group* none = nullptr;
  if (!groups_[partition >> kGroupBits].compare_exchange_strong(none, fresh)) {
    fresh->~Group();
    memory_.release(fresh, sizeof(Group));  // another call was first
  }
  return *find_shard(partition);
}

void Cut::free_records(Shard& shard) noexcept {
  if (shard.records == nullptr) return;
  memory_.release(shard.records, shard.capacity * record_bytes_);
  bytes_ -= shard.capacity * record_bytes_;
  shard.records = nullptr;
  shard.size = shard.capacity = 0;
}

void Cut::keep(int64_t key, uint64_t hash, uint32_t time, const char* row) {
  Shard& shard = make_shard(partition_of(hash));
  const std::lock_guard lock(shard.lock);
  if (is_released(partition_of(hash))) return;
  if (shard.size == shard.capacity) {
    const uint32_t wider = std::max(4u, 2 * shard.capacity);
    auto* fresh = static_cast<char*>(memory_.allocate(wider * record_bytes_));
    if (shard.size > 0) std::memcpy(fresh, shard.records, shard.size * record_bytes_);
    const uint32_t size = shard.size;
    free_records(shard);
    shard.records = fresh;
    shard.size = size;
    shard.capacity = wider;
    bytes_ += wider * record_bytes_;
  }
  char* record = shard.records + shard.size * record_bytes_;
  const Record header{key, time};
  std::memcpy(record, &header, sizeof(header));
  std::memcpy(record + sizeof(header), row, row_bytes_);
  ++shard.size;
}

void Cut::collect(uint64_t first, uint64_t last, std::vector<Kept>& found,
                  std::vector<char>& rows) {
  found.clear();
  rows.clear();
  for (uint32_t p = partition_of(first); p <= partition_of(last); ++p) {
    Shard* shard = find_shard(p);
    if (shard == nullptr) continue;
    const std::lock_guard lock(shard->lock);
    for (uint32_t i = 0; i < shard->size; ++i) {
      const char* record = shard->records + i * record_bytes_;
      Record header;
      std::memcpy(&header, record, sizeof(header));
      const uint64_t hash = key_hash(header.key);
      if (hash < first || hash > last) continue;
      found.push_back({hash, header.key, static_cast<uint32_t>(header.time), rows.size()});
      rows.insert(rows.end(), record + sizeof(header), record + record_bytes_);
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Kept& a, const Kept& b) { return a.hash < b.hash; });
  // Kept twice where a call failed half-way: both are the same.
  const auto is_same = [](const Kept& a, const Kept& b) { return a.hash == b.hash; };
  found.erase(std::unique(found.begin(), found.end(), is_same), found.end());
}

void Cut::keep_candidates(uint32_t partition, const std::vector<int64_t>& values) {
  Shard& shard = make_shard(partition);
  const std::lock_guard lock(shard.lock);
  if (!is_released(partition)) shard.candidates = values;
}

std::vector<int64_t> Cut::candidates(uint32_t partition) {
  Shard* shard = find_shard(partition);
  if (shard == nullptr) return {};
  const std::lock_guard lock(shard->lock);
  return shard->candidates;
}

void Cut::release(uint32_t partition) noexcept {
  released_[partition >> 6].fetch_or(uint64_t{1} << (partition & 63));
  Shard* shard = find_shard(partition);
  if (shard == nullptr) return;  // whoever makes it will see the bit
  const std::lock_guard lock(shard->lock);
  free_records(*shard);
  shard->candidates = {};
}

void Cuts::add(std::shared_ptr<Cut> cut) noexcept {
  newest_ = cut->generation();
  open_.push_back(std::move(cut));
}

void Cuts::remove(const Cut& cut) noexcept {
  std::erase_if(open_, [&](const auto& other) { return other.get() == &cut; });
  newest_ = open_.empty() ? 0 : open_.back()->generation();
}

}  // namespace monolith
