// Reads keys in a lock-free pipeline of prefetches over a batch; shared by every verb that reads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>

#include "table/table.h"
#include "table/team.h"

namespace monolith {

constexpr size_t kBlock = 12;  // keys in one block of the pipeline
constexpr size_t kStages = 4;
constexpr size_t kFew = 4;       // at most this many keys are faster one by one
constexpr size_t kPiece = 2048;  // keys that a thread claims at once

constexpr uint32_t kMissing = UINT32_MAX;     // no such key
constexpr uint32_t kUnsure = UINT32_MAX - 1;  // a writer changed the line: look again
constexpr uint32_t kLate = UINT32_MAX - 2;    // not in its home line: continue in the next lines

struct PendingKey {
  const Line* line;
  const char* row;
  uint32_t version;
  uint32_t number;
  uint32_t slot;
};

// What a search of rows prefetches: only lines of the index, or also weights, metadata, or both
// with the state.
enum class Fetch { kLines, kWeights, kMeta, kEntries };

// Finds the key in one line. Returns false if the search continues in the next line.
[[gnu::always_inline]] inline bool match_line(int64_t key, PendingKey& p) noexcept {
  const Line& line = *p.line;
  const uint32_t version = line.version.load(std::memory_order_acquire);
  const bool is_stable = !(version & (Line::kWriting | Line::kRetired));
  p.version = version;
  const uint32_t match = line.match_halves(key);
  if (match != 0) [[likely]] {
    const auto slot = static_cast<uint32_t>(__builtin_ctz(match));
    // Acquire: a row of a chunk that the arena has just added requires the new directory of the
    // arena.
    p.number = line.rows[slot].load(std::memory_order_acquire);
    const bool is_key = line.keys[slot].load(std::memory_order_relaxed) == key;
    p.slot = slot;
    if (is_key && p.number < kReserved && is_stable) [[likely]]
      return true;
  }
  const uint32_t slot = match == 0 ? Line::kSlots : line.find(key);
  if (slot != Line::kSlots) {
    p.number = line.rows[slot].load(std::memory_order_acquire);
    p.slot = slot;
    if (p.number < kReserved && is_stable) return true;
  }
  fence_acquire();
  const bool is_same = line.version.load(std::memory_order_relaxed) == version;
  p.number = is_stable && is_same ? kMissing : kUnsure;
  return p.number == kUnsure || slot != Line::kSlots || !(version & Line::kOverflowed);
}

// Finds the key in its home line or in the lines after an overflow. Stores the line and its version
// for is_unchanged().
inline void match(const Index& index, int64_t key, PendingKey& p) noexcept {
  const uint64_t hash = key_hash(key);
  Path path(index.bin_of(hash), place_of(hash, index.salt()));
  do {
    p.line = path.line();
    if (match_line(key, p)) return;
  } while (path.step());
}

inline bool is_unchanged(const PendingKey& p) noexcept {
  fence_acquire();
  return p.line->version.load(std::memory_order_relaxed) == p.version;
}

// Calls hit(row, number), repeatedly if a writer interferes, until a consistent row was read; `p`
// then holds its place. Returns false if the key is missing.
template <typename Hit>
bool Table::read_one(int64_t key, PendingKey& p, const Hit& hit) const {
  for (;;) {
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

// Searches the rows of keys, in stages on blocks of keys. Memory is prefetched by loops that do
// nothing else, except for the few later lines: a processor may stall a prefetch until its address
// is translated, and such a loop translates the addresses of a block concurrently. All methods are
// always inline, because GCC drops calls of functions that only prefetch. For one thread.
template <Fetch kFetch>
class RowSearch {
  static constexpr bool kWithRows = kFetch == Fetch::kWeights || kFetch == Fetch::kEntries;
  static constexpr bool kWithMeta = kFetch == Fetch::kMeta || kFetch == Fetch::kEntries;

 public:
  // `row_bytes` is the number of bytes that are read of a row.
  RowSearch(const Index& index, const Arena& arena, size_t row_bytes) noexcept
      : index_(index),
        arena_(arena),
        row_bytes_(row_bytes),
        are_lines_(kWithRows && row_bytes == sizeof(Line) &&
                   arena.row_bytes() % sizeof(Line) == 0) {}

  [[gnu::always_inline]] void fetch_lines(std::span<PendingKey> block,
                                          const int64_t* key) const noexcept {
    const Index::Homes homes = index_.homes();
    for (PendingKey& p : block) p.line = homes.of(key_hash(*key++));
    for (const PendingKey& p : block) fetch_line(p.line);
  }

  // Finds the rows and prefetches them. Without a row, PendingKey::row points to the PendingKey
  // itself, a valid address.
  [[gnu::always_inline]] void find_rows(std::span<PendingKey> block, const int64_t* key) noexcept {
    for (PendingKey& p : block) {
      p.row = reinterpret_cast<const char*>(&p);
      if (match_line(*key++, p)) [[likely]] {
        find_address(p);
      } else {
        p.line = index_.second(key_hash(key[-1]), p.line);
        fetch_line(p.line);
        p.number = kLate;
        late_[num_late_++] = {&p, key[-1]};
      }
    }
    if (are_lines_) {
      for (const PendingKey& p : block) fetch_line(p.row);
    } else {
      for (const PendingKey& p : block) fetch(p);
    }
    if constexpr (kWithMeta) {
      for (const PendingKey& p : block) fetch_meta(p);
    }
  }

  // Does the same for keys that overflowed into their second line, which was prefetched before.
  [[gnu::always_inline]] void find_late_rows() noexcept {
    const std::span keys(late_, std::exchange(num_late_, 0));
    for (const LateKey& late : keys) {
      if (match_line(late.key, *late.p)) [[likely]] {
        find_address(*late.p);
      } else {  // overflowed its second line too, mostly into the next line
        fetch_line(late.p->line + 1);
        later_[num_later_++] = late;
      }
    }
    for (const LateKey& late : keys) fetch(*late.p);
    for (const LateKey& late : keys) fetch_meta(*late.p);
  }
  // Does the same for keys that overflowed their second line.
  [[gnu::always_inline]] void find_later_rows() noexcept {
    for (const LateKey& late : std::span(later_, std::exchange(num_later_, 0))) {
      match(index_, late.key, *late.p);
      find_address(*late.p);
      fetch(*late.p);
      fetch_meta(*late.p);
    }
  }

 private:
  struct LateKey {
    PendingKey* p;
    int64_t key;
  };

  [[gnu::always_inline]] void find_address(PendingKey& p) const noexcept {
    if (!kWithRows || p.number >= kLate) return;
    p.row = arena_.row(p.number);
    if (p.row == nullptr) p.number = kUnsure;
  }
  [[gnu::always_inline]] void fetch(const PendingKey& p) const noexcept {
    if constexpr (kWithRows) fetch_bytes(p.row, row_bytes_);
  }
  [[gnu::always_inline]] void fetch_meta(const PendingKey& p) const noexcept {
    if constexpr (kWithMeta) {
      if (p.number < kLate) fetch_line(arena_.meta(p.number));
    }
  }

  const Index& index_;
  const Arena& arena_;
  const size_t row_bytes_;
  const bool are_lines_;  // each row lies in one cache line
  LateKey late_[kBlock], later_[kBlock];
  size_t num_late_ = 0, num_later_ = 0;
};

// Moves block after block through the stages of the search, and visits the keys in order: hit(i,
// row, number), possibly repeated, then done(i, place of the key); or miss(i).
template <Fetch kFetch, typename Hit, typename Done, typename Miss>
[[gnu::always_inline]] inline void Table::read(const int64_t* keys, size_t first, size_t last,
                                               const Hit& hit, const Done& done,
                                               const Miss& miss) const {
  const auto look_again = [&](size_t i) __attribute__((noinline)) {
    const auto again = [&](const char* row, uint32_t number) { hit(i, row, number); };
    PendingKey p{};
    read_one(keys[i], p, again) ? done(i, p) : miss(i);
  };
  const auto use = [&](const PendingKey& p, size_t i) {
    if (p.number < kLate) [[likely]] {
      hit(i, p.row, p.number);
      if (is_unchanged(p)) [[likely]]
        return done(i, p);
    } else if (p.number == kMissing) {
      return miss(i);
    }
    look_again(i);
  };
  if (last - first <= kFew) {
    for (size_t i = first; i < last; ++i) use({nullptr, nullptr, 0, kUnsure, 0}, i);
    return;
  }
  const size_t row_bytes = kFetch == Fetch::kEntries ? arena_.row_bytes() : layout_.weight_bytes();
  RowSearch<kFetch> search(index_, arena_, row_bytes);
  PendingKey window[kStages * kBlock];
  const size_t num_blocks = (last - first + kBlock - 1) / kBlock;
  const auto start_of = [&](size_t b) { return first + b * kBlock; };
  const auto block_of = [&](size_t b) {
    return std::span(window + b % kStages * kBlock, std::min(kBlock, last - start_of(b)));
  };
  for (size_t b = 0; b < num_blocks + kStages - 1; ++b) {  // b - 1 wraps for the first block
    if (b < num_blocks) search.fetch_lines(block_of(b), keys + start_of(b));
    search.find_later_rows();
    search.find_late_rows();
    if (b - 1 < num_blocks) search.find_rows(block_of(b - 1), keys + start_of(b - 1));
    if (b - 3 < num_blocks) {
      size_t i = start_of(b - 3);
      for (const PendingKey& p : block_of(b - 3)) use(p, i++);
    }
  }
}

// Calls piece(first, last) on several threads until all `n` keys are done.
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

// Reads the weights of the keys in order. target(i) returns the destination, (dim,), and may be
// called twice; then use(i, place of the key) follows, with the number kMissing for a missing key.
template <typename Target, typename Use>
void Table::read_weights(const int64_t* keys, size_t first, size_t last, const ReadOptions& options,
                         const Target& target, const Use& use) const {
  const size_t dim = layout_.dim();
  const auto miss = [&](size_t i) {
    initial_or_zeros(target(i), keys[i], options);
    use(i, PendingKey{nullptr, nullptr, 0, kMissing, 0});
  };
  if (layout_.is_plain() && !layout_.has_views()) {
    const auto read_rows = [&](auto row_bytes) {
      const auto hit = [target, row_bytes, streams = options.streams](size_t i, const char* row,
                                                                      uint32_t) {
        streams ? racy_stream(target(i), row, row_bytes) : racy_load(target(i), row, row_bytes);
      };
      read<Fetch::kWeights>(keys, first, last, hit, use, miss);
    };
    // With a constant size, the compiler unrolls the copy of a row of one cache line.
    using OneLine = std::integral_constant<size_t, sizeof(Line)>;
    return dim * 4 == sizeof(Line) ? read_rows(OneLine{}) : read_rows(dim * 4);
  }
  const size_t bytes = layout_.weight_bytes();
  std::vector<char> codes(bytes);
  const auto hit = [&](size_t, const char* row, uint32_t) { racy_load(codes.data(), row, bytes); };
  const auto done = [&](size_t i, const PendingKey& p) {
    float* weights = target(i);
    layout_.decode(weights, codes.data());
    if (layout_.has_views()) layout_.see(weights, options.scales);
    use(i, p);
  };
  read<Fetch::kWeights>(keys, first, last, hit, done, miss);
}

}  // namespace monolith
