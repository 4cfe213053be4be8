#include "table/touched_log.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace monolith {
namespace {

// Large enough that allocations are rare; small enough that a low bound allows some blocks.
size_t block_bytes_for(size_t max_bytes) noexcept {
  constexpr size_t kLeast = 64, kMost = 8 * kPageBytes;
  return std::clamp(max_bytes / 16 / kLeast * kLeast, kLeast, kMost);
}

}  // namespace

void TouchedLog::Chain::push(Block* block) noexcept {
  block->next = nullptr;
  (first == nullptr ? first : last->next) = block;
  last = block;
  ++size;
}

void TouchedLog::Chain::push_front(Block* block) noexcept {
  block->next = first;
  if (first == nullptr) last = block;
  first = block;
  ++size;
}

TouchedLog::Block* TouchedLog::Chain::pop() noexcept {
  Block* block = first;
  if (block == nullptr) return nullptr;
  first = block->next;
  --size;
  return block;
}

// Each thread fills all of its blocks except the last one.
TouchedLog::Room::Room(TouchedLog& log, size_t num_keys, unsigned threads)
    : log_(log), is_on_(log.is_on()) {
  if (!is_on_) return;
  try {
    for (size_t i = 0; i < num_keys / log.block_keys_ + threads; ++i) add_block();
  } catch (...) {
    log_.keep(free_);
    throw;
  }
}

TouchedLog::Room::~Room() {
  if (is_on_) log_.keep(free_);
}

TouchedLog::Block* TouchedLog::Room::allocate() noexcept {
  const std::lock_guard lock(mutex_);
  return free_.pop();
}

void TouchedLog::Room::add_block() {
  Block* block = log_.make_block();
  const std::lock_guard lock(mutex_);
  free_.push(block);
}

void TouchedLog::Notes::begin_block() noexcept {
  end_block();
  Block* block = room_.allocate();
  assert(block != nullptr);
  blocks_.push(block);
  next_ = block->keys();
  end_ = next_ + room_.log_.block_keys_;
}

void TouchedLog::Notes::end_block() noexcept {
  if (next_ != nullptr) blocks_.last->size = static_cast<uint64_t>(next_ - blocks_.last->keys());
}

void TouchedLog::Notes::note_extra(int64_t key) {
  if (num_extra_ % room_.log_.block_keys_ == 0) room_.add_block();
  ++num_extra_;
  note(key);
}

TouchedLog::TouchedLog(Memory& memory, size_t max_bytes) noexcept
    : memory_(memory),
      max_bytes_(max_bytes),
      block_bytes_(block_bytes_for(max_bytes)),
      block_keys_((block_bytes_ - sizeof(Block)) / sizeof(int64_t)) {}

TouchedLog::~TouchedLog() {
  forget();
  free_spare(0);
}

TouchedLog::Block* TouchedLog::make_block() {
  {
    const std::lock_guard lock(mutex_);
    Block* block = spare_.pop();
    least_spare_ = std::min(least_spare_, spare_.size);
    if (block != nullptr) return block;
  }
  return new (memory_.allocate(block_bytes_)) Block{nullptr, 0};
}

// Keeps blocks for later calls, and frees blocks beyond the bound.
void TouchedLog::keep(Chain& blocks) noexcept {
  const std::lock_guard lock(mutex_);
  while (Block* block = blocks.pop()) spare_.push_front(block);  // the last used block is cached
  free_spare((max_bytes_ - blocks_.size * block_bytes_) / block_bytes_);
}

void TouchedLog::free_spare(size_t num_left) noexcept {
  while (spare_.size > num_left) memory_.free(spare_.pop(), block_bytes_);
  least_spare_ = std::min(least_spare_, spare_.size);
}

// The last block is filled up first: many small calls share one.
void TouchedLog::append(Notes& notes) noexcept {
  if (notes.next_ == nullptr) return;
  notes.end_block();
  notes.next_ = notes.end_ = nullptr;
  Chain blocks = std::exchange(notes.blocks_, {});
  Chain copied;
  {
    const std::lock_guard lock(mutex_);
    while (Block* block = blocks.pop()) {
      next_ += block->size;
      const uint64_t room = blocks_.first == nullptr ? 0 : block_keys_ - blocks_.last->size;
      const uint64_t moved = std::min(room, block->size);
      if (moved > 0) {
        block->size -= moved;
        std::copy_n(block->keys() + block->size, moved, blocks_.last->keys() + blocks_.last->size);
        blocks_.last->size += moved;
      }
      (block->size == 0 ? copied : blocks_).push(block);
    }
    while (blocks_.size * block_bytes_ > max_bytes_) pop();
    for (auto& [name, cursor] : cursors_) {
      if (cursor.next < first_) cursor.next = kBehind;
    }
  }
  keep(copied);
}

