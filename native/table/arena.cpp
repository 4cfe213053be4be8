#include "table/arena.h"

#include <algorithm>
#include <bit>
#include <new>

namespace monolith {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kLineBytes = 64;
constexpr size_t kMaxChunkBytes = size_t{256} << 20;

uint32_t rows_in(size_t bytes, size_t row_bytes) {
  const size_t rows = std::max<size_t>(1, bytes / (row_bytes + sizeof(Meta)));
  return static_cast<uint32_t>(std::min<size_t>(std::bit_floor(rows), 1u << Arena::kIndexBits));
}

}  // namespace

Arena::Arena(Memory& memory, Epochs& epochs, size_t row_bytes, uint32_t most_chunks)
    : memory_(memory),
      epochs_(epochs),
      row_bytes_(row_bytes),
      first_rows_(rows_in(kPageBytes, row_bytes)),
      max_rows_(rows_in(kMaxChunkBytes, row_bytes)),
      most_chunks_(most_chunks) {
  grow_directory();
}

Arena::~Arena() {
  epochs_.reclaim();
  Chunk* chunks = chunks_.load();
  for (uint32_t i = 0; i < num_chunks_; ++i) {
    memory_.free(chunks[i].rows - shift(i), num_places(i) * row_bytes_);
    memory_.free(chunks[i].meta, num_places(i) * sizeof(Meta));
  }
  memory_.free(chunks, max_chunks_ * sizeof(Chunk));
}

uint32_t Arena::num_places(uint32_t chunk_number) const noexcept {
  if (chunk_number >= kIndexBits) return max_rows_;
  return static_cast<uint32_t>(
      std::min<uint64_t>(max_rows_, uint64_t{first_rows_} << chunk_number));
}

size_t Arena::shift(uint32_t chunk_number) const noexcept {
  constexpr size_t kMany = 256;  // in chunks of at least this many places, one may stay empty
  const size_t places = num_places(chunk_number);
  const bool are_even = row_bytes_ % (2 * kLineBytes) == 0;
  return are_even && places >= kMany && places * row_bytes_ >= kHugeBytes ? kLineBytes : 0;
}

void Arena::free_block(void* owner, void* block, size_t bytes) {
  static_cast<Memory*>(owner)->free(block, bytes);
}

// Readers may be using the old array, so it is replaced and retired.
void Arena::grow_directory() {
  if (max_chunks_ == most_chunks_) throw OutOfMemory(row_bytes_, memory_.held_bytes());
  const uint32_t wider = std::min(std::max(8u, 2 * max_chunks_), most_chunks_);
  auto* fresh = static_cast<Chunk*>(memory_.allocate(wider * sizeof(Chunk)));
  Chunk* old = chunks_.load(std::memory_order_relaxed);
  if (old != nullptr) {
    try {
      epochs_.reserve(1);
    } catch (...) {
      memory_.free(fresh, wider * sizeof(Chunk));
      throw;
    }
  }
  for (uint32_t i = 0; i < wider; ++i) {
    new (fresh + i) Chunk;
    if (i >= max_chunks_) continue;
    fresh[i].rows.store(old[i].rows.load());
    fresh[i].meta.store(old[i].meta.load());
  }
  chunks_.store(fresh, std::memory_order_release);
  if (old != nullptr) epochs_.retire(free_block, &memory_, old, max_chunks_ * sizeof(Chunk));
  max_chunks_ = wider;
}

void Arena::add_chunk() {
  if (num_chunks_ == max_chunks_) grow_directory();
  const size_t rows = num_places(num_chunks_);
  auto* block = static_cast<char*>(memory_.allocate(rows * row_bytes_));
  Meta* meta = nullptr;
  try {
    meta = static_cast<Meta*>(memory_.allocate(rows * sizeof(Meta)));
  } catch (...) {
    memory_.free(block, rows * row_bytes_);
    throw;
  }
  Chunk& chunk = chunks_.load(std::memory_order_relaxed)[num_chunks_];
  chunk.meta.store(meta, std::memory_order_release);  // readers may hold an old number
  chunk.rows.store(block + shift(num_chunks_), std::memory_order_release);
  ++num_chunks_;
  num_used_ = 0;
}

size_t Arena::allocate(uint32_t* numbers, size_t n) {
  const std::lock_guard lock(mutex_);
  size_t count = 0;
  for (; count < n && free_ != kNone; ++count) {
    numbers[count] = free_;
    free_ = meta(free_)->time;
  }
  if (count == n) return count;
  const bool is_full = num_chunks_ == 0 || num_used_ == capacity(num_chunks_ - 1);
  if (is_full && count > 0) return count;
  const size_t bytes = row_bytes_ + sizeof(Meta);
  if (!memory_.try_use(bytes)) return count;  // the first fresh row
  try {
    if (is_full) add_chunk();
  } catch (...) {
    memory_.unuse(bytes);
    throw;
  }
  const uint32_t room = capacity(num_chunks_ - 1) - num_used_;
  const uint32_t first = ((num_chunks_ - 1) << kIndexBits) | num_used_;
  auto fresh = static_cast<uint32_t>(std::min<size_t>(room, n - count));
  if (!memory_.try_use((fresh - 1) * bytes)) fresh = 1;
  for (uint32_t i = 0; i < fresh; ++i) numbers[count + i] = first + i;
  num_used_ += fresh;
  num_rows_ += fresh;
  return count + fresh;
}

void Arena::free(const uint32_t* numbers, size_t n) noexcept {
  const std::lock_guard lock(mutex_);
  for (size_t i = n; i-- > 0;) {
    __atomic_store_n(&meta(numbers[i])->time, free_, __ATOMIC_RELAXED);  // readers run concurrently
    free_ = numbers[i];
  }
}

void Arena::restart_generations() noexcept {
  const std::lock_guard lock(mutex_);
  for (uint32_t c = 0; c < num_chunks_; ++c) {
    Meta* meta = chunks_.load(std::memory_order_relaxed)[c].meta.load(std::memory_order_relaxed);
    const uint32_t used = c + 1 < num_chunks_ ? capacity(c) : num_used_;
    for (uint32_t i = 0; i < used; ++i) {
      __atomic_fetch_and(&meta[i].marks, Meta::kUses | Meta::kHeld, __ATOMIC_RELAXED);
    }
  }
}

void Arena::clear() noexcept {
  const std::lock_guard lock(mutex_);
  Chunk* chunks = chunks_.load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < num_chunks_; ++i) {
    epochs_.retire(free_block, &memory_, chunks[i].rows.exchange(nullptr) - shift(i),
                   num_places(i) * row_bytes_);
    epochs_.retire(free_block, &memory_, chunks[i].meta.exchange(nullptr),
                   num_places(i) * sizeof(Meta));
  }
  memory_.unuse(bytes());
  num_rows_ = 0;
  num_chunks_ = 0;
  num_used_ = 0;
  free_ = kNone;
}

}  // namespace monolith
