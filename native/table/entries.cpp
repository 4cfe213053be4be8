// Implements whole rows by key: the current ones, or those of a cut.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "table/columns.h"
#include "table/copy.h"
#include "table/read.h"

namespace monolith {

// Keys to read: as of `cut`, or now if `cut` is null.
struct Table::CutKeys {
  const int64_t* keys;
  size_t n;
  Cut* cut;
};

// Calls put(i, time, row) for a key with a row, else miss(i). A row that is older than the cut is
// read from the table. Another row changed since: the copies of the cut have it, or it was not
// there (cut.h). Such keys are collected, because finding them costs a pass over the copies of
// their partition; for them miss(i) goes before put(i). `row` is null without Fetch::kEntries.
template <Fetch kFetch, typename Put, typename Miss>
void Table::read_entries(const CutKeys& keys, unsigned threads, const Put& put,
                         const Miss& miss) const {
  constexpr bool kWithRows = kFetch == Fetch::kEntries;
  constexpr size_t kMostChanged = 1 << 16;
  Cut* const cut = keys.cut;
  std::atomic<size_t> next{0};
  Team::run(threads, [&](Team& team, unsigned) {
    std::vector<char> row_bytes, kept_bytes;
    std::vector<Cut::WantedKey> changed;
    std::vector<Cut::FoundRow> found;
    uint32_t time = 0;
    bool is_current = false;  // the table has the row of the cut
    const auto hit = [&](size_t, const char* row, uint32_t number) {
      const Meta* meta = arena_.meta(number);
      if (meta == nullptr) return;  // cleared; the version has changed too
      uint32_t marks;
      racy_load(&marks, &meta->marks, sizeof(marks));
      is_current = cut == nullptr || Meta::generation(marks) < cut->generation();
      if (!is_current) return;
      racy_load(&time, &meta->time, sizeof(time));
      if (kWithRows) racy_load(row_bytes.data(), row, row_bytes.size());
    };
    const auto look_in_cut = [&](size_t i) {
      miss(i);
      if (cut != nullptr) changed.push_back({key_hash(keys.keys[i]), i});
    };
    const auto done = [&](size_t i, const PendingKey&) {
      is_current ? put(i, time, row_bytes.data()) : look_in_cut(i);
    };
    const auto find_changed = [&] {
      const auto is_before = [](const auto& a, const auto& b) { return a.hash < b.hash; };
      if (!std::is_sorted(changed.begin(), changed.end(), is_before)) {
        std::sort(changed.begin(), changed.end(), is_before);
      }
      found.clear();
      kept_bytes.clear();
      cut->find(changed, found, kWithRows ? &kept_bytes : nullptr);
      for (const Cut::FoundRow& row : found) put(row.index, row.time, kept_bytes.data() + row.row);
      changed.clear();
    };
    team.attempt([&] {
      if (kWithRows) row_bytes.resize(size_t{layout_.num_words()} * 4);
      Epochs::Guard guard(epochs_);
      for (size_t at; (at = next.fetch_add(kPiece)) < keys.n;) {
        read<kFetch>(keys.keys, at, std::min(at + kPiece, keys.n), hit, done, look_in_cut);
        guard.refresh();
        if (changed.size() >= kMostChanged) find_changed();
      }
      if (!changed.empty()) find_changed();
    });
  });
}

void Table::entries(const int64_t* keys, size_t n, bool* present, const Columns& columns,
                    unsigned threads, Cut* cut) const {
  const auto put = [&](size_t i, uint32_t time, const char* row) {
    present[i] = true;
    columns.times[i] = time;
    for_each_column(layout_, columns, i, [&](size_t offset, char* column, size_t bytes) {
      copy_short(column, row + offset, bytes);
    });
  };
  const auto miss = [&](size_t i) {
    present[i] = false;
    columns.times[i] = 0;
    for (size_t c = 0; c < columns.data.size(); ++c) {
      std::memset(columns.data[c] + i * columns.sizes[c], 0, columns.sizes[c]);
    }
  };
  read_entries<Fetch::kEntries>({keys, n, cut}, threads, put, miss);
}

void Table::contains_at(Cut& cut, const int64_t* keys, size_t n, bool* out,
                        unsigned threads) const {
  const auto put = [=](size_t i, uint32_t, const char*) { out[i] = true; };
  const auto miss = [=](size_t i) { out[i] = false; };
  read_entries<Fetch::kMeta>({keys, n, &cut}, threads, put, miss);
}

}  // namespace monolith
