// The touched log: which keys changed since a reader last asked.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace monolith {

// Thread-safe. Each writing thread appends the keys that it changed as one segment; a key may be
// there more than once. Segments go when every cursor has read them, or when the log is full: the
// cursors that had not read them must start anew.
class TouchedLog {
 public:
  struct Segment {
    std::vector<int64_t> keys;   // room for every key of the call, made before anything changes
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
