// The touched log: which keys changed since a reader last asked.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <vector>

namespace monolith {

// Keys, with room made beforehand. Shrinks where it is: a vector would copy itself.
class KeyBuffer {
 public:
  KeyBuffer() = default;
  ~KeyBuffer() { std::free(keys_); }
  KeyBuffer(const KeyBuffer&) = delete;
  KeyBuffer& operator=(const KeyBuffer&) = delete;

  // Once. Throws std::bad_alloc.
  void reserve(size_t capacity) {
    keys_ = static_cast<int64_t*>(std::malloc(capacity * sizeof(int64_t)));
    if (keys_ == nullptr) throw std::bad_alloc();
    capacity_ = capacity;
  }
  void push(int64_t key) noexcept { keys_[size_++] = key; }
  void shrink() noexcept {
    void* smaller = std::realloc(keys_, (size_ + 1) * sizeof(int64_t));
    if (smaller == nullptr) return;
    keys_ = static_cast<int64_t*>(smaller);
    capacity_ = size_ + 1;
  }
  size_t size() const noexcept { return size_; }
  size_t capacity() const noexcept { return capacity_; }
  const int64_t* begin() const noexcept { return keys_; }
  const int64_t* end() const noexcept { return keys_ + size_; }

 private:
  int64_t* keys_ = nullptr;
  size_t size_ = 0, capacity_ = 0;
};

// Thread-safe. Each writing thread appends the keys that it changed as one segment; a key may be
// there more than once. Segments go when every cursor has read them, or when the log is full: the
// cursors that had not read them must start anew.
class TouchedLog {
 public:
  struct Segment {
    KeyBuffer keys;              // room for every key of the call, made before anything changes
    std::vector<int64_t> extra;  // rows that went to make room
    size_t size() const noexcept { return keys.size() + extra.size(); }
  };
  using Segments = std::list<Segment>;  // spliced, so that appending cannot fail

  explicit TouchedLog(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Without cursors nothing is noted. Changes only while no writer runs.
  bool is_on() const noexcept { return !cursors_.empty(); }
  void append(Segments& segments) noexcept;

  // The segments that the cursor has not read, at a moment without writers; an unknown cursor is
  // made.
  struct Range {
    bool is_full;  // the cursor is new or fell behind: everything may have changed
    uint64_t first, last;
  };
  Range begin_read(const std::string& cursor);
  // Keys of the range; false: the log went over its bound meanwhile.
  bool copy(const Range& range, std::vector<int64_t>& keys);
  void end_read(const std::string& cursor, const Range& range) noexcept;
  // The cursor must start anew, at its next read too; an unknown one is made.
  void leave_behind(const std::string& cursor);
  // One reader at a time.
  std::mutex& reading() noexcept { return reading_; }

  // While no writer runs.
  bool drop(const std::string& cursor) noexcept;
  std::vector<std::string> cursors();
  // Every cursor must start anew.
  void forget() noexcept;
  size_t bytes() noexcept;

 private:
  static constexpr uint64_t kBehind = UINT64_MAX;
  void trim() noexcept;
  void pop() noexcept;

  const size_t max_bytes_;
  std::mutex reading_;
  std::mutex mutex_;
  Segments segments_;
  uint64_t first_ = 0;  // number of the first segment
  uint64_t next_ = 0;   // of the next one
  size_t bytes_ = 0;
  std::map<std::string, uint64_t> cursors_;  // next segment to read, or kBehind
};

}  // namespace monolith
