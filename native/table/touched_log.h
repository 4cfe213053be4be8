// Records which keys changed since each cursor last read the log.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ops/fetch.h"
#include "table/memory.h"

namespace monolith {

// Thread-safe. Each writing thread notes the keys that it changed in private blocks, which are
// appended to the log at the end of the call; a key may occur more than once. Blocks are dropped
// when every cursor has read them, or when the log is full; a cursor that misses dropped blocks
// must re-read the whole table. A Read remembers the notes of one read of a cursor, and keeps their
// blocks until they are copied. Dropped blocks are reused, within the same bound, because fresh
// memory costs more than all other work of the log. Borrows the memory.
class TouchedLog {
  struct Block {
    Block* next;
    uint64_t size;  // number of keys, which follow the header
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
  // Preallocated blocks for the notes of one call, so that noting and appending cannot fail. The
  // threads of the call allocate the blocks one by one.
  class Room {
   public:
    // Allocates blocks for `num_keys` notes over all threads; none while the log is off. Throws
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

  // The notes of one thread of the call. For one thread.
  class Notes {
   public:
    explicit Notes(Room& room) noexcept : room_(room), is_on_(room.is_on_) {}
    ~Notes() { room_.log_.append(*this); }
    Notes(const Notes&) = delete;
    Notes& operator=(const Notes&) = delete;

    // Whether the log has cursors. If not, note() must not be called.
    bool is_on() const noexcept { return is_on_; }
    // Notes the key if `is_touched`. The room has a place for the note. There is no branch on
    // `is_touched`, because the processor could not predict it.
    void note(int64_t key, bool is_touched = true) noexcept {
      if (next_ == end_) begin_block();
      // Rows are written between two notes, so the processor does not detect that notes are
      // sequential.
      if (reinterpret_cast<uintptr_t>(next_) % 64 == 0) fetch_line(next_ + kAhead);
      *next_ = key;
      next_ += is_touched;
    }
    // Notes a key beyond the room: a row that is evicted for the budget. Throws OutOfMemory.
    void note_extra(int64_t key);

   private:
    friend class TouchedLog;
    static constexpr size_t kAhead = 64;
    void begin_block() noexcept;
    void end_block() noexcept;

    Room& room_;
    const bool is_on_;
    Chain blocks_;
    int64_t* next_ = nullptr;  // next place in the last block
    int64_t* end_ = nullptr;
    uint64_t num_extra_ = 0;
  };

  TouchedLog(Memory& memory, size_t max_bytes) noexcept;
  ~TouchedLog();

  // Whether there are cursors; without cursors nothing is noted. Changes only while no writer runs.
  bool is_on() const noexcept { return !cursors_.empty(); }
  // Moves the blocks of the notes to the end of the log.
  void append(Notes& notes) noexcept;

  // One read of a cursor: the notes since its previous read. The cursor advances at once, so that
  // further reads may begin before this one ends. Until release(), the notes are dropped only when
  // the log is full. A read that is destroyed before finish() leaves its cursor behind, unless the
  // cursor was dropped. For one thread at a time.
  class Read {
   public:
    // Construct while no writer runs. Creates an unknown cursor.
    Read(TouchedLog& log, const std::string& cursor);
    ~Read();
    Read(const Read&) = delete;
    Read& operator=(const Read&) = delete;

    // Copies the keys of the notes. Returns false if every key may have changed: the cursor was new
    // or left behind, or the log has dropped some of the notes.
    bool copy(std::vector<int64_t>& keys) const;
    // Lets the log drop the notes; copy() may then return false.
    void release() noexcept;
    // Declares that the reader of the cursor knows the keys.
    void finish() noexcept { is_finished_ = true; }

   private:
    TouchedLog& log_;
    const std::string cursor_;
    uint64_t cursor_number_ = 0;
    bool is_full_ = false;
    bool is_released_ = false;
    bool is_finished_ = false;
    uint64_t first_ = 0, last_ = 0;
  };
  // Makes the next read of the cursor full; creates an unknown cursor.
  void leave_behind(const std::string& cursor);

  // Removes the cursor; returns whether it existed. Call drop() while no writer runs.
  bool drop(const std::string& cursor) noexcept;
  std::vector<std::string> cursors();
  // Drops all notes, so that the next read of every cursor is full.
  void forget() noexcept;
  // Bytes of blocks with notes, and of blocks that wait for reuse.
  size_t bytes() noexcept;
  size_t spare_bytes() noexcept;

 private:
  static constexpr uint64_t kBehind = UINT64_MAX;
  struct Cursor {
    uint64_t number;          // of all cursors ever created: a dropped name may return
    uint64_t next = kBehind;  // next note to read, or kBehind
  };
  Cursor& find_or_create(const std::string& cursor);
  Block* make_block();
  void keep(Chain& blocks) noexcept;
  void free_spare(size_t num_left) noexcept;
  void trim() noexcept;
  void pop() noexcept;

  Memory& memory_;
  const size_t max_bytes_;
  const size_t block_bytes_;
  const size_t block_keys_;
  std::mutex mutex_;
  Chain blocks_, spare_;
  size_t least_spare_ = 0;  // minimum since the last read
  uint64_t first_ = 0;      // number of the first note in blocks_
  uint64_t next_ = 0;       // number of the next note
  uint64_t num_created_ = 0;
  std::map<std::string, Cursor> cursors_;
  std::vector<uint64_t> pins_;  // first notes of reads that are not released
};

}  // namespace monolith
