#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/vfs.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/crc32c.h"

namespace monolith {

namespace {

constexpr size_t kPage = 4096;              // alignment of memory, offset and size for O_DIRECT
constexpr size_t kCopy = size_t{1} << 14;   // bytes read twice while in the first-level cache
constexpr size_t kMaxWaiting = 10;          // blocks queued after the block being written
constexpr size_t kPiece = size_t{1} << 21;  // bytes read at once past the cache
constexpr size_t kCachePiece = size_t{1} << 19;  // bytes read at once through it: half of L2

[[noreturn]] void fail() { throw FileError(errno, std::generic_category()); }

// Whether the file is on a network or FUSE file system. There a write past the cache waits for a
// round trip, while the page cache makes many round trips concurrently.
bool is_far([[maybe_unused]] int file) noexcept {
#ifdef __linux__
  constexpr int64_t kNfs = 0x6969, kFuse = 0x65735546, kCifs = 0xff534d42, kSmb2 = 0xfe534d42,
                    kCeph = 0x00c36400, k9p = 0x01021997;
  struct statfs info;
  if (fstatfs(file, &info) != 0) return true;
  const auto type = static_cast<uint32_t>(info.f_type);
  for (const int64_t far : {kNfs, kFuse, kCifs, kSmb2, kCeph, k9p}) {
    if (type == far) return true;
  }
#endif
  return false;
}

// Sets whether the file is read and written past the cache; returns whether that succeeded.
bool set_direct([[maybe_unused]] int file, [[maybe_unused]] bool is_direct) noexcept {
#ifdef O_DIRECT
  const int flags = fcntl(file, F_GETFL);
  if (flags == -1) return false;
  return fcntl(file, F_SETFL, is_direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
#else
  return !is_direct;
#endif
}

void write_all(int file, const char* data, size_t n, size_t offset, bool& is_direct) {
  while (n > 0) {
    const ssize_t count = pwrite(file, data, n, static_cast<off_t>(offset));
    if (count >= 0) {
      data += count, offset += static_cast<size_t>(count), n -= static_cast<size_t>(count);
      if (n == 0) return;
    } else if (errno != EINTR && !(errno == EINVAL && is_direct)) {
      fail();
    }
    // The rest of a block may begin at an offset that O_DIRECT does not support, or the file system
    // may not support O_DIRECT.
    if (is_direct && !set_direct(file, false)) fail();
    is_direct = false;
  }
}

// Starts the write-back of cached bytes before a sync waits for them.
void start_writeback([[maybe_unused]] int file, [[maybe_unused]] size_t offset,
                     [[maybe_unused]] size_t n) noexcept {
#ifdef SYNC_FILE_RANGE_WRITE
  static_cast<void>(sync_file_range(file, static_cast<off_t>(offset), static_cast<off_t>(n),
                                    SYNC_FILE_RANGE_WRITE));
#endif
}

// Whether more than half of the first `n` bytes of a file are in the page cache. For files that the
// user neither owns nor may write, the system reports all bytes as cached.
bool is_cached(int file, size_t n) {
  void* memory = mmap(nullptr, n, PROT_READ, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return true;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((n + page - 1) / page);
  const bool is_known = mincore(memory, n, pages.data()) == 0;
  munmap(memory, n);
  const auto num_cached = std::count_if(pages.begin(), pages.end(), [](auto p) { return p & 1; });
  return !is_known || 2 * static_cast<size_t>(num_cached) > pages.size();
}

// Reads at most `n` further bytes. Returns their number, 0 at the end of the file, or -1, like
// pread.
ssize_t read_piece(int file, char* memory, size_t n, FileRead& read) {
  const ssize_t count = pread(file, memory + read.num_bytes, n, static_cast<off_t>(read.num_bytes));
  if (count > 0) {
    read.crc32c = crc32c(memory + read.num_bytes, static_cast<size_t>(count), read.crc32c);
    read.num_bytes += static_cast<size_t>(count);
  }
  return count;
}

}  // namespace

// Writes blocks in the order of put(). A forked child has the object but not the thread, so
// ~FileWriter() leaves the object alone there (is_here()).
class FileWriter::Thread {
 public:
  Thread(int file, Blocks& blocks)
      : file_(file),
        blocks_(blocks),
        is_direct_(!is_far(file) && set_direct(file, true)),
        process_(getpid()),
        thread_([this] { work(); }) {}
  bool is_here() const noexcept { return process_ == getpid(); }

  // Queues a full block; waits for room in the queue.
  void put(Blocks::Memory block, size_t offset) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return waiting_.size() < kMaxWaiting || error_; });
    if (error_) std::rethrow_exception(error_);
    waiting_.push_back({std::move(block), offset});
    lock.unlock();
    changed_.notify_all();
  }