void TouchedLog::pop() noexcept {
  Block* block = blocks_.pop();
  first_ += block->size;
  spare_.push_front(block);
}

// Drops blocks that every cursor has read and no read needs.
void TouchedLog::trim() noexcept {
  uint64_t least = next_;
  for (const auto& [name, cursor] : cursors_) least = std::min(least, cursor.next);
  for (const uint64_t pin : pins_) least = std::min(least, pin);
  while (blocks_.first != nullptr && first_ + blocks_.first->size <= least) pop();
  if (cursors_.empty()) free_spare(0);
}

TouchedLog::Cursor& TouchedLog::find_or_create(const std::string& cursor) {
  const auto [found, is_new] = cursors_.try_emplace(cursor, Cursor{num_created_});
  num_created_ += is_new;
  return found->second;
}

TouchedLog::Read::Read(TouchedLog& log, const std::string& name) : log_(log), cursor_(name) {
  const std::lock_guard lock(log.mutex_);
  Cursor& cursor = log.find_or_create(name);
  is_full_ = cursor.next == kBehind;
  first_ = is_full_ ? log.next_ : cursor.next;
  last_ = log.next_;
  if (first_ < last_) log.pins_.push_back(first_);
  cursor_number_ = cursor.number;
  cursor.next = last_;  // later notes are for the next read
}

TouchedLog::Read::~Read() {
  release();
  if (is_finished_) return;
  const std::lock_guard lock(log_.mutex_);
  const auto found = log_.cursors_.find(cursor_);
  if (found == log_.cursors_.end() || found->second.number != cursor_number_) return;
  found->second.next = kBehind;
  log_.trim();
}

bool TouchedLog::Read::copy(std::vector<int64_t>& keys) const {
  if (is_full_) return false;
  keys.reserve(last_ - first_);
  const std::lock_guard lock(log_.mutex_);
  if (first_ < log_.first_ && first_ < last_) return false;
  uint64_t at = log_.first_;  // number of the first note of the block
  for (Block* block = log_.blocks_.first; block != nullptr && at < last_; block = block->next) {
    const uint64_t begin = std::clamp(first_, at, at + block->size) - at;
    const uint64_t end = std::min(last_ - at, block->size);
    keys.insert(keys.end(), block->keys() + begin, block->keys() + end);
    at += block->size;
  }
  return true;
}

void TouchedLog::Read::release() noexcept {
  if (std::exchange(is_released_, true)) return;
  const std::lock_guard lock(log_.mutex_);
  if (first_ < last_) log_.pins_.erase(std::find(log_.pins_.begin(), log_.pins_.end(), first_));
  log_.free_spare(log_.spare_.size - log_.least_spare_);  // not used since the last read
  log_.trim();
  log_.least_spare_ = log_.spare_.size;
}

void TouchedLog::leave_behind(const std::string& cursor) {
  const std::lock_guard lock(mutex_);
  find_or_create(cursor).next = kBehind;
  trim();
}

bool TouchedLog::drop(const std::string& cursor) noexcept {
  const std::lock_guard lock(mutex_);
  const bool existed = cursors_.erase(cursor) > 0;
  trim();
  return existed;
}

std::vector<std::string> TouchedLog::cursors() {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (const auto& [name, cursor] : cursors_) names.push_back(name);
  return names;
}

void TouchedLog::forget() noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [name, cursor] : cursors_) cursor.next = kBehind;
  while (blocks_.first != nullptr) pop();
  first_ = ++next_;  // as if a note was dropped, for a read in progress
}

size_t TouchedLog::bytes() noexcept {
  const std::lock_guard lock(mutex_);
  return blocks_.size * block_bytes_;
}

size_t TouchedLog::spare_bytes() noexcept {
  const std::lock_guard lock(mutex_);
  return spare_.size * block_bytes_;
}

}  // namespace monolith
