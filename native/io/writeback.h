// Writing to disk ahead of the moment when somebody waits for it.
#pragma once

#include <cstdint>

namespace monolith {

// Lets the disk begin with a part of an open file that was written, and does not wait for it. A
// hint: what goes wrong there is told by fsync.
void start_writeback(int file, int64_t offset, int64_t num_bytes) noexcept;

}  // namespace monolith
