#include "io/frames.h"

#include "io/crc32c.h"

namespace monolith {

namespace {

constexpr uint64_t kOverwritten = 0xfefefefe;
constexpr uint32_t kMaskDelta = 0xa282ead8;
constexpr size_t kWord = 8, kCrc = 4;

// Parses the steps of one frame. A step returns false when the frame is decided; `frame` then has
// the result.
struct Steps {
  const uint8_t* data;
  size_t size;
  const FrameOptions& options;
  size_t at = 0;
  Frame frame{};

  bool has(size_t more) {
    if (size - at >= more) return true;
    frame.state = Frame::State::kIncomplete;
    frame.needed = at + more;
    return false;
  }
  bool word(uint64_t& value) {
    if (!has(kWord)) return false;
    value = load<uint64_t>(data + at);
    at += kWord;
    return true;
  }
  bool broken(Fault fault, uint64_t got) {
    frame.state = Frame::State::kBroken;
    frame.fault = fault;
    frame.at = at - kWord;
    frame.got = got;
    return false;
  }
  bool length(uint64_t& value) {
    if (!word(value)) return false;
    if (value == kOverwritten) return broken(Fault::kMark, value);
    return value <= options.max_bytes || broken(Fault::kRecordLength, value);
  }
  bool record(uint64_t length) {
    if (!has(length)) return false;
    frame.state = Frame::State::kRecord;
    frame.record = {data + at, data + at + length};
    at += length;
    return true;
  }

  bool lagrangex() {
    uint64_t header;
    if (!word(header)) return false;
    const uint32_t type = header & 0xff;
    if (type != 0 && type != options.record_type) {
      frame.fault = Fault::kRecordType;
      frame.got = type;
    }
    frame.data_source_key = static_cast<uint32_t>(header) & ~uint32_t{0xff};
    return true;
  }
  bool kafka() {
    uint64_t sort_id = 0, ignored;
    if (options.kafka_dump_prefix) {
      if (!word(sort_id)) return false;
      if (sort_id == 0 && !word(ignored)) return false;
    }
    if (options.has_sort_id) {
      if (sort_id == 0 && !word(sort_id)) return false;
      if (sort_id > options.max_bytes) return broken(Fault::kRecordLength, sort_id);
      if (!has(sort_id)) return false;
      at += sort_id;
    }
    return !options.kafka_dump || word(ignored);
  }
  void framed() {
    uint64_t bytes;
    if (!(options.lagrangex_header ? lagrangex() : kafka())) return;
    if (length(bytes) && record(bytes)) frame.size = at;
  }

  void tfrecord() {
    uint64_t bytes;
    if (!has(kWord + kCrc)) return;
    const uint32_t crc = load<uint32_t>(data + kWord);
    bytes = load<uint64_t>(data);
    at = kWord;
    if (options.checks_crc && masked_crc32c(data, kWord) != crc) {
      broken(Fault::kLengthChecksum, crc);
      return;
    }
    if (bytes > options.max_bytes) {
      broken(Fault::kRecordLength, bytes);
      return;
    }
    at += kCrc;
    if (!has(bytes + kCrc)) return;
    record(bytes);
    const uint32_t expected = load<uint32_t>(data + at);
    if (options.checks_crc && masked_crc32c(frame.record.at, bytes) != expected) {
      frame.fault = Fault::kChecksum;
      frame.at = at;
      frame.got = expected;
    }
    at += kCrc;
    frame.size = at;
  }
};

}  // namespace

uint32_t masked_crc32c(const void* data, size_t n) noexcept {
  const uint32_t crc = crc32c(data, n);
  return ((crc >> 15) | (crc << 17)) + kMaskDelta;
}

Frame read_frame(const uint8_t* data, size_t size, const FrameOptions& options) noexcept {
  Steps steps{data, size, options};
  if (options.is_tfrecord) {
    steps.tfrecord();
  } else {
    steps.framed();
  }
  return steps.frame;
}

}  // namespace monolith
