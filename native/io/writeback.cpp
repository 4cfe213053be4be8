#include "io/writeback.h"

#include <fcntl.h>

namespace monolith {

void start_writeback([[maybe_unused]] int file, [[maybe_unused]] int64_t offset,
                     [[maybe_unused]] int64_t num_bytes) noexcept {
#ifdef SYNC_FILE_RANGE_WRITE
  static_cast<void>(sync_file_range(file, offset, num_bytes, SYNC_FILE_RANGE_WRITE));
#endif
}

}  // namespace monolith
