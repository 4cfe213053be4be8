#include "table/admission.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "table/hash.h"

namespace monolith {
namespace {

constexpr uint64_t kCandidateBytes = 16;  // nominal, for the cap
constexpr uint32_t kStream = 2;           // of the generator; 0 is initial values, 1 is rounding

uint32_t candidates_per_partition(const AdmissionSpec& spec) {
  const uint64_t share = spec.max_bytes / kCandidateBytes / Admission::kPartitions;
  return static_cast<uint32_t>(std::clamp<uint64_t>(share, 1, UINT32_MAX / 4));
}

// The first word of a block of Philox4x32-10 (Salmon et al., 2011).
uint32_t philox_word(uint64_t key, uint64_t number, uint64_t seed) {
  auto c0 = static_cast<uint32_t>(key), c1 = static_cast<uint32_t>(key >> 32);
  auto c2 = static_cast<uint32_t>(number), c3 = kStream;
  auto k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(b);
    c3 = static_cast<uint32_t>(a);
  }
  return c0;
}

}  // namespace

Admission::Admission(Memory& memory, const Cuts& cuts, const AdmissionSpec& spec, uint64_t seed,
                     uint64_t salt)
    : kind_(spec.kind),
      thresholds_(spec.threshold, spec.slots),
      limits_{candidates_per_partition(spec), spec.ttl_seconds},
      shape_(spec.capacity / kPartitions, spec.split_num),
      is_equal_(spec.is_equal),
      seed_(seed),
      salt_(salt),
      cuts_(cuts),
      memory_(memory) {}

Admission::~Admission() { clear(); }

Admission::Partition* Admission::find_partition(uint32_t number) const noexcept {
  Group* group = groups_[number >> kGroupBits].load(std::memory_order_acquire);
  return group == nullptr ? nullptr : group->partitions + (number & ((1u << kGroupBits) - 1));
}

Admission::Partition* Admission::make_partition(uint32_t number) {
  if (Partition* partition = find_partition(number)) return partition;
  const std::lock_guard lock(mutex_);
  std::atomic<Group*>& group = groups_[number >> kGroupBits];
  if (group.load(std::memory_order_relaxed) == nullptr) {
    void* block = memory_.allocate(sizeof(Group));
    if (block == nullptr) return nullptr;
    auto* fresh = new (block) Group;
    uint32_t at = number & ~((1u << kGroupBits) - 1);
    for (Partition& partition : fresh->partitions) partition.candidates.set_up(salt_, at++);
    group.store(fresh, std::memory_order_release);
  }
  return find_partition(number);
}

void Admission::Turn::cover(uint64_t hash, uint32_t bits) {
  if (covers(hash)) return;
  end();
  const uint32_t number = partition_of(hash);
  const uint32_t count = covers_all(bits) ? 1u << (12 - bits) : 1;
  const uint32_t first = number & ~(count - 1);
  first_ = admission_.make_partition(first);
  first_number_ = first;
  // Locks in ascending order, so that two calls cannot deadlock.
  for (count_ = 0; count_ < count; ++count_) {
    if (first_ != nullptr) first_[count_].lock.lock();
  }
}

// Tells open cuts the state of the partition before its first change in this generation. Throws
// OutOfMemory.
void Admission::begin_keeping(uint32_t number, Partition& partition) {
  if (partition.generation == cuts_.generation()) return;
  for (const auto& cut : cuts_.open()) {
    if (partition.generation >= cut->generation()) continue;
    cut->begin_steps(number, partition.candidates.size(), partition.candidates.log_end());
  }
  partition.generation = cuts_.generation();
}

template <typename Change>
bool Admission::keeping(uint32_t number, Partition& partition, AdmissionLog& log,
                        const Change& change) {
  if (cuts_.newest() == 0) return change(nullptr);
  begin_keeping(number, partition);
  CutPlaces places(cuts_, number);
  const size_t first = log.size();
  const bool result = change(&places);
  try {
    for (size_t i = first; i < log.size(); ++i) {
      for (const auto& cut : cuts_.open()) cut->keep_step(number, log[i]);
    }
  } catch (...) {  // exact, because the partition is locked
    for (; log.size() > first; log.pop_back()) undo(partition, log.back(), &places);
    throw;
  }
  return result;
}

void Admission::Turn::end() noexcept {
  for (; count_ > 0; --count_) {
    if (first_ != nullptr) first_[count_ - 1].lock.unlock();
  }
}

void Admission::Turn::prefetch(uint64_t hash) noexcept {
  admission_.prefetch(hash);
  const uint32_t number = partition_of(hash);
  if (number == fetched_ || first_ == nullptr || !covers(hash)) return;
  fetched_ = number;
  first_[number - first_number_].candidates.prefetch_ends();
}

void Admission::Turn::prefetch_found(uint64_t hash) const noexcept {
  if (first_ == nullptr || !covers(hash)) return;
  first_[partition_of(hash) - first_number_].candidates.prefetch_found(hash);
}

void Admission::prefetch(uint64_t hash) const noexcept {
  if (kind_ != AdmissionKind::kMinCount) return;
  if (const Partition* partition = find_partition(partition_of(hash))) {
    partition->candidates.prefetch(hash);
    for (const auto& cut : cuts_.open()) cut->prefetch(partition_of(hash));
  }
}

bool Admission::ask(Turn& turn, const Question& q, AdmissionLog& log) {
  if (kind_ == AdmissionKind::kProbabilistic) return roll(q);
  if (turn.first_ == nullptr) return false;  // over budget: not counted
  const uint32_t number = partition_of(q.hash), threshold = thresholds_.of(q.key);
  Partition& partition = turn.first_[number - turn.first_number_];
  return keeping(number, partition, log, [&](Renumbering* cuts) {
    if (kind_ == AdmissionKind::kMinCount) {
      return partition.candidates.ask(q.key, q.hash, q.count, q.now, threshold, limits_, memory_,
                                      partition.counters, log, cuts);
    }
    bool is_over = false;
    const auto before =
        partition.ring.add(q.hash, q.count, shape_, memory_, partition.counters, log, is_over);
    return !is_over && (!before || *before >= threshold);
  });
}

