// The touched log: which keys changed since a reader last asked.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ops/fetch.h"
#include "table/memory.h"

namespace monolith {

// Thread-safe. Each writing thread notes the keys that it changed in blocks of its own, which are
// appended at the end of the call; a key may be there more than once. Blocks go when every cursor
// has read them, or when the log is full: the cursors that had not read them must start anew. What
// goes is used again, since fresh memory costs more than all else here; within the same bound.
class TouchedLog {
  struct Block {
    Block* next;
    uint64_t size;  // keys, which follow
    int64_t* keys() noexcept { return reinterpret_cast<int64_t*>(this + 1); }
  };
  struct Chain {
    Block* first = nullptr;
    Block* last = nullptr;
    size_t size = 0;
    void push(Block* block) noexcept;
    void push_front(Block* block) noexcept;
    Block* pop() noexcept;
  };

 public:
  // Blocks for the notes of one call, made before anything changes, so that noting and appending
  // cannot fail. Its threads take them one by one.
  class Room {
   public:
    // Room for so many notes, of all threads together; none while the log is off. Throws
    // OutOfMemory.
    Room(TouchedLog& log, size_t num_keys, unsigned threads);
    ~Room();
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;

   private:
    friend class TouchedLog;
    Block* allocate() noexcept;
    void add_block();

    TouchedLog& log_;
    const bool is_on_;
    std::mutex mutex_;
    Chain free_;
  };

  // What one thread of the call notes.
  class Notes {
   public:
    explicit Notes(Room& room) noexcept : room_(room), is_on_(room.is_on_) {}
    ~Notes() { room_.log_.append(*this); }
    Notes(const Notes&) = delete;
    Notes& operator=(const Notes&) = delete;

    // False: nobody reads the log, and nothing may be noted.
    bool is_on() const noexcept { return is_on_; }
    // The room was made for it. Without a branch on is_touched, which nobody could foretell.
    void note(int64_t key, bool is_touched = true) noexcept {
      if (next_ == end_) begin_block();
      // Rows are written between two notes: the processor does not see that notes are in sequence.
      if (reinterpret_cast<uintptr_t>(next_) % 64 == 0) fetch_line(next_ + kAhead);
      *next_ = key;
      next_ += is_touched;
    }
    // Beyond the room: rows that go to make room. Throws OutOfMemory.
    void note_extra(int64_t key);

   private:
    friend class TouchedLog;
    static constexpr size_t kAhead = 64;
    void begin_block() noexcept;
    void end_block() noexcept;

    Room& room_;
    const bool is_on_;
    Chain blocks_;
    int64_t* next_ = nullptr;  // in the last block
    int64_t* end_ = nullptr;
    uint64_t num_extra_ = 0;
  };

  TouchedLog(Memory& memory, size_t max_bytes) noexcept;
  ~TouchedLog();

  // Without cursors nothing is noted. Changes only while no writer runs.
  bool is_on() const noexcept { return !cursors_.empty(); }
  // Takes the notes over.
  void append(Notes& notes) noexcept;

  // The notes that the cursor has not read, at a moment without writers; an unknown cursor is made.
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
  // Of blocks with notes, and of those that wait for some.
  size_t bytes() noexcept;
  size_t spare_bytes() noexcept;

 private:
  static constexpr uint64_t kBehind = UINT64_MAX;
  Block* make_block();
  void keep(Chain& blocks) noexcept;
  void free_spare(size_t num_left) noexcept;
  void trim() noexcept;
  void pop() noexcept;

  Memory& memory_;
  const size_t max_bytes_;
  const size_t block_bytes_;
  const size_t block_keys_;
  std::mutex reading_;
  std::mutex mutex_;
  Chain blocks_, spare_;
  size_t least_spare_ = 0;                   // since the last read
  uint64_t first_ = 0;                       // number of the first note in blocks_
  uint64_t next_ = 0;                        // of the next one
  std::map<std::string, uint64_t> cursors_;  // next note to read, or kBehind
};

}  // namespace monolith
