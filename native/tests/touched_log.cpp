// The touched log on its own: what a cursor gets when the log goes on while it reads.
#include "table/touched_log.h"

#include "check.h"

using namespace monolith;

namespace {

void append(TouchedLog& log, int64_t first, size_t n) {
  TouchedLog::Segments segments(1);
  segments.front().keys.reserve(n);
  for (size_t i = 0; i < n; ++i) segments.front().keys.push(first + static_cast<int64_t>(i));
  log.append(segments);
  CHECK(segments.empty());
}

bool start(TouchedLog& log, const char* cursor) {
  const TouchedLog::Range range = log.begin_read(cursor);
  log.end_read(cursor, range);
  return range.is_full;
}

std::vector<int64_t> read(TouchedLog& log, const char* cursor) {
  std::vector<int64_t> keys;
  const TouchedLog::Range range = log.begin_read(cursor);
  CHECK(!range.is_full);
  CHECK(log.copy(range, keys));
  log.end_read(cursor, range);
  return keys;
}

void test_reads() {
  TouchedLog log(size_t{1} << 20);
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

// What came during a read is of the next one.
void test_append_during_a_read() {
  TouchedLog log(size_t{1} << 20);
  start(log, "a");
  append(log, 1, 1);
  const TouchedLog::Range range = log.begin_read("a");
  append(log, 2, 1);
  std::vector<int64_t> keys;
  CHECK(log.copy(range, keys));
  CHECK((keys == std::vector<int64_t>{1}));
  log.end_read("a", range);
  CHECK((read(log, "a") == std::vector<int64_t>{2}));
}

void test_forget_during_a_read() {
  TouchedLog log(size_t{1} << 20);
  start(log, "a");
  append(log, 1, 1);
  const TouchedLog::Range range = log.begin_read("a");
  log.forget();
  log.end_read("a", range);
  CHECK(log.begin_read("a").is_full);
}

void test_bound() {
  TouchedLog log(4000);
  start(log, "a");
  append(log, 1, 100);
  const TouchedLog::Range range = log.begin_read("a");
  append(log, 1000, 450);  // drops what is being read
  std::vector<int64_t> keys;
  CHECK(!log.copy(range, keys));
  log.end_read("a", range);
  CHECK(read(log, "a").size() == 450);
  append(log, 1, 10000);  // drops itself
  CHECK(log.begin_read("a").is_full);
  CHECK(log.bytes() == 0);
}

void test_drop() {
  TouchedLog log(4000);
  start(log, "a");
  append(log, 1, 10);
  CHECK(log.drop("a"));
  CHECK(!log.drop("a"));
  CHECK(!log.is_on() && log.bytes() == 0 && log.cursors().empty());
}

}  // namespace

int main() {
  test_reads();
  test_append_during_a_read();
  test_forget_during_a_read();
  test_bound();
  test_drop();
  std::printf("touched_log: ok\n");
}
