#include "table/index.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <new>

namespace monolith {
namespace {

constexpr double kMaxLoad = 0.875;

// Returns a number in [0, 1) that depends only on the bin. Bins of equal slack would all be full at
// the same moment, and one batch would pay for rebuilding the whole table.
double draw(uint64_t prefix, uint32_t depth, uint32_t salt) {
  const uint64_t mixed = key_hash(static_cast<int64_t>(prefix ^ (uint64_t{depth} << 8) ^ salt));
  return static_cast<double>(mixed >> 11) * 0x1p-53;
}

uint32_t split_from(const Bin& bin) {
  return static_cast<uint32_t>(2048 * (1 + draw(bin.prefix, bin.depth, 0)));
}

Path path_of(Bin& bin, uint64_t hash) { return {BinRef(&bin), place_of(hash, bin.salt)}; }

// Inserts while the array is private, without changing versions.
void insert_private(Bin& bin, int64_t key, uint32_t row) {
  Path path = path_of(bin, key_hash(key));
  uint32_t slot;
  for (; (slot = path.line()->find_free()) == Line::kSlots; path.step()) {
    const uint32_t version = path.line()->version.load(std::memory_order_relaxed);
    path.line()->version.store(version | Line::kOverflowed, std::memory_order_relaxed);
  }
  path.line()->keys[slot].store(key, std::memory_order_relaxed);
  path.line()->rows[slot].store(row, std::memory_order_relaxed);
  ++bin.num_keys;
}

}  // namespace

Bin::Place Bin::find(int64_t key, uint64_t hash) noexcept {
  Path path = path_of(*this, hash);
  do {
    const uint32_t slot = path.line()->find(key);
    if (slot != Line::kSlots) return {path.line(), slot};
    if (!(path.line()->version.load(std::memory_order_relaxed) & Line::kOverflowed)) break;
  } while (path.step());
  return {};
}

Bin::Place Bin::find_free(uint64_t hash) noexcept {
  Path path = path_of(*this, hash);
  uint32_t slot;
  while ((slot = path.line()->find_free()) == Line::kSlots) path.step();
  return {path.line(), slot};
}

void Bin::insert(int64_t key, uint64_t hash, uint32_t row, Place place) noexcept {
  for (Path path = path_of(*this, hash); path.line() != place.line; path.step()) {
    if (path.line()->version.load(std::memory_order_relaxed) & Line::kOverflowed) continue;
    path.line()->begin_write();
    path.line()->end_write(Line::kOverflowed);
  }
  place.line->begin_write();
  place.line->keys[place.slot].store(key, std::memory_order_relaxed);
  place.line->rows[place.slot].store(row, std::memory_order_relaxed);
  place.line->end_write();
  ++num_keys;
}

void Bin::remove(Place place) noexcept {
  place.line->begin_write();
  place.line->rows[place.slot].store(kNoRow, std::memory_order_relaxed);
  place.line->end_write();
  --num_keys;
  ++num_removed;
}

Index::Index(Memory& memory, Epochs& epochs, uint64_t salt, uint32_t first_version,
             IndexLimits limits)
    : memory_(memory),
      epochs_(epochs),
      salt_(salt),
      first_version_(first_version),
      limits_(limits) {
  Directory* directory = allocate_directory(0);
  Bin* bin = nullptr;
  try {
    bin = allocate_bin(lines_for(1, 0, 0, 0), 0, 0, 0);
    count_bytes(directory->bytes() + bin->bytes(), 0);
  } catch (...) {
    if (bin != nullptr) free_bin(bin);
    free_directory(directory);
    throw;
  }
  directory->entries()[0].store(BinRef(bin).bits(), std::memory_order_relaxed);
  num_bins_ = 1;
  directory_.store(directory, std::memory_order_release);
}

Index::~Index() {
  epochs_.reclaim();
  Directory* directory = directory_.load();
  Bin* last = nullptr;
  for (size_t i = 0; i < size_t{1} << directory->depth; ++i) {
    Bin* bin = BinRef(directory->entries()[i].load()).bin();
    if (bin != last) free_bin(bin);
    last = bin;
  }
  memory_.free(directory, directory->bytes());
}

// Each bin and rebuild draws its own slack.
uint32_t Index::lines_for(uint32_t num_keys, uint64_t prefix, uint32_t depth,
                          uint32_t generation) const noexcept {
  const double slack = 1.06 + 0.33 * draw(prefix, depth, generation + 1);
  const double slots = num_keys * slack / kMaxLoad;
  auto lines = static_cast<size_t>(slots / Line::kSlots) + 1;
  const size_t bytes = (lines + 1) * sizeof(Line);
  if (bytes > kPageBytes / 2) {  // whole pages, used in full
    lines = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes / sizeof(Line) - 1;
  }
  return static_cast<uint32_t>(std::min<size_t>(lines, limits_.max_lines));
}

Bin* Index::allocate_bin(uint32_t num_lines, uint64_t prefix, uint8_t depth, uint32_t generation) {
  Bin* bin = new (memory_.allocate((size_t{num_lines} + 1) * sizeof(Line))) Bin;
  bin->num_lines = num_lines;
  bin->max_keys = std::max(1u, static_cast<uint32_t>(num_lines * Line::kSlots * kMaxLoad));
  bin->generation = generation;
  bin->depth = depth;
  bin->prefix = prefix;
  bin->salt = salt_;
  for (uint32_t i = 0; i < num_lines; ++i) (new (bin->lines() + i) Line)->reset(first_version_);
  return bin;
}

// Replaced arrays no longer count: memory is in use while new readers can reach it.
void Index::count_bytes(size_t added, size_t removed) {
  if (added > removed && !memory_.try_use(added - removed)) throw OverBudget();
  if (added < removed) memory_.unuse(removed - added);
  bytes_.fetch_add(added - removed, std::memory_order_relaxed);
}

// Does all that can fail before new bins or a new directory replace old ones.
void Index::reserve(size_t num_retired, size_t new_bytes, size_t old_bytes) {
  epochs_.reserve(num_retired);
  try {
    count_bytes(new_bytes, old_bytes);
  } catch (...) {
    epochs_.unreserve(num_retired);
    throw;
  }
}

Index::Directory* Index::allocate_directory(uint32_t depth) {
  const size_t bytes = sizeof(Directory) + (size_t{8} << depth);
  auto* directory = new (memory_.allocate(bytes)) Directory{depth, 63 - depth};
  for (size_t i = 0; i < size_t{1} << depth; ++i)
    new (directory->entries() + i) std::atomic<uint64_t>(0);
  return directory;
}

void Index::free_retired(void* owner, void* block, size_t bytes) {
  static_cast<Index*>(owner)->memory_.free(block, bytes);
}

Index::Location Index::find(int64_t key, uint64_t hash) const noexcept {
  for (uint32_t tries = 0;; ++tries) {
    Path path(bin_of(hash), place_of(hash, salt_));
    Line* const home = path.line();
    for (;;) {
      Line* const line = path.line();
      const uint32_t version = line->version.load(std::memory_order_acquire);
      if (version & (Line::kWriting | Line::kRetired)) break;
      const uint32_t slot = line->find(key);
      const uint32_t row =
          slot == Line::kSlots ? kNoRow : line->rows[slot].load(std::memory_order_relaxed);
      fence_acquire();
      if (line->version.load(std::memory_order_relaxed) != version) break;
      if (row != kNoRow || !(version & Line::kOverflowed))
        return {row, version >= Line::kWorn, line, slot % Line::kSlots};
      if (!path.step()) return {kNoRow, false, home, 0};
    }
    wait_turn(tries);
  }
}

void Index::wait_for(Bin& bin) noexcept {
  const auto start = std::chrono::steady_clock::now();
  bin.lock.lock();
  const auto waited = std::chrono::steady_clock::now() - start;
  const auto ns = static_cast<uint64_t>(waited / std::chrono::nanoseconds(1));
  counters_.lock_waits.fetch_add(1, std::memory_order_relaxed);
  raise_to(counters_.lock_wait_max_ns, ns);
}

Bin* Index::make_room(Bin* bin, uint64_t hash) {
  if (bin->num_keys < bin->max_keys) {
    const bool is_worn = bin->find_free(hash).line->is_worn();
    return is_worn ? rebuild(bin, bin->num_lines) : bin;
  }
  const bool is_full = bin->num_lines == limits_.max_lines;
  if (bin->num_keys >= split_from(*bin) || is_full) {
    // Uneven children could be full at once, so their arrays are sized for their keys.
    if (Bin* child = try_split(bin, hash)) return make_room(child, hash);
  }
  if (is_full) throw OutOfMemory(bin->bytes(), bytes());
  return rebuild(bin, lines_for(bin->num_keys + 1, bin->prefix, bin->depth, bin->generation + 1));
}

void Index::renew(uint64_t hash) {
  Bin* bin = lock_bin(hash);
  try {
    bin = rebuild(bin, bin->num_lines);
  } catch (...) {
    bin->lock.unlock();
    throw;
  }
  bin->lock.unlock();
}

// After many removals a bin holds more memory than needed, or more overflow flags, each of which
// sends a search for a missing key on to the next line.
Bin* Index::tidy(Bin* bin) noexcept {
  const bool is_sparse = bin->num_lines > 8 && bin->num_keys < bin->max_keys / 3;
  const bool is_stale = bin->num_removed > 16 + bin->max_keys / 4;
  if (!is_sparse && !is_stale) return bin;
  const uint32_t lines = lines_for(bin->num_keys + 1, bin->prefix, bin->depth, bin->generation + 1);
  try {
    return rebuild(bin, std::min(lines, bin->num_lines));  // fits into a full budget too
  } catch (const std::bad_alloc&) {
    return bin;
  }
}

Bin* Index::rebuild(Bin* bin, uint32_t num_lines) {
  Bin* fresh = allocate_bin(num_lines, bin->prefix, bin->depth, bin->generation + 1);
  try {
    reserve(1, fresh->bytes(), bin->bytes());
  } catch (...) {
    free_bin(fresh);
    throw;
  }
  bin->for_each([&](int64_t key, uint32_t row) { insert_private(*fresh, key, row); });
  fresh->lock.lock();
  {
    const std::lock_guard lock(directory_mutex_);
    publish(fresh);
  }
  retire(bin);
  counters_.rebuilds.fetch_add(1, std::memory_order_relaxed);
  return fresh;
}

Bin* Index::try_split(Bin* bin, uint64_t hash) {
  const auto depth = static_cast<uint8_t>(bin->depth + 1);
  if (!reserve_depth(depth, bin->num_lines == limits_.max_lines)) return nullptr;
  const uint64_t middle = bin->prefix | (uint64_t{1} << (64 - depth));
  uint32_t num_upper = 0;
  bin->for_each([&](int64_t key, uint32_t) { num_upper += key_hash(key) >= middle; });
  const uint32_t num_lower = bin->num_keys - num_upper;
  Bin* lower = allocate_bin(lines_for(num_lower + 1, bin->prefix, depth, 0), bin->prefix, depth, 0);
  Bin* upper = nullptr;
  try {
    upper = allocate_bin(lines_for(num_upper + 1, middle, depth, 0), middle, depth, 0);
    reserve(1, lower->bytes() + upper->bytes(), bin->bytes());
  } catch (...) {
    free_bin(lower);
    if (upper != nullptr) free_bin(upper);
    throw;
  }
  bin->for_each([&](int64_t key, uint32_t row) {
    insert_private(key_hash(key) >= middle ? *upper : *lower, key, row);
  });
  lower->lock.lock();  // no row may change through new lines before the old lines are retired
  upper->lock.lock();
  {
    const std::lock_guard lock(directory_mutex_);
    publish(lower);
    publish(upper);
    ++num_bins_;
  }
  retire(bin);
  counters_.splits.fetch_add(1, std::memory_order_relaxed);
  Bin* other = hash >= middle ? lower : upper;
  other->lock.unlock();
  return hash >= middle ? upper : lower;
}

// Keys whose hashes share a long prefix are rare unless an attacker chose them. For such keys a
// larger array is cheaper than doubling the directory for one bin.
bool Index::reserve_depth(uint8_t depth, bool is_forced) {
  if (depth > limits_.max_depth) return false;
  const std::lock_guard lock(directory_mutex_);
  Directory* old = directory_.load(std::memory_order_relaxed);
  if (depth <= old->depth) return true;
  if (!is_forced && (size_t{1} << depth) > 64 + 16 * num_bins_) return false;
  Directory* wide = allocate_directory(old->depth + 1);
  try {
    reserve(1, wide->bytes(), old->bytes());
  } catch (...) {
    free_directory(wide);
    throw;
  }
  for (size_t i = 0; i < size_t{2} << old->depth; ++i) {
    wide->entries()[i].store(old->entries()[i / 2].load(), std::memory_order_relaxed);
  }
  directory_.store(wide, std::memory_order_release);
  epochs_.retire(free_retired, this, old, old->bytes());
  return true;
}

// Locked, so that a doubling does not copy an old entry.
void Index::publish(Bin* bin) noexcept {
  Directory* directory = directory_.load(std::memory_order_relaxed);
  const size_t first = bin->prefix >> 1 >> directory->shift;
  const size_t count = size_t{1} << (directory->depth - bin->depth);
  for (size_t i = first; i < first + count; ++i) {
    directory->entries()[i].store(BinRef(bin).bits(), std::memory_order_release);
  }
}

// Readers that still hold the old lines must not trust them once writers change rows through new
// ones.
void Index::retire(Bin* bin) noexcept {
  for (Line* line = bin->lines(); line != bin->lines() + bin->num_lines; ++line) {
    const uint32_t version = line->version.load(std::memory_order_relaxed);
    line->version.store(version | Line::kRetired, std::memory_order_release);
  }
  bin->is_retired = true;
  bin->lock.unlock();
  epochs_.retire(free_retired, this, bin, bin->bytes());
}

void Index::expect(size_t num_keys) {
  constexpr size_t kBinKeys = 3072;  // at most
  Directory* old = directory_.load(std::memory_order_relaxed);
  Bin* only = BinRef(old->entries()[0].load()).bin();
  const uint32_t depth = std::min<uint32_t>(limits_.max_depth, std::bit_width(num_keys / kBinKeys));
  if (only->depth > 0 || only->num_keys > 0 || depth == 0) return;
  Directory* directory = allocate_directory(depth);
  size_t bytes = directory->bytes();
  std::vector<Bin*> bins;
  try {
    bins.reserve(size_t{1} << depth);
    for (uint64_t i = 0; i < uint64_t{1} << depth; ++i) {
      const uint64_t prefix = i << (64 - depth);
      const uint32_t lines = lines_for(static_cast<uint32_t>(num_keys >> depth), prefix, depth, 0);
      bins.push_back(allocate_bin(lines, prefix, static_cast<uint8_t>(depth), 0));
      bytes += bins.back()->bytes();
      directory->entries()[i].store(BinRef(bins.back()).bits(), std::memory_order_relaxed);
    }
    reserve(2, bytes, old->bytes() + only->bytes());
  } catch (...) {
    for (Bin* bin : bins) free_bin(bin);
    free_directory(directory);
    throw;
  }
  {
    const std::lock_guard lock(directory_mutex_);
    directory_.store(directory, std::memory_order_release);
    num_bins_ = bins.size();
  }
  only->lock.lock();
  retire(only);
  epochs_.retire(free_retired, this, old, old->bytes());
}

void Index::clear(size_t num_more) {
  Directory* old = directory_.load(std::memory_order_relaxed);
  std::vector<Bin*> bins;
  for (size_t i = 0; i < size_t{1} << old->depth; ++i) {
    Bin* bin = BinRef(old->entries()[i].load()).bin();
    if (bins.empty() || bins.back() != bin) bins.push_back(bin);
  }
  Directory* directory = allocate_directory(0);
  Bin* empty = nullptr;
  try {
    empty = allocate_bin(lines_for(1, 0, 0, 0), 0, 0, 0);
    reserve(bins.size() + 1 + num_more, directory->bytes() + empty->bytes(), bytes());
  } catch (...) {
    if (empty != nullptr) free_bin(empty);
    free_directory(directory);
    throw;
  }
  directory->entries()[0].store(BinRef(empty).bits(), std::memory_order_relaxed);
  {
    const std::lock_guard lock(directory_mutex_);
    directory_.store(directory, std::memory_order_release);
    num_bins_ = 1;
  }
  for (Bin* bin : bins) {
    bin->lock.lock();
    retire(bin);
  }
  epochs_.retire(free_retired, this, old, old->bytes());
}

}  // namespace monolith
