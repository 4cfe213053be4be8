#include "io/decode_ahead.h"

#include <stdexcept>
#include <utility>

namespace monolith {

DecodeAhead::DecodeAhead(RecordDecoder& decoder)
    : decoder_(decoder), thread_([this](const std::stop_token& stop) { work(stop); }) {}

void DecodeAhead::start(const uint8_t* data, size_t size) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kIdle) {
      throw std::logic_error(
          "[DecodeAhead.start] expected no block under way, got one; wait for it");
    }
    data_ = data;
    size_ = size;
    state_ = State::kAsked;
  }
  changed_.notify_all();
}

RecordBlock DecodeAhead::wait() {
  std::unique_lock lock(mutex_);
  if (state_ == State::kIdle) {
    throw std::logic_error("[DecodeAhead.wait] expected a block under way, got none; start one");
  }
  changed_.wait(lock, [this] { return state_ == State::kReady; });
  state_ = State::kIdle;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::move(block_);
}

size_t DecodeAhead::num_blocks() const {
  const std::lock_guard lock(mutex_);
  return num_blocks_;
}

void DecodeAhead::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return state_ == State::kAsked; })) {
    lock.unlock();
    RecordBlock block;
    std::exception_ptr error;
    try {
      block = decoder_.decode(data_, size_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    block_ = std::move(block);
    error_ = error;
    state_ = State::kReady;
    ++num_blocks_;
    changed_.notify_all();
  }
}

}  // namespace monolith
