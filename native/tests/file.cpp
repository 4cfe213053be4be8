// Files written in blocks and read back: every length, past the cache and through it, and disks
// that fail.
#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <random>
#include <vector>

#include "check.h"
#include "io/crc32c.h"

using namespace monolith;

namespace {

// Told by the tests of disks that behave oddly; -1: not at all.
std::atomic<ssize_t> most_bytes{-1};    // of a transfer
std::atomic<int> refused_transfers{0};  // of files that are O_DIRECT: EINVAL

ssize_t oddly(long number, int file, void* memory, size_t n, off_t offset) {
  if ((fcntl(file, F_GETFL) & O_DIRECT) && refused_transfers > 0) {
    --refused_transfers;
    errno = EINVAL;
    return -1;
  }
  if (most_bytes >= 0) n = std::min(n, static_cast<size_t>(most_bytes));
  return syscall(number, file, memory, n, offset);
}

}  // namespace

// Replace the functions of the C library.
extern "C" ssize_t pwrite(int file, const void* memory, size_t n, off_t offset) {
  return oddly(SYS_pwrite64, file, const_cast<void*>(memory), n, offset);
}
extern "C" ssize_t pread(int file, void* memory, size_t n, off_t offset) {
  return oddly(SYS_pread64, file, memory, n, offset);
}

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kBlock = Blocks::kBytes;

