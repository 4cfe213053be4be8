#include "table/cut.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "table/hash.h"

namespace monolith {
namespace {

// Orders steps by their stamps, which are before the end of the log at the cut, then by their
// numbers.
void sort_by_stamp(std::span<AdmissionStep> steps, uint32_t log_end) {
  std::sort(steps.begin(), steps.end(), [&](const AdmissionStep& a, const AdmissionStep& b) {
    return a.stamp == b.stamp ? a.added < b.added : log_end - a.stamp > log_end - b.stamp;
  });
}

// Identifies what a step changed: a candidate, a cell, or the head.
std::pair<int64_t, uint32_t> target_of(const AdmissionStep& step) {
  if (!step.is_of_filter()) return {step.key, 0};
  if (step.kind == AdmissionStep::kHead) return {-1, 0};
  return {step.time, step.stamp};
}

// Keeps only the first step on each candidate, cell or head, which has its state at the cut.
// Returns the number of kept steps.
uint32_t drop_repeats(std::span<AdmissionStep> steps) {
  std::sort(steps.begin(), steps.end(), [](const AdmissionStep& a, const AdmissionStep& b) {
    return std::pair(target_of(a), a.added) < std::pair(target_of(b), b.added);
  });
  const auto is_same = [](const AdmissionStep& a, const AdmissionStep& b) {
    return target_of(a) == target_of(b);
  };
  return static_cast<uint32_t>(std::unique(steps.begin(), steps.end(), is_same) - steps.begin());
}

}  // namespace

Cut::Cut(Memory& memory, size_t row_bytes)
    : memory_(memory), row_bytes_(row_bytes), record_bytes_(sizeof(Time) + row_bytes) {}

Cut::~Cut() {
  for (auto& entry : groups_) {
    Group* group = entry.load();
    if (group == nullptr) continue;
    for (Shard& shard : group->shards) {
      free(shard.rows);
      free(shard.steps);
    }
    free_blocks(*group);
    memory_.free(group, sizeof(Group));
  }
}

Cut::Group& Cut::make_group(uint32_t partition) {
  if (Group* group = find_group(partition)) return *group;
  auto* fresh = new (memory_.allocate(sizeof(Group))) Group;
  Group* none = nullptr;
  if (!groups_[partition >> kGroupBits].compare_exchange_strong(none, fresh)) {
    memory_.free(fresh, sizeof(Group));  // another call allocated the group first
  }
  return *find_group(partition);
}

void Cut::add_block(Group& group) {
  constexpr size_t kLeast = 1024, kMost = 16 * kPageBytes;
  const auto with_records = [&](size_t count) { return sizeof(Block) + count * record_bytes_; };
  const size_t wanted = group.blocks == nullptr ? kLeast : 2 * group.blocks->bytes;
  const size_t bytes = std::clamp(wanted, with_records(1), std::max(kMost, with_records(8)));
  auto* block = new (memory_.allocate(bytes)) Block{group.blocks, bytes};
  group.blocks = block;
  group.next_record = reinterpret_cast<char*>(block + 1);
  group.end = reinterpret_cast<char*>(block) + bytes;
  bytes_ += bytes;
}

void Cut::free_blocks(Group& group) noexcept {
  while (Block* block = group.blocks) {
    group.blocks = block->next;
    bytes_ -= block->bytes;
    memory_.free(block, block->bytes);
  }
  group.next_record = group.end = nullptr;
}

template <typename T>
void Cut::grow(Array<T>& array) {
  const uint32_t wider = std::max(4u, 2 * array.capacity);
  auto* fresh = static_cast<T*>(memory_.allocate(wider * sizeof(T)));
  const uint32_t size = array.size;
  if (size > 0) std::memcpy(static_cast<void*>(fresh), array.data, size * sizeof(T));
  free(array);
  array = {fresh, size, wider};
  bytes_ += wider * sizeof(T);
}

template <typename T>
void Cut::free(Array<T>& array) noexcept {
  memory_.free(array.data, array.capacity * sizeof(T));
  bytes_ -= array.capacity * sizeof(T);
  array = {};
}

void Cut::keep(int64_t key, uint64_t hash, uint32_t time, const char* row) {
  const uint32_t partition = partition_of(hash);
  if (is_released(partition)) return;
  Group& group = make_group(partition);
  const std::lock_guard lock(group.lock);
  if (is_released(partition)) return;
  Array<Kept>& rows = group.shard(partition)->rows;
  if (rows.size == rows.capacity) grow(rows);
  if (static_cast<size_t>(group.end - group.next_record) < record_bytes_) add_block(group);
  char* record = group.next_record;
  const Time header = time;
  std::memcpy(record, &header, sizeof(header));
  std::memcpy(record + sizeof(header), row, row_bytes_);
  rows.data[rows.size++] = {key, record};
  group.next_record += record_bytes_;
  fetch_bytes(group.next_record, record_bytes_);
}

// Appends the rows of the records to `bytes`, and writes time and place of each to `rows`.
template <typename Row>
void Cut::copy_records(const std::vector<const char*>& records, std::span<Row> rows,
                       std::vector<char>& bytes) const {
  constexpr size_t kAhead = 12;
  for (size_t i = 0; i < std::min(kAhead, records.size()); ++i) {
    fetch_bytes(records[i], record_bytes_);
  }
  for (size_t i = 0; i < records.size(); ++i) {
    if (i + kAhead < records.size()) fetch_bytes(records[i + kAhead], record_bytes_);
    Time time;
    std::memcpy(&time, records[i], sizeof(time));
    rows[i].time = static_cast<uint32_t>(time);
    rows[i].row = bytes.size();
    bytes.insert(bytes.end(), records[i] + sizeof(time), records[i] + record_bytes_);
  }
}

void Cut::collect(uint64_t first, uint64_t last, std::vector<KeptRow>& kept_rows,
                  std::vector<char>& rows) {
  kept_rows.clear();
  rows.clear();
  std::vector<const char*> records;
  for (uint32_t p = partition_of(first); p <= partition_of(last); ++p) {
    Group* group = find_group(p);
    if (group == nullptr) continue;
    const std::lock_guard lock(group->lock);
    if (is_released(p)) continue;  // its records may be freed before their list
    const size_t num_before = kept_rows.size();
    records.clear();
    for (const Kept& kept : group->shard(p)->all_rows()) {
      const uint64_t hash = key_hash(kept.key);
      if (hash < first || hash > last) continue;
      kept_rows.push_back({hash, kept.key, 0, 0});
      records.push_back(kept.record);
    }
    copy_records(records, std::span(kept_rows).subspan(num_before), rows);
  }
  std::sort(kept_rows.begin(), kept_rows.end(),
            [](const KeptRow& a, const KeptRow& b) { return a.hash < b.hash; });
  // A row is kept twice if a call failed half-way; both copies are equal.
  const auto is_same = [](const KeptRow& a, const KeptRow& b) { return a.hash == b.hash; };
  kept_rows.erase(std::unique(kept_rows.begin(), kept_rows.end(), is_same), kept_rows.end());
}

// Finds a hash among wanted keys of one partition, by the bits that follow the partition's: most
// hashes meet an empty bucket. For one thread.
class Cut::Buckets {
 public:
  void fill(std::span<const WantedKey> keys) {
    constexpr size_t kBucketsPerKey = 4;
    keys_ = keys;
    bits_ = static_cast<uint32_t>(std::bit_width(kBucketsPerKey * keys.size()));
    ends_.assign((size_t{1} << bits_) + 1, 0);
    for (const WantedKey& key : keys) ++ends_[bucket_of(key.hash) + 1];
    for (size_t i = 1; i < ends_.size(); ++i) ends_[i] += ends_[i - 1];
  }

