// Decodes the next block of records on a thread of its own, while the caller works on the last one.
//
// One block at a time: `start` asks for it, `wait` hands it over. The decoder and the bytes are
// borrowed and belong to the thread from `start` until `wait`. Used by one thread; the destructor
// waits for the block that is being decoded.
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

  // Throws std::logic_error where a block was started that nobody has waited for.
  void start(const uint8_t* data, size_t size);

  // The block, or what its decoding threw; std::logic_error where none was started.
  RecordBlock wait();

  // How many blocks the thread has decoded.
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
  std::jthread thread_;  // the last: it uses all others
};

}  // namespace monolith