// A new, empty file in the working directory of the test, removed when closed.
class NewFile {
 public:
  NewFile() {
    CHECK(number_ >= 0);
    CHECK(unlink(name_) == 0);
  }
  ~NewFile() { close(number_); }
  int number() const { return number_; }
  size_t size() const {
    struct stat info;
    CHECK(fstat(number_, &info) == 0);
    return static_cast<size_t>(info.st_size);
  }
  // Whether reads and writes of the file may bypass the cache.
  bool can_be_direct() const {
    const int flags = fcntl(number_, F_GETFL);
    return fcntl(number_, F_SETFL, flags | O_DIRECT) == 0 && fcntl(number_, F_SETFL, flags) == 0;
  }
  bool is_direct() const { return fcntl(number_, F_GETFL) & O_DIRECT; }
  void drop_from_cache() const {
    CHECK(fsync(number_) == 0);
    CHECK(posix_fadvise(number_, 0, 0, POSIX_FADV_DONTNEED) == 0);
  }
  size_t num_cached_pages() const {
    const size_t n = size();
    void* memory = mmap(nullptr, n, PROT_READ, MAP_SHARED, number_, 0);
    CHECK(memory != MAP_FAILED);
    std::vector<unsigned char> pages((n + kPage - 1) / kPage);
    CHECK(mincore(memory, n, pages.data()) == 0);
    munmap(memory, n);
    return static_cast<size_t>(
        std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
  }

 private:
  char name_[17] = "file-test-XXXXXX";
  const int number_ = mkstemp(name_);
};

std::vector<char> random_bytes(size_t n) {
  std::mt19937_64 random(n + 1);
  std::vector<char> bytes(n);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Memory whose start is `shift` bytes after the start of a page.
class Pages {
 public:
  Pages(size_t n, size_t shift)
      : memory_(static_cast<char*>(std::aligned_alloc(kPage, (n / kPage + 2) * kPage))),
        shift_(shift) {}
  ~Pages() { std::free(memory_); }
  char* data() const { return memory_ + shift_; }

 private:
  char* const memory_;
  const size_t shift_;
};

void write_in_parts(const NewFile& file, Blocks& blocks, const std::vector<char>& bytes,
                    size_t part) {
  FileWriter writer(file.number(), blocks);
  for (size_t done = 0; done < bytes.size(); done += part) {
    writer.write(bytes.data() + done, std::min(part, bytes.size() - done));
  }
  writer.finish();
  CHECK(writer.crc32c() == crc32c(bytes.data(), bytes.size()));
}

void check_read(const NewFile& file, const std::vector<char>& bytes, size_t shift) {
  Pages memory(bytes.size() + 1, shift);
  memory.data()[bytes.size()] = 77;
  const FileRead read = read_file(file.number(), memory.data(), bytes.size());
  CHECK(read.num_bytes == bytes.size());
  CHECK(read.crc32c == crc32c(bytes.data(), bytes.size()));
  CHECK(std::equal(bytes.begin(), bytes.end(), memory.data()));
  CHECK(memory.data()[bytes.size()] == 77);
  CHECK(!file.is_direct());
}

void check_every_length_comes_back() {
  Blocks blocks;
  for (const size_t n : {size_t{0}, size_t{1}, kPage, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock,
                         2 * kBlock + kPage, 5 * kBlock + 4097, 30 * kBlock}) {
    const std::vector<char> bytes = random_bytes(n);
    for (const size_t part : {kBlock / 3 + 5, 3 * kBlock}) {
      NewFile file;
      write_in_parts(file, blocks, bytes, part);
      CHECK(file.size() == n);
      CHECK(!file.is_direct());
      if (n == 0) continue;
      check_read(file, bytes, 0);  // some of it is in the cache
      for (const size_t shift : {0, 64}) {
        file.drop_from_cache();
        check_read(file, bytes, shift);
      }
      check_read(file, bytes, 0);  // all of it is
    }
  }
}

void check_whole_blocks_leave_no_pages_in_the_cache() {
  Blocks blocks;
  NewFile file;
  if (!file.can_be_direct()) return;
  const std::vector<char> bytes = random_bytes(8 * kBlock + 10 * kPage);
  write_in_parts(file, blocks, bytes, kBlock);
  CHECK(file.num_cached_pages() <= 10);
  file.drop_from_cache();
  check_read(file, bytes, 0);
  CHECK(file.num_cached_pages() == 0);
  check_read(file, bytes, 64);
  CHECK(file.num_cached_pages() > 1000);
}

void check_a_file_that_ends_early() {
  NewFile file;
  const std::vector<char> bytes = random_bytes(3 * kBlock + 100);
  Blocks blocks;
  write_in_parts(file, blocks, bytes, kBlock);
  for (const bool is_cached : {false, true}) {
    if (!is_cached) file.drop_from_cache();
    Pages memory(9 * kBlock, 0);
    const FileRead read = read_file(file.number(), memory.data(), 9 * kBlock);
    CHECK(read.num_bytes == bytes.size());
    CHECK(read.crc32c == crc32c(bytes.data(), bytes.size()));
    CHECK(!file.is_direct());
  }
}

std::optional<int> error_of(const auto& call) {
  try {
    call();
  } catch (const FileError& error) {
    return error.code().value();
  }
  return std::nullopt;
}

// A limit on the size of files stands for a full disk: a write before it is cut short.
void check_a_full_disk() {
  const std::vector<char> bytes = random_bytes(20 * kBlock);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  CHECK(getrlimit(RLIMIT_FSIZE, &old_limit) == 0);
  for (const size_t limit : {size_t{0}, size_t{100}, kBlock, 2 * kBlock + 100}) {
    for (const size_t n : {size_t{200}, 3 * kBlock, bytes.size()}) {
      if (n <= limit) continue;
      NewFile file;
      Blocks blocks;
      FileWriter writer(file.number(), blocks);
      const rlimit low{limit, old_limit.rlim_max};
      CHECK(setrlimit(RLIMIT_FSIZE, &low) == 0);
      const auto told = error_of([&] {
        writer.write(bytes.data(), n);
        writer.finish();
      });
      CHECK(told == EFBIG);
      CHECK(error_of([&] { writer.finish(); }) == EFBIG);  // it stays a file that failed
      CHECK(setrlimit(RLIMIT_FSIZE, &old_limit) == 0);
      CHECK(file.size() == limit);
    }
  }
}

void check_files_that_cannot_be_used() {
  Blocks blocks;
  CHECK(error_of([&] { FileWriter(-1, blocks); }) == EBADF);
  const int readable = open("/dev/null", O_RDONLY);
  FileWriter writer(readable, blocks);
  writer.write("x", 1);
  CHECK(error_of([&] { writer.finish(); }) == EBADF);
  close(readable);
  Pages memory(3 * kBlock, 0);
  CHECK(error_of([&] { read_file(-1, memory.data(), 3 * kBlock); }) == EBADF);
}

// Transfers that do less than they were asked to, or none past the cache, are done to the end.
void check_odd_disks() {
  Blocks blocks;
  const std::vector<char> bytes = random_bytes(5 * kBlock + 100);
  for (const ssize_t most : {ssize_t{5000}, ssize_t{kPage}, ssize_t{300'000}}) {
    NewFile file;
    most_bytes = most;
    write_in_parts(file, blocks, bytes, kBlock);
    CHECK(file.size() == bytes.size());
    for (const bool is_read_again : {false, true}) {
      file.drop_from_cache();
      Pages memory(bytes.size(), 0);
      const FileRead read = read_file(file.number(), memory.data(), bytes.size(), is_read_again);
      CHECK(read.num_bytes == bytes.size());
      CHECK(std::equal(bytes.begin(), bytes.end(), memory.data()));
    }
    most_bytes = -1;
    check_read(file, bytes, 0);
  }
  NewFile file;
  if (!file.can_be_direct()) return;
  refused_transfers = 1;
  write_in_parts(file, blocks, bytes, kBlock);
  CHECK(refused_transfers == 0);
  file.drop_from_cache();
  refused_transfers = 1;
  check_read(file, bytes, 0);
  CHECK(refused_transfers == 0);
}

void check_what_is_read_again_stays_in_the_cache() {
  Blocks blocks;
  NewFile file;
  const std::vector<char> bytes = random_bytes(8 * kBlock);
  write_in_parts(file, blocks, bytes, kBlock);
  file.drop_from_cache();
  Pages memory(bytes.size(), 0);
  CHECK(read_file(file.number(), memory.data(), bytes.size(), true).num_bytes == bytes.size());
  CHECK(file.num_cached_pages() == 8 * kBlock / kPage);
}

void check_nothing_is_written_after_the_end() {
  Blocks blocks;
  const std::vector<char> bytes = random_bytes(2 * kBlock);
  for (const size_t n : {size_t{1}, bytes.size()}) {
    NewFile file;
    FileWriter writer(file.number(), blocks);
    writer.write(bytes.data(), n);
    writer.finish();
    CHECK(error_of([&] { writer.write(bytes.data(), bytes.size()); }) == EBADF);
    CHECK(file.size() == n);
  }
}

// Its number may be another file's then.
void check_the_caller_may_close_the_file_first() {
  Blocks blocks;
  const std::vector<char> bytes = random_bytes(9 * kBlock);
  NewFile file;
  const int number = dup(file.number());
  {
    FileWriter writer(number, blocks);
    writer.write(bytes.data(), bytes.size());
    close(number);
    const int other = memfd_create("other", 0);
    CHECK(other == number);
    writer.finish();
    struct stat info;
    CHECK(fstat(other, &info) == 0);
    CHECK(info.st_size == 0);
    close(other);
  }
  check_read(file, bytes, 0);
}

void check_a_writer_may_end_before_its_file() {
  Blocks blocks;
  const std::vector<char> bytes = random_bytes(9 * kBlock);
  for (int i = 0; i < 20; ++i) {
    NewFile file;
    {
      FileWriter writer(file.number(), blocks);
      writer.write(bytes.data(), bytes.size());
    }
    const size_t size = file.size();
    CHECK(size % kBlock == 0);
    CHECK(size <= bytes.size());
    usleep(100);
    CHECK(file.size() == size);  // no thread writes any more
  }
}

// A child has the writers of its parent, but not their threads.
void check_a_forked_child_waits_for_nothing() {
  Blocks blocks;
  NewFile file;
  const std::vector<char> bytes = random_bytes(9 * kBlock);
  auto writer = std::make_optional<FileWriter>(file.number(), blocks);
  writer->write(bytes.data(), bytes.size());
  while (file.size() < bytes.size()) usleep(1000);
  usleep(20'000);  // the thread waits for more
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(10);
    writer.reset();
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  writer->finish();
  CHECK(file.size() == bytes.size());
}

}  // namespace

int main() {
  check_every_length_comes_back();
  check_whole_blocks_leave_no_pages_in_the_cache();
  check_a_file_that_ends_early();
  check_a_full_disk();
  check_files_that_cannot_be_used();
  check_odd_disks();
  check_what_is_read_again_stays_in_the_cache();
  check_nothing_is_written_after_the_end();
  check_the_caller_may_close_the_file_first();
  check_a_writer_may_end_before_its_file();
  check_a_forked_child_waits_for_nothing();
}