  // Calls use(key) for each wanted key with the hash.
  template <typename Use>
  void for_each(uint64_t hash, const Use& use) const {
    const size_t bucket = bucket_of(hash);
    const uint32_t first = ends_[bucket], last = ends_[bucket + 1];
    if (first == last) [[likely]]
      return;
    auto key = std::lower_bound(keys_.begin() + first, keys_.begin() + last, hash,
                                [](const WantedKey& a, uint64_t b) { return a.hash < b; });
    for (; key != keys_.begin() + last && key->hash == hash; ++key) use(*key);
  }

 private:
  size_t bucket_of(uint64_t hash) const noexcept { return hash << 12 >> (64 - bits_); }

  std::span<const WantedKey> keys_;
  std::vector<uint32_t> ends_;  // end of each bucket in keys_, after a 0
  uint32_t bits_ = 1;
};

void Cut::find(std::span<const WantedKey> keys, std::vector<FoundRow>& found_rows,
               std::vector<char>* rows) {
  Buckets wanted;
  std::vector<const char*> records;
  for (size_t next = 0; next < keys.size();) {
    const size_t first = next;
    const uint32_t p = partition_of(keys[first].hash);
    while (next < keys.size() && partition_of(keys[next].hash) == p) ++next;
    Group* group = find_group(p);
    if (group == nullptr) continue;
    wanted.fill(keys.subspan(first, next - first));
    const std::lock_guard lock(group->lock);
    if (is_released(p)) continue;
    const size_t num_before = found_rows.size();
    records.clear();
    for (const Kept& kept : group->shard(p)->all_rows()) {
      wanted.for_each(key_hash(kept.key), [&](const WantedKey& key) {
        found_rows.push_back({key.index, 0, 0});
        records.push_back(kept.record);
      });
    }
    if (rows != nullptr) {
      copy_records(records, std::span(found_rows).subspan(num_before), *rows);
    }
  }
}

bool Cut::copy_changes(std::vector<int64_t>& keys) {
  const std::lock_guard lock(read_mutex_);
  return read_ && read_->copy(keys);
}

void Cut::release_changes() noexcept {
  const std::lock_guard lock(read_mutex_);
  if (read_) read_->release();
}

void Cut::end_read(bool is_read) noexcept {
  const std::lock_guard lock(read_mutex_);
  if (read_ && is_read) read_->finish();
  read_.reset();
}

void Cut::begin_steps(uint32_t partition, uint32_t num_candidates, uint32_t log_end) {
  Shard& shard = *make_group(partition).shard(partition);
  const std::lock_guard lock(shard.lock);
  shard.num_candidates = num_candidates;
  shard.log_end = log_end;
}

void Cut::keep_step(uint32_t partition, const AdmissionStep& step) {
  if (step.kind == AdmissionStep::kNew || step.kind == AdmissionStep::kOverflow) return;
  Shard& shard = *find_shard(partition);
  if (!step.is_of_filter() && !is_behind(shard.log_end, step.stamp)) return;  // seen since
  const std::lock_guard lock(shard.lock);
  if (is_released(partition)) return;
  Array<AdmissionStep>& steps = shard.steps;
  if (steps.size == steps.capacity) {
    // After its first step a candidate counts as seen since the cut, unless a failed call undid the
    // step.
    const bool has_repeats = step.is_of_filter() || steps.size > shard.num_candidates;
    if (has_repeats) steps.size = drop_repeats(shard.all_steps());
    if (!has_repeats || steps.size >= steps.capacity / 2) grow(steps);
  }
  new (steps.data + steps.size++) AdmissionStep(step);
  shard.all_steps().back().added = shard.num_steps++;
}

Cut::Steps Cut::steps(uint32_t partition) {
  Shard* shard = find_shard(partition);
  if (shard == nullptr) return {};
  const std::lock_guard lock(shard->lock);
  const std::span<AdmissionStep> all = shard->all_steps();
  if (!all.empty() && !all.front().is_of_filter()) sort_by_stamp(all, shard->log_end);
  return {shard->log_end, {all.begin(), all.end()}};
}

void CutPlaces::begin() noexcept {
  num_cursors_ = 0;
  for (const auto& cut : cuts_.open()) {
    Cut::Shard* shard = cut->find_shard(partition_);
    shard->lock.lock();
    const std::span<AdmissionStep> all = shard->all_steps();
    sort_by_stamp(all, shard->log_end);
    for (uint32_t i = 0; i < all.size(); ++i) all[i].added = i;  // equal stamps keep this order
    cursors_[num_cursors_++] = {shard, 0, 0, false};
  }
}

void CutPlaces::move(uint32_t old_place, uint32_t new_place) noexcept {
  for (ShardCursor& cursor : std::span(cursors_, num_cursors_)) {
    const std::span<AdmissionStep> all = cursor.shard->all_steps();
    while (cursor.next < all.size() && !is_behind(all[cursor.next].stamp, old_place)) {
      all[cursor.next++].stamp = new_place;
    }
    if (cursor.has_end || is_behind(cursor.shard->log_end, old_place)) continue;
    cursor.new_end = new_place;
    cursor.has_end = true;
  }
}

void CutPlaces::end(uint32_t new_place) noexcept {
  for (ShardCursor& cursor : std::span(cursors_, num_cursors_)) {
    for (AdmissionStep& step : cursor.shard->all_steps().subspan(cursor.next)) {
      step.stamp = new_place;
    }
    cursor.shard->log_end = cursor.has_end ? cursor.new_end : new_place;
    cursor.shard->lock.unlock();
  }
}

void Cut::release(uint32_t partition) noexcept {
  released_[partition >> 6].fetch_or(uint64_t{1} << (partition & 63));
  Group* group = find_group(partition);
  if (group == nullptr) return;  // a thread that allocates the group will see the bit
  Shard& shard = *group->shard(partition);
  {
    const std::lock_guard lock(shard.lock);
    free(shard.steps);
  }
  const std::lock_guard lock(group->lock);
  free(shard.rows);
  if (are_all_released(partition >> kGroupBits)) free_blocks(*group);
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
