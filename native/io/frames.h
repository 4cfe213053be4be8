// Finds the records of a stream: a header as the options say, a length, the record's bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "io/wire.h"

namespace monolith {

struct FrameOptions {
  bool is_tfrecord = false;  // length, its checksum, bytes, their checksum; no other option counts
  bool lagrangex_header = false;
  bool kafka_dump_prefix = false;
  bool has_sort_id = false;
  bool kafka_dump = false;
  bool checks_crc = true;
  uint32_t record_type = 0;            // of a lagrangex header; 0 in the header fits every type
  size_t max_bytes = size_t{1} << 27;  // of a record, or of a sort id
};

struct Frame {
  enum class State : uint8_t {
    kRecord,      // whole; `fault` says whether its bytes are to be trusted
    kIncomplete,  // `needed` bytes from the begin of the frame would tell more
    kBroken,      // `fault`: where the next frame begins is not known
  };
  State state;
  Fault fault = Fault::kNone;
  size_t size = 0;  // of the whole frame
  Wire record;
  uint32_t data_source_key = 0;
  size_t needed = 0;
  size_t at = 0;  // of a fault, from the begin of the frame
  uint64_t got = 0;
};

// The frame at the begin of the data.
Frame read_frame(const uint8_t* data, size_t size, const FrameOptions& options) noexcept;

// As TFRecord files store it.
uint32_t masked_crc32c(const void* data, size_t n) noexcept;

}  // namespace monolith
