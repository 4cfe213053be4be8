// Reading verbs: a pipeline of prefetches over the batch, with no lock.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "table/columns.h"
#include "table/team.h"

namespace monolith {
namespace {

constexpr size_t kAhead = 26;    // keys between two stages: enough to hide a memory access
constexpr size_t kWindow = 64;   // ring of keys in flight, at least 2 * kAhead + 1
constexpr size_t kPiece = 2048;  // keys that a thread claims at once

constexpr uint32_t kMissing = UINT32_MAX;     // no such key
constexpr uint32_t kUnsure = UINT32_MAX - 1;  // a writer was there: look again
constexpr uint32_t kLate = UINT32_MAX - 2;    // to be looked for with others of its kind

struct Pending {
  const Line* line;
  const char* row;
  uint32_t version;
  uint32_t number;
};

// Finds the key in one line. False: go on with the next line.
[[gnu::always_inline]] inline bool match_line(int64_t key, Pending& p) noexcept {
  p.version = p.line->version.load(std::memory_order_acquire);
  const uint32_t slot = p.line->find(key);
  const bool is_stable = !(p.version & (Line::kWriting | Line::kRetired));
  if (slot != Line::kSlots) {
    // Acquire: a row of a chunk that the arena has just added needs the arena's new directory.
    p.number = is_stable ? p.line->rows[slot].load(std::memory_order_acquire) : kUnsure;
    if (p.number < kReserved) [[likely]]
      return true;
  }
  fence_acquire();
  const bool is_same = p.line->version.load(std::memory_order_relaxed) == p.version;
  p.number = is_stable && is_same ? kMissing : kUnsure;
  return p.number == kUnsure || slot != Line::kSlots || !(p.version & Line::kOverflowed);
}

// Finds the key in its line or those it overflowed into. Leaves the line and version to check
// later.
void match(const Index& index, int64_t key, Pending& p) noexcept {
  const uint64_t hash = key_hash(key);
  const BinRef ref = index.bin_of(hash);
  p.line = ref.home(place_of(hash, index.salt()));
  for (uint32_t walked = 0; walked < ref.num_lines(); ++walked) {
    if (match_line(key, p)) return;
    ++p.line;
    if (p.line == ref.lines() + ref.num_lines()) p.line = ref.lines();
  }
}

bool is_unchanged(const Pending& p) noexcept {
  fence_acquire();
  return p.line->version.load(std::memory_order_relaxed) == p.version;
}

}  // namespace

void Table::wait_for_writer(const Line& line, uint32_t version) const noexcept {
  if (!(version & Line::kWriting)) {  // retired, or changed while we looked: the next try will do
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
  uint64_t longest = counters_.reader_wait_max_ns.load(std::memory_order_relaxed);
  while (longest < ns && !counters_.reader_wait_max_ns.compare_exchange_weak(longest, ns)) {
  }
}

// Calls hit(row, number) until a whole row was seen; hit may be called again. False: missing.
template <typename Hit>
bool Table::read_one(int64_t key, const Hit& hit) const {
  for (;;) {
    Pending p{};
    match(index_, key, p);
    if (p.number == kMissing) return false;
    if (p.number != kUnsure) {
      const char* row = arena_.row(p.number);
      if (row != nullptr) {
        hit(row, p.number);
        if (is_unchanged(p)) return true;
      }
    }
    wait_for_writer(*p.line, p.line->version.load(std::memory_order_relaxed));
  }
}

// Stage 1 fetches the key's index line, stage 2 finds the row and fetches it, stage 3 uses it. The
// stages of different keys run side by side, so that memory and processor are both busy. A key that
// overflowed into another line would hold up the rest; such keys come last, in stages of their own.
// At most kPiece keys.
template <typename Hit, typename Done, typename Miss>
void Table::read(const int64_t* keys, size_t first, size_t last, bool with_row, const Hit& hit,
                 const Done& done, const Miss& miss) const {
  Pending window[kWindow];
  uint16_t late[kPiece];  // keys that overflowed, from first on
  size_t num_late = 0;
  const size_t row_bytes = layout_.weight_bytes();
  const auto fetch_line = [&](size_t i) {
    Pending& p = window[i % kWindow];
    p.line = index_.home(key_hash(keys[i]));
    __builtin_prefetch(p.line);
  };
  const auto fetch_row = [&](Pending& p) {
    if (!with_row || p.number >= kLate) return;
    p.row = arena_.row(p.number);
    if (p.row == nullptr) p.number = kUnsure;
    prefetch_bytes(p.row, row_bytes);
  };
  const auto find_row = [&](size_t i) {
    Pending& p = window[i % kWindow];
    if (match_line(keys[i], p)) [[likely]]
      return fetch_row(p);
    __builtin_prefetch(p.line + 1);
    p.number = kLate;
    late[num_late++] = static_cast<uint16_t>(i - first);
  };
  const auto use_row = [&](size_t i, const Pending& p) {
    if (p.number < kLate) [[likely]] {
      hit(i, p.row, p.number);
      if (is_unchanged(p)) [[likely]]
        return done(i);
    } else if (p.number == kMissing) {
      return miss(i);
    } else if (p.number == kLate) {
      return;
    }
    const auto again = [&](const char* row, uint32_t number) { hit(i, row, number); };
    read_one(keys[i], again) ? done(i) : miss(i);
  };
  const size_t n = last - first;
  for (size_t i = 0; i < std::min(n, 2 * kAhead); ++i) {
    fetch_line(first + i);
    if (i >= kAhead) find_row(first + i - kAhead);
  }
  for (size_t i = first + 2 * kAhead; i < last; ++i) {
    fetch_line(i);
    find_row(i - kAhead);
    use_row(i - 2 * kAhead, window[(i - 2 * kAhead) % kWindow]);
  }
  const size_t num_used = n > 2 * kAhead ? n - 2 * kAhead : 0;
  for (size_t i = n > kAhead ? n - kAhead : 0; i < n; ++i) find_row(first + i);
  for (size_t i = num_used; i < n; ++i) use_row(first + i, window[(first + i) % kWindow]);
  for (size_t start = 0; start < num_late; start += kWindow) {
    const size_t end = std::min(num_late, start + kWindow);
    for (size_t j = start; j < end; ++j) {
      Pending& p = window[j - start];
      match(index_, keys[first + late[j]], p);
      fetch_row(p);
    }
    for (size_t j = start; j < end; ++j) use_row(first + late[j], window[j - start]);
  }
}

// Calls piece(first, last) on several threads until all n keys are done.
template <typename Piece>
void Table::in_pieces(size_t n, unsigned threads, const Piece& piece) const {
  std::atomic<size_t> next{0};
  Team::run(threads, [&](Team& team, unsigned) {
    team.attempt([&] {
      Epochs::Guard guard(epochs_);
      for (size_t at; (at = next.fetch_add(kPiece)) < n;) {
        piece(at, std::min(at + kPiece, n));
        guard.refresh();
      }
    });
  });
}

void Table::read_plain(const int64_t* keys, size_t first, size_t last, float* out,
                       bool initial) const {
  const size_t dim = layout_.dim();
  const auto hit = [=](size_t i, const char* row, uint32_t) {
    racy_load(out + i * dim, row, dim * 4);
  };
  const auto miss = [=, this](size_t i) {
    if (initial && !reads_zeros(keys[i])) {
      layout_.initial_weights(out + i * dim, keys[i]);
    } else {
      std::memset(out + i * dim, 0, dim * 4);
    }
  };
  read(keys, first, last, true, hit, [](size_t) {}, miss);
}

// Rows that are not plain, or are seen through views.
void Table::read_coded(const int64_t* keys, size_t first, size_t last, float* out, bool initial,
                       const float* scales) const {
  const size_t dim = layout_.dim(), bytes = layout_.weight_bytes();
  std::vector<char> codes(bytes);
  const auto hit = [&](size_t, const char* row, uint32_t) { racy_load(codes.data(), row, bytes); };
  const auto done = [&](size_t i) {
    layout_.decode(out + i * dim, codes.data());
    if (layout_.has_views()) layout_.see(out + i * dim, scales);
  };
  const auto miss = [&](size_t i) {
    if (!initial || reads_zeros(keys[i]))
      return static_cast<void>(std::memset(out + i * dim, 0, dim * 4));
    layout_.initial_weights(out + i * dim, keys[i]);
    if (layout_.has_views()) layout_.see(out + i * dim, scales);
  };
  read(keys, first, last, true, hit, done, miss);
}

void Table::lookup(const int64_t* keys, size_t n, float* out, bool initial, const float* scales,
                   unsigned threads) const {
  const bool is_plain = layout_.is_plain() && !layout_.has_views();
  in_pieces(n, threads, [&](size_t first, size_t last) {
    is_plain ? read_plain(keys, first, last, out, initial)
             : read_coded(keys, first, last, out, initial, scales);
  });
}

void Table::contains(const int64_t* keys, size_t n, bool* out, unsigned threads) const {
  const auto hit = [=](size_t i, const char*, uint32_t) { out[i] = true; };
  const auto miss = [=](size_t i) { out[i] = false; };
  in_pieces(n, threads, [&](size_t first, size_t last) {
    read(keys, first, last, false, hit, [](size_t) {}, miss);
  });
}

void Table::read_entry(uint32_t number, size_t i, const Columns& columns, char* scratch) const {
  const char* row = arena_.row(number);
  const Meta* meta = arena_.meta(number);
  if (row == nullptr || meta == nullptr) return;  // cleared; the version has changed too
  racy_load(scratch, row, size_t{layout_.num_words()} * 4);
  uint32_t time;
  racy_load(&time, &meta->time, sizeof(time));
  columns.times[i] = time;
  for_each_column(layout_, columns, i, [&](size_t offset, char* column, size_t bytes) {
    std::memcpy(column, scratch + offset, bytes);
  });
}

void Table::entries(const int64_t* keys, size_t n, bool* present, const Columns& columns,
                    unsigned threads) const {
  const auto miss = [&](size_t i) {
    present[i] = false;
    columns.times[i] = 0;
    for (size_t c = 0; c < columns.data.size(); ++c) {
      std::memset(columns.data[c] + i * columns.sizes[c], 0, columns.sizes[c]);
    }
  };
  in_pieces(n, threads, [&](size_t first, size_t last) {
    std::vector<char> scratch(size_t{layout_.num_words()} * 4);
    const auto hit = [&](size_t i, const char*, uint32_t number) {
      present[i] = true;
      read_entry(number, i, columns, scratch.data());
    };
    read(keys, first, last, true, hit, [](size_t) {}, miss);
  });
}

// Rows of one export, bin by bin. Within a bin the keys are collected under its lock and then read
// like any others, so a writer waits for a few thousand keys at most; a key erased in between is
// left out. For a cut, rows that changed since come from its copies.
class Table::Exporter {
 public:
  Exporter(Table& table, Cut* cut, int64_t* keys, const Columns& columns)
      : table_(table),
        cut_(cut),
        keys_(keys),
        columns_(columns),
        scratch_(size_t{table.layout_.num_words()} * 4) {}

  size_t size() const noexcept { return size_; }

  // Collects the keys of the bin at `first`, up to `last`. Returns the bin's last hash.
  uint64_t collect(uint64_t first, uint64_t last) {
    live_.clear();
    Bin* bin = table_.index_.lock_bin(first);
    const uint64_t bin_last = bin->last_hash();
    try {
      bin->for_each([&](int64_t key, uint32_t row) {
        const uint64_t hash = key_hash(key);
        if (hash >= first && hash <= last && row < kReserved) live_.push_back({hash, key, row});
      });
    } catch (...) {
      bin->lock.unlock();
      throw;
    }
    bin->lock.unlock();
    std::sort(live_.begin(), live_.end(),
              [](const Live& a, const Live& b) { return a.hash < b.hash; });
    if (cut_ != nullptr) {
      drop_changed();
      cut_->collect(first, std::min(bin_last, last), kept_, kept_rows_);
    }
    return bin_last;
  }

  // Writes out what was collected, until there are `limit` rows.
  void emit(size_t limit) {
    size_t k = 0;
    for (size_t i = 0; (i < live_.size() || k < kept_.size()) && size_ < limit;) {
      if (i == live_.size() || (k < kept_.size() && kept_[k].hash <= live_[i].hash)) {
        i += i < live_.size() && live_[i].hash == kept_[k].hash;
        put_kept(kept_[k], kept_rows_);
        ++k;
        continue;
      }
      if (i + kAheadRows < live_.size()) fetch(live_[i + kAheadRows]);
      read(live_[i++]);
    }
  }

 private:
  static constexpr size_t kAheadRows = 12;
  struct Live {
    uint64_t hash;
    int64_t key;
    uint32_t row;
  };

  void fetch(const Live& live) const noexcept {
    __builtin_prefetch(table_.index_.home(live.hash));
    table_.prefetch_row(live.row);
  }

  // A row that changed since the cut was given to it before, so collect() will find it there.
  void drop_changed() {
    for (size_t i = 0; i < std::min(kAheadRows, live_.size()); ++i) fetch_meta(live_[i]);
    size_t n = 0;
    for (size_t i = 0; i < live_.size(); ++i) {
      if (i + kAheadRows < live_.size()) fetch_meta(live_[i + kAheadRows]);
      uint32_t marks;
      racy_load(&marks, &table_.arena_.meta(live_[i].row)->marks, sizeof(marks));
      if (Meta::generation(marks) < cut_->generation()) live_[n++] = live_[i];
    }
    live_.resize(n);
    fence_acquire();
  }
  void fetch_meta(const Live& live) const noexcept {
    __builtin_prefetch(table_.arena_.meta(live.row));
  }

  void read(const Live& live) {
    uint32_t time = 0, marks = 0;
    const bool is_there = table_.read_one(live.key, [&](const char* row, uint32_t number) {
      const Meta* meta = table_.arena_.meta(number);
      if (meta == nullptr) return;  // cleared; the version has changed too
      racy_load(scratch_.data(), row, scratch_.size());
      racy_load(&time, &meta->time, sizeof(time));
      racy_load(&marks, &meta->marks, sizeof(marks));
    });
    if (is_there && (cut_ == nullptr || Meta::generation(marks) < cut_->generation())) {
      return put(live.key, time, scratch_.data());
    }
    if (cut_ == nullptr) return;
    cut_->collect(live.hash, live.hash, late_, late_rows_);  // changed while we were here
    if (!late_.empty()) put_kept(late_.front(), late_rows_);
  }

  void put_kept(const Cut::Kept& kept, const std::vector<char>& rows) {
    put(kept.key, kept.time, rows.data() + kept.row);
  }
  void put(int64_t key, uint32_t time, const char* row) {
    keys_[size_] = key;
    columns_.times[size_] = time;
    for_each_column(table_.layout_, columns_, size_,
                    [&](size_t offset, char* column, size_t bytes) {
                      std::memcpy(column, row + offset, bytes);
                    });
    ++size_;
  }

  Table& table_;
  Cut* const cut_;
  int64_t* const keys_;
  const Columns& columns_;
  size_t size_ = 0;
  std::vector<char> scratch_, kept_rows_, late_rows_;
  std::vector<Live> live_;
  std::vector<Cut::Kept> kept_, late_;
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
