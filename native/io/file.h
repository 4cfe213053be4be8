// Files of a save: whole blocks go past the page cache, where the file system can (O_DIRECT). A
// save is read long after it is written, if ever; the cache would only copy its bytes once more,
// and push out what others need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <system_error>
#include <vector>

namespace monolith {

// What the system said of a file; the code is an errno.
struct FileError : std::system_error {
  using std::system_error::system_error;
};

// Memory of the files that are written together, used again: fresh memory is slow at its first
// touch. Safe from any thread.
class Blocks {
 public:
  static constexpr size_t kBytes = size_t{1} << 20;  // of a block
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

// Writes a new file from its start to its end. Blocks are written by a thread of its own, so that
// the caller makes the next ones meanwhile. Used by one thread at a time.
class FileWriter {
 public:
  // A descriptor, open for writing; it stays the caller's, and may be closed before the writer, who
  // has a copy. Throws FileError.
  FileWriter(int file, Blocks& blocks);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Throws FileError if the disk failed, now or at an earlier block, and after finish().
  void write(const char* data, size_t n);

  // Writes what is left and waits until all of it is written; it is the caller's to sync the file.
  // Throws as `write` does.
  void finish();

  uint32_t crc32c() const noexcept { return crc32c_; }  // of all that was written

 private:
  class Thread;

  const int file_;
  Blocks& blocks_;
  Blocks::Memory block_;  // the one that is being filled
  size_t filled_ = 0;     // bytes of it
  size_t offset_ = 0;     // where in the file it begins
  uint32_t crc32c_ = 0;
  bool is_finished_ = false;
  std::unique_ptr<Thread> thread_;
};

struct FileRead {
  size_t num_bytes;  // fewer than asked for where the file ends
  uint32_t crc32c;
};

// Reads n bytes from the start of a file. Past the page cache, unless the file is there already or
// `is_read_again`, and if the memory begins at a page. Throws FileError.
FileRead read_file(int file, char* memory, size_t n, bool is_read_again = false);

}  // namespace monolith
