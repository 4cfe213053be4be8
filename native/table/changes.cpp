// Implements cuts and changes() of a table.
#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

#include "table/table.h"
#include "table/team.h"

namespace monolith {

// Starts a generation. The caller holds the gate exclusively. When the numbers run out, all rows
// restart from 0: a row may then be noted once too often, but never too rarely. Returns false if an
// open cut prevents the restart.
bool Table::begin_generation() noexcept {
  if (cuts_.is_last_generation()) {
    if (!cuts_.open().empty()) return false;
    arena_.restart_generations();
    if (admission_) admission_->restart_generations();
    cuts_.restart_generations();
  }
  cuts_.next_generation();
  return true;
}

std::shared_ptr<Cut> Table::open_cut(const std::string* cursor) {
  auto cut = std::make_shared<Cut>(memory_, layout_.row_bytes());  // before writers have to wait
  const Gate::Exclusive gate(gate_);
  if (cuts_.open().size() == Cuts::kMost) return nullptr;
  if (!begin_generation()) throw std::overflow_error("no generation is left");
  if (cursor != nullptr) cut->read_log(log_, *cursor);
  const uint64_t num_recorded = recorder_ ? recorder_->size() : 0;
  cut->begin(cuts_.generation(), {num_rows(), num_update_calls(), num_recorded, latest_time()});
  cuts_.add(cut);
  return cut;
}

void Table::close_cut(Cut& cut, bool is_read) {
  {
    const Gate::Exclusive gate(gate_);
    cuts_.remove(cut);
  }
  cut.end_read(is_read);
  for (uint32_t p = 0; p < Cut::kPartitions; ++p) cut.release(p);  // the object may live long
}

size_t Table::num_cuts() {
  const Gate::Shared gate(gate_);
  return cuts_.open().size();
}

size_t Table::cut_bytes() {
  const Gate::Shared gate(gate_);
  size_t bytes = 0;
  for (const auto& cut : cuts_.open()) bytes += cut->bytes();
  return bytes;
}

// Copies the row into open cuts and notes the key in the log. Call keep_row() under the lock of the
// bin, before the row changes.
void Table::keep_row(int64_t key, uint32_t number, TouchedLog::Notes* notes) {
  Meta* meta = arena_.meta(number);
  uint32_t marks;
  racy_load(&marks, &meta->marks, sizeof(marks));  // another call may set kHeld concurrently
  const uint32_t seen = Meta::generation(marks);
  if (seen == cuts_.generation()) return;
  for (const auto& cut : cuts_.open()) {
    if (seen < cut->generation()) cut->keep(key, key_hash(key), meta->time, arena_.row(number));
  }
  if (notes != nullptr && notes->is_on()) notes->note(key);
  __atomic_fetch_xor(&meta->marks, (marks ^ Meta::noted(marks, cuts_.generation())),
                     __ATOMIC_RELEASE);
}

Table::Changes Table::changes(const std::string& cursor, unsigned threads) {
  std::optional<TouchedLog::Read> read;
  {
    const Gate::Exclusive gate(gate_);
    if (!begin_generation()) {  // later changes may not be noted again
      log_.leave_behind(cursor);
      return {true, {}, {}};
    }
    read.emplace(log_, cursor);
  }
  Changes result{true, {}, {}};
  if (std::vector<int64_t> keys; read->copy(keys)) {
    read->release();
    result = split_keys(keys, threads, [&](const std::vector<int64_t>& distinct, bool* present) {
      contains(distinct.data(), distinct.size(), present, threads);
    });
  }
  read->finish();
  return result;
}

Table::Changes Table::changes(Cut& cut, unsigned threads) {
  std::vector<int64_t> keys;
  if (!cut.copy_changes(keys)) return {true, {}, {}};
  Changes result =
      split_keys(keys, threads, [&](const std::vector<int64_t>& distinct, bool* present) {
        contains_at(cut, distinct.data(), distinct.size(), present, threads);
      });
  cut.release_changes();
  return result;
}

// Sorts noted keys by whether they have a row: contains(distinct keys, answers) tells.
template <typename Contains>
Table::Changes Table::split_keys(const std::vector<int64_t>& keys, unsigned threads,
                                 const Contains& contains) {
  Changes result{false, {}, {}};
  if (keys.empty()) return result;
  const std::vector<int64_t> distinct = in_hash_order(keys, threads);
  const auto is_present = std::make_unique<bool[]>(distinct.size());
  contains(distinct, is_present.get());
  for (size_t i = 0; i < distinct.size(); ++i) {
    (is_present[i] ? result.present : result.gone).push_back(distinct[i]);
  }
  return result;
}

// Returns the distinct keys, ascending by hash.
std::vector<int64_t> Table::in_hash_order(const std::vector<int64_t>& keys, unsigned threads) {
  std::pmr::monotonic_buffer_resource memory;
  Batch batch(keys.data(), static_cast<uint32_t>(keys.size()), nullptr, index_.salt(), 0, threads,
              memory);
  std::atomic<uint32_t> next{0};
  Team::run(threads, [&](Team& team, unsigned member) {
    batch.arrange(team, member);
    team.attempt([&] {
      Batch::Scratch scratch;
      for (uint32_t p; (p = next++) < batch.num_partitions();) {
        batch.group(p, scratch);
        const std::span<Batch::Entry> entries = batch.distinct(p);
        std::sort(entries.begin(), entries.end(),
                  [](const auto& a, const auto& b) { return a.hash < b.hash; });
      }
    });
  });
  std::vector<int64_t> distinct;
  distinct.reserve(keys.size());
  for (uint32_t p = 0; p < batch.num_partitions(); ++p) {
    for (const Batch::Entry& entry : batch.distinct(p)) distinct.push_back(entry.key);
  }
  return distinct;
}

bool Table::drop_cursor(const std::string& cursor) {
  const Gate::Exclusive gate(gate_);
  return log_.drop(cursor);
}

}  // namespace monolith
