#include "io/block_copy.h"

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace monolith {
namespace {

// Copies unless empty: an empty array may be null, which memcpy does not accept.
template <typename T>
T* append(const T* values, size_t count, T* out) {
  if (count > 0) std::memcpy(out, values, count * sizeof(T));
  return out + count;
}

// Appends the ids of a column and, unless `splits` is null, the ends of its rows.
int64_t* append_ids(const std::vector<BlockRows>& parts, size_t column, int64_t* ids,
                    int64_t* splits) {
  int64_t before = 0;  // number of ids of the earlier parts
  if (splits != nullptr) *splits++ = 0;
  for (const auto& [block, first, count] : parts) {
    const ArrowBlock::Ids& from = block->ids()[column];
    const size_t begin = from.begin(first), num_ids = from.begin(first + count) - begin;
    ids = append(from.values + begin, num_ids, ids);
    if (splits == nullptr) continue;
    if (from.offsets == nullptr) {
      for (size_t row = 1; row <= count; ++row) *splits++ = before + static_cast<int64_t>(row);
    } else {
      const int64_t base = before - static_cast<int64_t>(begin);
      for (size_t row = 1; row <= count; ++row) *splits++ = base + from.offsets[first + row];
    }
    before += static_cast<int64_t>(num_ids);
  }
  return ids;
}

// Sizes of all, and whether there are splits.
struct Sizes {
  size_t num_rows = 0, num_ids = 0, num_floats = 0;
  bool is_one_each = true;
};

Sizes sizes_of(const std::vector<BlockRows>& parts) {
  Sizes sizes;
  for (const auto& [block, first, count] : parts) {
    sizes.num_rows += count;
    for (const ArrowBlock::Ids& ids : block->ids()) {
      sizes.num_ids += ids.begin(first + count) - ids.begin(first);
      sizes.is_one_each = sizes.is_one_each && ids.offsets == nullptr;
    }
    for (const ArrowBlock::Floats& floats : block->floats()) {
      sizes.num_floats += count * floats.per_row();
    }
  }
  return sizes;
}

void check_widths(const std::vector<BlockRows>& parts) {
  for (const BlockRows& part : parts) {
    for (size_t column = 0; column < part.block->floats().size(); ++column) {
      const size_t expected = parts[0].block->floats()[column].width;
      const size_t width = part.block->floats()[column].width;
      if (width != expected) {
        throw std::invalid_argument("[data] expected float column " + std::to_string(column) +
                                    " of all blocks with width " + std::to_string(expected) +
                                    ", got " + std::to_string(width));
      }
    }
  }
}

}  // namespace

BlockCopy copy_rows(const std::vector<BlockRows>& parts) {
  check_widths(parts);
  const auto [num_rows, num_ids, num_floats, is_one_each] = sizes_of(parts);
  const ArrowBlock& like = *parts[0].block;
  BlockCopy copy;
  copy.num_rows = num_rows;
  copy.is_one_each = is_one_each;
  for (const ArrowBlock::Floats& floats : like.floats()) copy.widths.push_back(floats.width);
  copy.ids = Lines<int64_t>(num_ids);
  copy.splits = Lines<int64_t>(is_one_each ? 0 : like.ids().size() * (num_rows + 1));
  copy.floats = Lines<float>(num_floats);
  copy.times = Lines<int64_t>(like.times().size() * num_rows);
  int64_t* ids = copy.ids.data();
  for (size_t column = 0; column < like.ids().size(); ++column) {
    int64_t* splits = is_one_each ? nullptr : copy.splits.data() + column * (num_rows + 1);
    ids = append_ids(parts, column, ids, splits);
  }
  float* floats = copy.floats.data();
  for (size_t column = 0; column < like.floats().size(); ++column) {
    for (const auto& [block, first, count] : parts) {
      const ArrowBlock::Floats& from = block->floats()[column];
      floats = append(from.values + first * from.per_row(), count * from.per_row(), floats);
    }
  }
  int64_t* times = copy.times.data();
  for (size_t column = 0; column < like.times().size(); ++column) {
    for (const auto& [block, first, count] : parts) {
      times = append(block->times()[column] + first, count, times);
    }
  }
  return copy;
}

std::future<BlockCopy> CopyAhead::start(std::vector<BlockRows> parts) {
  check_widths(parts);  // so that the copy can only fail for memory
  std::packaged_task<BlockCopy()> task([parts = std::move(parts)] { return copy_rows(parts); });
  std::future<BlockCopy> future = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(task));
  }
  changed_.notify_one();
  return future;
}

void CopyAhead::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  // After a stop, the queue is still emptied, because callers hold the futures.
  while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    std::packaged_task<BlockCopy()> task = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace monolith