bool Admission::roll(const Question& q) const noexcept {
  const uint64_t word = philox_word(static_cast<uint64_t>(q.key), q.call, seed_);
  const uint32_t threshold = thresholds_.of(q.key);
  if (!is_equal_) return word * threshold < uint64_t{UINT32_MAX} * q.count;
  const double exponent = static_cast<double>(q.count) / threshold;
  return static_cast<double>(word) * 0x1p-32 >= std::pow(0.05, exponent);
}

void Admission::undo(const AdmissionLog& log) noexcept {
  for (auto step = log.rbegin(); step != log.rend(); ++step) {
    const uint64_t hash =
        step->is_of_filter() ? static_cast<uint64_t>(step->key) : key_hash(step->key);
    Partition* partition = find_partition(partition_of(hash));
    const std::lock_guard lock(partition->lock);
    CutPlaces places(cuts_, partition_of(hash));
    undo(*partition, *step, cuts_.newest() == 0 ? nullptr : &places);
  }
}

void Admission::undo(Partition& partition, const AdmissionStep& step, Renumbering* cuts) noexcept {
  if (step.is_of_filter()) {
    partition.ring.undo(step, shape_, partition.counters);
  } else {
    partition.candidates.undo(step, key_hash(step.key), limits_, partition.counters, cuts);
  }
}

uint32_t Admission::num_columns() const noexcept {
  return kind_ == AdmissionKind::kMinCount ? 3 : kind_ == AdmissionKind::kSlidingFilter ? 4 : 0;
}

void Admission::collect(uint32_t number, const Partition& partition, Cut* cut,
                        PartitionRows& rows) const {
  auto& [candidates, cells] = rows;
  candidates.clear();
  cells.clear();
  if (cut == nullptr || partition.generation < cut->generation()) {  // unchanged since the cut
    partition.candidates.append_to(candidates);
    partition.ring.append_to(cells, shape_);
  } else {
    const auto [log_end, since] = cut->steps(number);
    if (kind_ == AdmissionKind::kMinCount) {
      partition.candidates.append_then(candidates, log_end, since);
    } else {
      partition.ring.append_to(cells, shape_, since);
    }
  }
}

std::vector<int64_t> Admission::export_rows(std::span<const uint32_t> partitions, Cut* cut) {
  std::vector<int64_t> values;
  PartitionRows rows;
  for (const uint32_t number : partitions) {
    Partition* partition = find_partition(number);
    if (partition == nullptr) continue;  // and none existed at the cut
    {
      const std::lock_guard lock(partition->lock);
      collect(number, *partition, cut, rows);
    }
    for (const auto& [key, count, time] : rows.candidates) {
      values.insert(values.end(), {key, count, time});
    }
    for (const auto& [split, cell, value] : rows.cells) {
      values.insert(values.end(), {number, split, cell, value});
    }
  }
  return values;
}

void Admission::import_rows(const int64_t* values, size_t n) {
  AdmissionLog log;
  uint64_t num_left_out = 0;
  try {
    for (size_t i = 0; i < n; ++i) num_left_out += !import_row(values + i * num_columns(), log);
  } catch (...) {
    undo(log);
    throw;
  }
  num_left_out_ += num_left_out;
}

bool Admission::import_row(const int64_t* values, AdmissionLog& log) {
  const bool is_candidate = kind_ == AdmissionKind::kMinCount;
  const uint64_t hash = is_candidate ? key_hash(values[0]) : static_cast<uint64_t>(values[0]) << 52;
  Partition* partition = make_partition(partition_of(hash));
  if (partition == nullptr) return !is_candidate && values[1] < 0;  // such a head needs no filter
  const std::lock_guard lock(partition->lock);
  return keeping(partition_of(hash), *partition, log, [&](Renumbering* cuts) {
    if (is_candidate) {
      const CandidateRow row{values[0], static_cast<uint32_t>(values[1]),
                             static_cast<uint32_t>(values[2])};
      return partition->candidates.put(row, hash, limits_, memory_, partition->counters, log, cuts);
    }
    return partition->ring.put({values[1], values[2], values[3]}, hash, shape_, memory_, log);
  });
}

Admission::Facts Admission::facts() const noexcept {
  Facts facts{0, cleared_.dropped + num_left_out_, cleared_.overflows};
  for (uint32_t number = 0; number < kPartitions; ++number) {
    Partition* partition = find_partition(number);
    if (partition == nullptr) continue;
    const std::lock_guard lock(partition->lock);
    facts.candidates += partition->candidates.size() + partition->ring.size(shape_);
    facts.dropped += partition->counters.dropped;
    facts.overflows += partition->counters.overflows;
  }
  return facts;
}

void Admission::restart_generations() noexcept {
  for (auto& entry : groups_) {
    Group* group = entry.load();
    if (group == nullptr) continue;
    for (Partition& partition : group->partitions) partition.generation = 0;
  }
}

void Admission::clear() noexcept {
  for (auto& entry : groups_) {
    Group* group = entry.exchange(nullptr);
    if (group == nullptr) continue;
    for (Partition& partition : group->partitions) {
      partition.candidates.free(memory_);
      partition.ring.free(shape_, memory_);
      cleared_.dropped += partition.counters.dropped;
      cleared_.overflows += partition.counters.overflows;
    }
    memory_.free(group, sizeof(Group));
  }
}

}  // namespace monolith
