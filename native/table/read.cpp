// Implements the reading verbs by key.
#include "table/read.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "table/columns.h"
#include "table/copy.h"

namespace monolith {

void Table::wait_for_writer(const Line& line, uint32_t version) const noexcept {
  if (!(version & Line::kWriting)) {  // retired, or changed meanwhile: try again
    counters_.reader_retries.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t tries = 0; line.version.load(std::memory_order_relaxed) & Line::kWriting; ++tries) {
    wait_turn(tries);
  }
  const auto waited = std::chrono::steady_clock::now() - start;
  const auto ns = static_cast<uint64_t>(waited / std::chrono::nanoseconds(1));
  counters_.reader_waits.fetch_add(1, std::memory_order_relaxed);
  raise_to(counters_.reader_wait_max_ns, ns);
}

void Table::lookup(const int64_t* keys, size_t n, float* out, bool initial, const float* scales,
                   unsigned threads) const {
  const size_t dim = layout_.dim();
  // A large output is evicted from the caches before its use, and would be fetched before it is
  // written.
  constexpr size_t kLarge = 1 << 20;  // bytes; smaller outputs gain little or lose
  const auto is_whole_lines = [](uintptr_t bytes) { return bytes % sizeof(Line) == 0; };
  const bool streams = n * dim * 4 >= kLarge && is_whole_lines(dim * 4) &&
                       is_whole_lines(reinterpret_cast<uintptr_t>(out));
  const auto target = [=](size_t i) { return out + i * dim; };
  in_pieces(n, threads, [&](size_t first, size_t last) {
    read_weights(keys, first, last, {initial, scales, streams}, target,
                 [](size_t, const PendingKey&) {});
    if (streams) fence_streamed();
  });
}

void Table::lookup_seen(std::span<const int64_t> keys, float* out, bool initial,
                        KeyLocation* seen) const {
  Epochs::Guard guard(epochs_);
  const size_t dim = layout_.dim();
  // A key in a line whose versions are near their end is searched again, by a call that can renew
  // the line.
  const auto note = [=](size_t i, const PendingKey& p) {
    const bool is_good = p.number < kReserved && p.version < Line::kWorn;
    seen[i] = {is_good ? const_cast<Line*>(p.line) : nullptr, p.number, p.slot};
  };
  read_weights(
      keys.data(), 0, keys.size(), {initial, nullptr}, [=](size_t i) { return out + i * dim; },
      note);
}

void Table::contains(const int64_t* keys, size_t n, bool* out, unsigned threads) const {
  const auto hit = [=](size_t i, const char*, uint32_t) { out[i] = true; };
  const auto miss = [=](size_t i) { out[i] = false; };
  in_pieces(n, threads, [&](size_t first, size_t last) {
    read<Fetch::kLines>(keys, first, last, hit, [](size_t, const PendingKey&) {}, miss);
  });
}

// Exports rows, bin by bin. The keys of a bin are collected under its lock, with the versions of
// their lines, and then read like other rows, so a writer waits for at most a few thousand keys; a
// key that is erased in between is skipped. For a cut, rows that changed since are read from its
// copies.
class Table::Exporter {
 public:
  Exporter(Table& table, Cut* cut, int64_t* keys, const Columns& columns)
      : table_(table),
        cut_(cut),
        keys_(keys),
        columns_(columns),
        scratch_(size_t{table.layout_.num_words()} * 4) {}

  size_t size() const noexcept { return size_; }

  // Collects the keys of the bin at `first`, up to `last`. Returns the last hash of the bin.
  uint64_t collect(uint64_t first, uint64_t last) {
    live_.clear();
    Bin* bin = table_.index_.lock_bin(first);
    const uint64_t bin_last = bin->last_hash();
    const uint32_t depth = bin->depth;
    try {
      for (const Line* line = bin->lines(); line != bin->lines() + bin->num_lines; ++line) {
        const uint32_t version = line->version.load(std::memory_order_relaxed);
        line->for_each([&](int64_t key, uint32_t row, uint32_t slot) {
          const uint64_t hash = key_hash(key);
          if (hash >= first && hash <= last)
            live_.push_back({hash, key, {line, nullptr, version, row, slot}, 0});
        });
      }
    } catch (...) {
      bin->lock.unlock();
      throw;
    }
    bin->lock.unlock();
    sort_live(depth);
    read_meta();
    if (cut_ != nullptr) {
      cut_->collect(first, std::min(bin_last, last), kept_, kept_rows_);
    }
    return bin_last;
  }

  // Writes the collected rows to the output, up to `limit` rows.
  void emit(size_t limit) {
    size_t k = 0, fetched = 0;
    for (size_t i = 0; (i < live_.size() || k < kept_.size()) && size_ < limit;) {
      if (i == live_.size() || (k < kept_.size() && kept_[k].hash <= live_[i].hash)) {
        i += i < live_.size() && live_[i].hash == kept_[k].hash;
        put_kept(kept_[k], kept_rows_);
        ++k;
        continue;
      }
      if (i + kAheadRows >= fetched) {
        fetch_rows(fetched, i + 2 * kAheadRows);
        fetched = i + 2 * kAheadRows;
      }
      read(live_[i++]);
    }
  }

