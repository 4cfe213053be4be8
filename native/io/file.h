// Writes and reads the files of a save: whole blocks bypass the page cache if the file system
// supports it (O_DIRECT). A save is read long after it is written, if ever; the page cache would
// only copy its bytes once more, and evict pages that other files need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <vector>

namespace monolith {

// A system error of a file; the code is an errno.
struct FileError : std::system_error {
  using std::system_error::system_error;
};

// Pools memory blocks for files that are written concurrently, because the first touch of fresh
// memory is slow. Thread-safe. Owns the free blocks.
class Blocks {
 public:
  static constexpr size_t kBytes = size_t{1} << 20;  // size of a block
  struct Free {
    void operator()(char* memory) const noexcept;
  };
  using Memory = std::unique_ptr<char, Free>;

  Memory allocate();
  void free(Memory block);

 private:
  std::mutex mutex_;
  std::vector<Memory> free_;
};

// Writes a new file from start to end. A separate thread writes full blocks while the caller fills
// the next block. For one thread at a time. Borrows the pool of blocks.
class FileWriter {
 public:
  // `file` is a descriptor, open for writing. The writer duplicates the descriptor, so the caller
  // may close `file` at any time. Throws FileError.
  FileWriter(int file, Blocks& blocks);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Appends `n` bytes. Throws FileError if this or an earlier write failed, and after finish().
  void write(const char* data, size_t n);

  // Writes the remaining bytes and waits until all bytes are written. The caller syncs the file.
  // Throws like write().
  void finish();

  uint32_t crc32c() const noexcept { return crc32c_; }  // checksum of all bytes of write()

 private:
  class Thread;

  const int file_;
  Blocks& blocks_;
  Blocks::Memory block_;  // the block that is being filled
  size_t filled_ = 0;     // bytes in block_
  size_t offset_ = 0;     // offset of block_ in the file
  uint32_t crc32c_ = 0;
  bool is_finished_ = false;
  std::unique_ptr<Thread> thread_;
};

struct FileRead {
  size_t num_bytes;  // less than `n` if the file ends earlier
  uint32_t crc32c;
};

// Reads `n` bytes from the start of a file. The read bypasses the page cache if the memory begins
// at a page, unless the file is cached already or `is_read_again`. Throws FileError.
FileRead read_file(int file, char* memory, size_t n, bool is_read_again = false);

}  // namespace monolith
