// Copies rows of blocks into the memory of one batch, on the calling thread or on a separate
// thread.
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

// A range of rows of a block. Borrows the block.
struct BlockRows {
  const ArrowBlock* block;
  size_t first, count;
};

// Owns memory for `n` uninitialised values, aligned to a cache line like the memory of torch.
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
  std::vector<size_t> widths;  // widths of the float columns; 0 means one number per row
  bool is_one_each = true;     // each row has one id in each column, and there are no splits
  Lines<int64_t> ids, splits, times;
  Lines<float> floats;
};

// Copies the rows of all parts, one after another. There is at least one part, and all blocks have
// the same names. Throws std::invalid_argument if their widths differ.
BlockCopy copy_rows(const std::vector<BlockRows>& parts);

// Copies rows on a separate thread, in the order of the calls. For one thread; the destructor waits
// for all copies.
class CopyAhead {
 public:
  CopyAhead() : thread_([this](const std::stop_token& stop) { work(stop); }) {}

  // Starts a copy. The blocks are borrowed until the future is ready. Throws at once, like
  // copy_rows().
  std::future<BlockCopy> start(std::vector<BlockRows> parts);

 private:
  void work(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::packaged_task<BlockCopy()>> waiting_;
  std::jthread thread_;  // last member, because the thread uses the others
};

}  // namespace monolith
