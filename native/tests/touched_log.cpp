// Tests the touched log alone: what a cursor reads while the log grows.
#include "table/touched_log.h"

#include "check.h"

using namespace monolith;

namespace {

void append(TouchedLog& log, int64_t first, size_t n) {
  TouchedLog::Room room(log, n, 1);
  TouchedLog::Notes notes(room);
  CHECK(notes.is_on());
  for (size_t i = 0; i < n; ++i) notes.note(first + static_cast<int64_t>(i));
}

// Makes a read; whether it is full.
bool start(TouchedLog& log, const char* cursor) {
  std::vector<int64_t> keys;
  TouchedLog::Read read(log, cursor);
  read.finish();
  return !read.copy(keys);
}

std::vector<int64_t> copy(const TouchedLog::Read& read) {
  std::vector<int64_t> keys;
  CHECK(read.copy(keys));
  return keys;
}

std::vector<int64_t> read(TouchedLog& log, const char* cursor) {
  TouchedLog::Read read(log, cursor);
  read.finish();
  return copy(read);
}

void test_reads() {
  Memory memory;
  TouchedLog log(memory, size_t{1} << 20);
  CHECK(!log.is_on());
  CHECK(start(log, "a"));
  CHECK(log.is_on());
  append(log, 1, 2);
  CHECK(start(log, "b"));
  append(log, 5, 1);
  CHECK((read(log, "a") == std::vector<int64_t>{1, 2, 5}));
  CHECK((read(log, "b") == std::vector<int64_t>{5}));
  CHECK(read(log, "a").empty());
  CHECK(log.bytes() == 0);  // both have read everything
}

// What came during a read is of the next one, which may begin and end before the first one ends.
void test_append_during_a_read() {
  Memory memory;
  TouchedLog log(memory, size_t{1} << 20);
  start(log, "a");
  append(log, 1, 1);
  TouchedLog::Read first(log, "a");
  append(log, 2, 1);
  CHECK((read(log, "a") == std::vector<int64_t>{2}));
  CHECK((copy(first) == std::vector<int64_t>{1}));
  first.finish();
}

// The notes of a read stay, also when all cursors are past them or dropped, until its release.
void test_notes_of_a_read_stay() {
  Memory memory;
  TouchedLog log(memory, size_t{1} << 20);
  start(log, "a");
  append(log, 1, 3);
  TouchedLog::Read first(log, "a");
  CHECK(read(log, "a").empty() && log.bytes() > 0);
  CHECK(log.drop("a") && log.bytes() > 0);
  CHECK((copy(first) == std::vector<int64_t>{1, 2, 3}));
  first.release();
  CHECK(log.bytes() == 0 && memory.held_bytes() == 0);
}

// A read that ends before finish() makes the next one full.
void test_unfinished_reads() {
  Memory memory;
  TouchedLog log(memory, size_t{1} << 20);
  start(log, "a");
  append(log, 1, 1);
  {
    const TouchedLog::Read first(log, "a");
  }
  append(log, 2, 1);
  CHECK(log.bytes() == 0 || log.bytes() == memory.held_bytes());
  CHECK(start(log, "a"));
  CHECK(!start(log, "a"));
  {
    const TouchedLog::Read first(log, "a");
  }
  CHECK(start(log, "a"));
}

// The name of a dropped cursor may return: the new cursor is another one.
void test_an_unfinished_read_of_a_dropped_cursor() {
  Memory memory;
  TouchedLog log(memory, size_t{1} << 20);
  start(log, "a");
  append(log, 1, 1);
  {
    const TouchedLog::Read first(log, "a");
    CHECK(log.drop("a"));
  }
  CHECK(log.cursors().empty() && !log.is_on());
  start(log, "a");
  {
    const TouchedLog::Read first(log, "a");
    CHECK(log.drop("a") && start(log, "a"));
  }
  append(log, 7, 1);
  CHECK((read(log, "a") == std::vector<int64_t>{7}));
}

void test_forget_during_a_read() {
  Memory memory;
  TouchedLog log(memory, size_t{1} << 20);
  start(log, "a");
  append(log, 1, 1);
  {
    TouchedLog::Read first(log, "a");
    log.forget();
    first.finish();
    std::vector<int64_t> keys;
    CHECK(!first.copy(keys));
  }
  CHECK(start(log, "a"));
}

void test_bound() {
  Memory memory;
  TouchedLog log(memory, 4000);
  start(log, "a");
  append(log, 1, 100);
  {
    TouchedLog::Read first(log, "a");
    append(log, 1000, 400);  // drops what is being read
    std::vector<int64_t> keys;
    CHECK(!first.copy(keys));
    first.finish();
  }
  CHECK(read(log, "a").size() == 400);
  append(log, 1, 10000);  // drops most of itself
  CHECK(start(log, "a"));
  CHECK(log.bytes() + log.spare_bytes() <= 4000);
}

void test_drop() {
  Memory memory;
  TouchedLog log(memory, 4000);
  start(log, "a");
  append(log, 1, 10);
  CHECK(log.drop("a"));
  CHECK(!log.drop("a"));
  CHECK(!log.is_on() && log.bytes() == 0 && log.cursors().empty());
}

// Blocks that were read are reused; blocks unused between two reads are freed.
void test_reuse() {
  Memory memory;
  TouchedLog log(memory, size_t{1} << 20);
  start(log, "a");
  append(log, 1, 50000);
  CHECK(log.bytes() > 0 && memory.held_bytes() == log.bytes() + log.spare_bytes());
  read(log, "a");
  const size_t held = memory.held_bytes();
  CHECK(log.bytes() == 0 && log.spare_bytes() == held && held >= 400000);
  append(log, 1, 40000);
  CHECK(memory.held_bytes() == held);
  append(log, 1, 40000);
  CHECK(memory.held_bytes() <= size_t{1} << 20);
  read(log, "a");
  read(log, "a");
  CHECK(memory.held_bytes() == 0);
  append(log, 1, 50000);
  CHECK(log.drop("a") && memory.held_bytes() == 0);
}

// A call without memory for its notes fails before its start, and notes nothing.
void test_no_memory() {
  Memory memory;
  TouchedLog log(memory, size_t{1} << 20);
  start(log, "a");
  memory.set_limit(100000);
  bool has_failed = false;
  try {
    append(log, 1, 50000);
  } catch (const OutOfMemory&) {
    has_failed = true;
  }
  CHECK(has_failed && read(log, "a").empty() && memory.held_bytes() <= 100000);
  append(log, 1, 1000);
  CHECK(read(log, "a").size() == 1000);
}

}  // namespace

int main() {
  test_reads();
  test_append_during_a_read();
  test_notes_of_a_read_stay();
  test_unfinished_reads();
  test_an_unfinished_read_of_a_dropped_cursor();
  test_forget_during_a_read();
  test_bound();
  test_drop();
  test_reuse();
  test_no_memory();
  std::printf("touched_log: ok\n");
}
