// Finds the records of a stream: an optional header, a length, and the bytes of the record.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/wire.h"

namespace monolith {

struct FrameOptions {
  bool is_tfrecord = false;  // length, its checksum, bytes, their checksum; ignores other options
  bool lagrangex_header = false;
  bool kafka_dump_prefix = false;
  bool has_sort_id = false;
  bool kafka_dump = false;
  bool checks_crc = true;
  uint32_t record_type = 0;  // expected in a lagrangex header; 0 in the header matches every type
  size_t max_bytes = size_t{1} << 27;  // limit of a record, or of a sort id
};

struct Frame {
  enum class State : uint8_t {
    kRecord,      // complete; `fault` says whether its bytes can be trusted
    kIncomplete,  // `needed` bytes from the start of the frame are required to continue
    kBroken,      // see `fault`; the start of the next frame is unknown
  };
  State state;
  Fault fault = Fault::kNone;
  size_t size = 0;  // size of the whole frame
  Wire record;
  uint32_t data_source_key = 0;
  size_t needed = 0;
  size_t at = 0;  // offset of a fault from the start of the frame
  uint64_t got = 0;
};

// Returns the frame at the start of the data, which is borrowed.
Frame read_frame(const uint8_t* data, size_t size, const FrameOptions& options) noexcept;

// Returns a checksum as TFRecord files store it.
uint32_t masked_crc32c(const void* data, size_t n) noexcept;

}  // namespace monolith