  // Waits until all blocks are written; later writes go through the cache.
  void end() {
    stop(false);
    if (error_) std::rethrow_exception(error_);
    if (is_direct_ && !set_direct(file_, false)) fail();
  }

  // Ends the thread, after writing the queued blocks unless `drop`.
  void stop(bool drop) {
    {
      const std::lock_guard lock(mutex_);
      if (drop) waiting_.clear();
      is_ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Block {
    Blocks::Memory memory;
    size_t offset;
  };

  void work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !waiting_.empty() || is_ending_; });
      if (waiting_.empty() || error_) return;
      Block block = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      std::exception_ptr error;
      try {
        write_all(file_, block.memory.get(), Blocks::kBytes, block.offset, is_direct_);
        if (!is_direct_) start_writeback(file_, block.offset, Blocks::kBytes);
        blocks_.free(std::move(block.memory));
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      error_ = error;
      changed_.notify_all();
    }
  }

  const int file_;
  Blocks& blocks_;
  bool is_direct_;  // used by the thread only, while it runs
  const pid_t process_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Block> waiting_;
  std::exception_ptr error_;
  bool is_ending_ = false;
  std::thread thread_;  // last member, because the thread uses the others
};

void Blocks::Free::operator()(char* memory) const noexcept {
  ::operator delete(memory, std::align_val_t{kPage});
}

Blocks::Memory Blocks::allocate() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      Memory block = std::move(free_.back());
      free_.pop_back();
      return block;
    }
  }
  return Memory(static_cast<char*>(::operator new(kBytes, std::align_val_t{kPage})));
}

void Blocks::free(Memory block) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(block));
}

FileWriter::FileWriter(int file, Blocks& blocks)
    : file_(fcntl(file, F_DUPFD_CLOEXEC, 0)), blocks_(blocks) {
  if (file_ < 0) fail();
}

FileWriter::~FileWriter() {
  if (thread_ && thread_->is_here()) {
    thread_->stop(true);
  } else {
    static_cast<void>(thread_.release());
  }
  close(file_);
}

void FileWriter::write(const char* data, size_t n) {
  if (is_finished_) throw FileError(EBADF, std::generic_category());
  while (n > 0) {
    if (!block_) block_ = blocks_.allocate();
    const size_t part = std::min({n, Blocks::kBytes - filled_, kCopy});
    crc32c_ = monolith::crc32c(data, part, crc32c_);
    std::memcpy(block_.get() + filled_, data, part);
    data += part, filled_ += part, n -= part;
    if (filled_ < Blocks::kBytes) continue;
    if (!thread_) thread_ = std::make_unique<Thread>(file_, blocks_);
    thread_->put(std::move(block_), std::exchange(offset_, offset_ + Blocks::kBytes));
    filled_ = 0;
  }
}

void FileWriter::finish() {
  is_finished_ = true;
  if (thread_) thread_->end();
  bool is_direct = false;
  if (filled_ > 0) write_all(file_, block_.get(), filled_, offset_, is_direct);
  if (block_) blocks_.free(std::move(block_));
  filled_ = 0;
}

FileRead read_file(int file, char* memory, size_t n, bool is_read_again) {
  FileRead read{0, 0};
  const bool is_page = reinterpret_cast<uintptr_t>(memory) % kPage == 0;
  const bool is_large = n >= kPiece;
  if (is_large && !is_read_again && is_page && !is_far(file) && !is_cached(file, n) &&
      set_direct(file, true)) {
    const size_t whole = n - n % kPage;
    while (read.num_bytes < whole && read.num_bytes % kPage == 0 &&
           read_piece(file, memory, std::min(kPiece, whole - read.num_bytes), read) > 0) {
    }
    if (!set_direct(file, false)) fail();
  } else if (is_large) {
    static_cast<void>(posix_fadvise(file, 0, static_cast<off_t>(n), POSIX_FADV_WILLNEED));
  }
  // Reads the rest: a part of a page, or all bytes if the file cannot be read past the cache.
  while (read.num_bytes < n) {
    const ssize_t count = read_piece(file, memory, std::min(kCachePiece, n - read.num_bytes), read);
    if (count == 0) break;
    if (count < 0 && errno != EINTR) fail();
  }
  return read;
}

}  // namespace monolith
