// Rows of blocks, copied into the memory of one batch: by the caller, or on a thread of its own.
//
//   user: int64          7 9             ids     7 9 | 3 1      column after column
//   history: list<int64> [3, 1] []       splits  0 1 2          (columns, rows + 1), each from 0
//                                                0 2 2
//   price: float         .5 2.           floats  .5 2. | 1. 0.  column after column
//   click: float         1. 0.
//   time: int64          5 6             times   5 6            column after column
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "io/arrow_block.h"

namespace monolith {

// Some rows of a block, which is borrowed.
struct BlockRows {
  const ArrowBlock* block;
  size_t first, count;
};

// Memory for n values, not initialised; begins at a line of the cache, as that of torch does.
template <typename T>
class Lines {
 public:
  Lines() = default;
  explicit Lines(size_t n)
      : size_(n), memory_(static_cast<T*>(::operator new(n * sizeof(T) + 1, kLine))) {}
  T* data() const noexcept { return memory_.get(); }
  size_t size() const noexcept { return size_; }

 private:
  static constexpr std::align_val_t kLine{64};
  struct Free {
    void operator()(T* memory) const noexcept { ::operator delete(memory, kLine); }
  };
  size_t size_ = 0;
  std::unique_ptr<T, Free> memory_;
};

struct BlockCopy {
  size_t num_rows = 0;
  std::vector<size_t> widths;  // of the float columns; 0: one number for each row
  bool is_one_each = true;     // each row has one id in each column: then there are no splits
  Lines<int64_t> ids, splits, times;
  Lines<float> floats;
};

// The rows of all parts, one after another. Blocks of the same names; at least one.
// Throws std::invalid_argument where their widths differ.
BlockCopy copy_rows(const std::vector<BlockRows>& parts);

// Copies rows on a thread of its own, in the order asked for. Used by one thread; the destructor
// waits until all is copied.
class CopyAhead {
 public:
  CopyAhead() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

  // The blocks are borrowed until the copy is there. Throws as copy_rows does, at once.
  std::future<BlockCopy> start(std::vector<BlockRows> parts);

 private:
  void work(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::packaged_task<BlockCopy()>> waiting_;
  std::jthread thread_;  // the last: it uses all others
};

}  // namespace monolith
