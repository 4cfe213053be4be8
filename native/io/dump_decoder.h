// Decodes rows of table dumps of the reference system into columns: TFRecord frames, each with one
// protobuf message.
//
//   message EntryDump {            message OptimizerDump { repeated SingleOptimizerDump dump = 1; }
//     sfixed64 id = 1;             message SingleOptimizerDump {
//     repeated float num = 2;        oneof { Adagrad adagrad = 1; Sgd sgd = 2; ... }
//     OptimizerDump opt = 3;       }
//     int64 last_update_ts_sec = 4;  // Adagrad { repeated float norm = 1; } and so on
//   }
//
// Numbers are not packed. `num` has the weights of all segments in order, `opt.dump` an element for
// each segment whose optimizer writes one, and the fields of the element are the optimizer's state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/wire.h"

namespace monolith {

// A column of optimizer state; its field number is 1 + its place in the segment.
struct DumpField {
  uint32_t size;            // numbers per row
  bool is_integer = false;  // one varint instead of floats
};

struct DumpSegment {
  uint32_t dim;
  uint32_t kind;  // field number in SingleOptimizerDump; 0 if the optimizer writes no element
  std::vector<DumpField> state;
};

struct DumpOptions {
  size_t max_bytes = size_t{1} << 24;  // limit of a record
  // Whether segments are known. Otherwise only keys and times are decoded, of rows of any layout.
  bool has_segments = true;
  bool with_state = true;  // otherwise `opt` is skipped, and there are no columns of state
  bool skips_non_finite = false;
};

enum class DumpFault : uint8_t {
  kNone,
  kMessage,         // no message of protobuf
  kWireType,        // a known field of another wire type
  kRecordLength,    // a length beyond the limit
  kLengthChecksum,  // the checksum of the length
  kChecksum,        // the checksum of the message
  kId,              // a row without an id
  kDim,             // another number of weights
  kKind,            // a dump of another optimizer in a segment
  kElements,        // another number of optimizer dumps
  kState,           // another number of values in a field of state
  kTime,            // a time beyond 32 bits, or below 0
  kNonFinite,       // NaN or Inf in weights or state
};

// Returns the fault in words with underscores, such as "length_checksum".
const char* name_of(DumpFault fault) noexcept;

struct DumpError {
  DumpFault fault = DumpFault::kNone;
  size_t at = 0;  // offset of the record in the data
  uint32_t segment = 0, field = 0;
  int64_t expected = 0, got = 0;
};

struct DumpBlock {
  size_t num_records = 0;  // complete records that were consumed
  size_t num_rows = 0;     // rows in the columns
  size_t num_non_finite = 0;
  size_t consumed = 0;  // bytes
  size_t needed = 0;    // bytes that the next record requires at least, if more than there are
  DumpError error;      // of the record after the consumed ones
};

// Immutable after construction; calls on any threads may run concurrently.
class DumpDecoder {
 public:
  DumpDecoder(std::vector<DumpSegment> segments, const DumpOptions& options);

  // Decodes the complete records at the start of the data, at most `most`, into arrays with room
  // for `most` rows: keys and times (most,), each column (most, size). A column is at the address
  // of its first number: float, or int64_t if is_integer.
  DumpBlock decode(const uint8_t* data, size_t size, size_t most, int64_t* keys, int64_t* times,
                   void* const* columns) const noexcept;

 private:
  std::vector<DumpSegment> segments_;
  DumpOptions options_;
};

}  // namespace monolith