 private:
  static constexpr size_t kAheadRows = 12;
  struct Live {
    uint64_t hash;
    int64_t key;
    PendingKey at;  // place of the row when it was collected
    uint32_t time;  // time of the row, if the version of `at` is current
  };

  // Sorts by hash. After the prefix of `depth` bits of the bin, hashes are uniform: the next bits
  // give the approximate place of each row.
  void sort_live(uint32_t depth) {
    const auto bits = static_cast<uint32_t>(std::bit_width(live_.size()));
    const auto part_of = [&](const Live& live) { return live.hash << depth >> 1 >> (63 - bits); };
    ends_.assign((size_t{1} << bits) + 1, 0);
    sorted_.resize(live_.size());
    for (const Live& live : live_) ++ends_[part_of(live) + 1];
    for (size_t part = 1; part < ends_.size(); ++part) ends_[part] += ends_[part - 1];
    for (const Live& live : live_) sorted_[ends_[part_of(live)]++] = live;
    uint32_t start = 0;
    for (const uint32_t end : ends_) {
      if (end - start > 1) {
        std::sort(sorted_.begin() + start, sorted_.begin() + end,
                  [](const Live& a, const Live& b) { return a.hash < b.hash; });
      }
      start = end;
    }
    live_.swap(sorted_);
  }

  // Prefetches rows and lines, in separate loops (see RowSearch).
  void fetch_rows(size_t first, size_t last) noexcept {
    const std::span live(live_.begin() + std::min(first, live_.size()),
                         live_.begin() + std::min(last, live_.size()));
    for (Live& row : live) row.at.row = table_.arena_.row(row.at.number);
    for (const Live& row : live) fetch_bytes(row.at.row, scratch_.size());
    for (const Live& row : live) fetch_line(row.at.line);
  }

  // Reads the times, and drops rows that changed since the cut: the cut has copies of them, which
  // collect() finds.
  void read_meta() {
    fence_acquire();  // after the versions
    for (size_t i = 0; i < std::min(kAheadRows, live_.size()); ++i) fetch_meta(live_[i]);
    size_t n = 0;
    for (size_t i = 0; i < live_.size(); ++i) {
      if (i + kAheadRows < live_.size()) fetch_meta(live_[i + kAheadRows]);
      const Meta* meta = table_.arena_.meta(live_[i].at.number);
      if (meta == nullptr) continue;  // the table was cleared
      uint32_t marks;
      racy_load(&marks, &meta->marks, sizeof(marks));
      if (!is_of_cut(marks)) continue;
      racy_load(&live_[i].time, &meta->time, sizeof(meta->time));
      live_[n++] = live_[i];
    }
    live_.resize(n);
    fence_acquire();
  }
  void fetch_meta(const Live& live) const noexcept {
    fetch_line(table_.arena_.meta(live.at.number));
  }
  bool is_of_cut(uint32_t marks) const noexcept {
    return cut_ == nullptr || Meta::generation(marks) < cut_->generation();
  }

  void read(const Live& live) {
    if (live.at.row != nullptr) {
      racy_load(scratch_.data(), live.at.row, scratch_.size());
      if (is_unchanged(live.at)) return put(live.key, live.time, scratch_.data());
    }
    uint32_t time = 0, marks = 0;
    const auto copy = [&](const char* row, uint32_t number) {
      const Meta* meta = table_.arena_.meta(number);
      if (meta == nullptr) return;  // cleared; the version has changed too
      racy_load(scratch_.data(), row, scratch_.size());
      racy_load(&time, &meta->time, sizeof(time));
      racy_load(&marks, &meta->marks, sizeof(marks));
    };
    PendingKey place{};
    if (table_.read_one(live.key, place, copy) && is_of_cut(marks)) {
      return put(live.key, time, scratch_.data());
    }
    if (cut_ == nullptr) return;
    cut_->collect(live.hash, live.hash, late_, late_rows_);  // the row changed meanwhile
    if (!late_.empty()) put_kept(late_.front(), late_rows_);
  }

  void put_kept(const Cut::KeptRow& kept, const std::vector<char>& rows) {
    put(kept.key, kept.time, rows.data() + kept.row);
  }
  void put(int64_t key, uint32_t time, const char* row) {
    keys_[size_] = key;
    columns_.times[size_] = time;
    for_each_column(table_.layout_, columns_, size_,
                    [&](size_t offset, char* column, size_t bytes) {
                      copy_short(column, row + offset, bytes);
                    });
    ++size_;
  }

  Table& table_;
  Cut* const cut_;
  int64_t* const keys_;
  const Columns& columns_;
  size_t size_ = 0;
  std::vector<char> scratch_, kept_rows_, late_rows_;
  std::vector<Live> live_, sorted_;
  std::vector<uint32_t> ends_;  // of the parts of sorted_
  std::vector<Cut::KeptRow> kept_, late_;
};

size_t Table::export_rows(uint64_t first, uint64_t last, size_t limit, int64_t* keys,
                          const Columns& columns, Cut* cut) {
  Epochs::Guard guard(epochs_);
  Exporter exporter(*this, cut, keys, columns);
  for (uint64_t start = first;;) {
    const uint64_t bin_last = exporter.collect(start, last);
    exporter.emit(limit);
    if (exporter.size() == limit || bin_last >= last) return exporter.size();
    start = bin_last + 1;
    guard.refresh();
  }
}

}  // namespace monolith
