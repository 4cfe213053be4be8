// Decodes the next block of records on a separate thread, while the caller works on the previous
// block.
//
// One block at a time: `start` requests a block, `wait` returns it. The decoder and the bytes are
// borrowed, and only the separate thread uses them from `start` until `wait`. For one thread; the
// destructor waits for the block that is being decoded.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "io/record_decoder.h"

namespace monolith {

class DecodeAhead {
 public:
  explicit DecodeAhead(RecordDecoder& decoder);

  // Throws std::logic_error if a started block was not waited for.
  void start(const uint8_t* data, size_t size);

  // Returns the block, or throws the exception of its decoding. Throws std::logic_error if no block
  // was started.
  RecordBlock wait();

  // Number of blocks that the thread has decoded.
  size_t num_blocks() const;

 private:
  enum class State : uint8_t { kIdle, kAsked, kReady };

  void work(const std::stop_token& stop);

  RecordDecoder& decoder_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  State state_ = State::kIdle;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  RecordBlock block_;
  std::exception_ptr error_;
  size_t num_blocks_ = 0;
  std::jthread thread_;  // last member, because the thread uses the others
};

}  // namespace monolith
