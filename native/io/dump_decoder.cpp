#include "io/dump_decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/frames.h"

namespace monolith {

namespace {

constexpr uint32_t kId = 1 << 3 | kFixed64Type, kNum = 2 << 3 | kFixed32Type;
constexpr uint32_t kOpt = 3 << 3 | kBytesType, kTime = 4 << 3 | kVarintType;
constexpr uint32_t kDump = 1 << 3 | kBytesType;
constexpr size_t kFloatBytes = 5;  // tag and number
constexpr uint32_t kExponent = 0x7f800000;

// Reads floats of one field that follow each other, without their first tag, at most `most` >= 1.
// Returns their number, or 0 if the first one is truncated.
size_t take_floats(Wire& wire, uint8_t tag, float* out, size_t most) noexcept {
  if (wire.left() < kFloatBytes - 1) {
    wire.fail(Fault::kTruncated);
    return 0;
  }
  const uint8_t* first = wire.at - 1;
  const size_t n = std::min(most, (wire.left() + 1) / kFloatBytes);
  std::memcpy(out, first + 1, sizeof *out);
  size_t i = 1;
  for (; i < n && first[kFloatBytes * i] == tag; ++i) {
    std::memcpy(out + i, first + kFloatBytes * i + 1, sizeof *out);
  }
  wire.at = first + kFloatBytes * i;
  return i;
}

bool is_finite(const float* numbers, size_t n) noexcept {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, numbers + i, sizeof bits);
    finite &= (bits & kExponent) != kExponent;
  }
  return finite;
}

// Parses one record into one row of the columns. A call that returns false has set `error`.
struct RowParser {
  const std::vector<DumpSegment>& segments;
  const DumpOptions& options;
  void* const* columns;
  size_t row;
  DumpError& error;

  int64_t key = 0, time = 0;
  bool has_key = false, is_finite = true;
  size_t segment = 0, num_weights = 0;   // of the next weight: its segment, its place there
  size_t element = 0, num_elements = 0;  // segment of the next optimizer dump, number of dumps
  size_t column = 0;                     // first column of state of that segment

  bool fail(DumpFault fault, int64_t expected, int64_t got) noexcept {
    error.fault = fault;
    error.expected = expected;
    error.got = got;
    return false;
  }
  bool fail(const Wire& wire) noexcept {
    return fail(wire.fault == Fault::kWireType ? DumpFault::kWireType : DumpFault::kMessage, 0, 0);
  }
  bool fail_wire_type() noexcept { return fail(DumpFault::kWireType, 0, 0); }

  bool parse(Wire wire) noexcept {
    uint32_t tag;
    uint64_t number;
    Wire opt;
    while (!wire.is_done()) {
      if (!wire.tag(tag)) return fail(wire);
      switch (tag) {
        case kNum:
          if (!weights(wire)) return false;
          break;
        case kId:
          if (!wire.fixed(key)) return fail(wire);
          has_key = true;
          break;
        case kTime:
          if (!wire.varint(number)) return fail(wire);
          time = static_cast<int64_t>(number);
          break;
        case kOpt:
          if (!wire.bytes(opt)) return fail(wire);
          if (options.has_segments && options.with_state && !dumps(opt)) return false;
          break;
        default:
          if (tag >> 3 >= 1 && tag >> 3 <= 4) return fail_wire_type();
          if (!wire.skip(tag)) return fail(wire);
      }
    }
    return finish();
  }

  bool finish() noexcept {
    if (!has_key) return fail(DumpFault::kId, 0, 0);
    if (time < 0 || time > UINT32_MAX) return fail(DumpFault::kTime, UINT32_MAX, time);
    if (!options.has_segments) return true;
    if (segment != segments.size()) {
      size_t dim = 0, got = num_weights;
      for (const DumpSegment& each : segments) dim += each.dim;
      for (size_t i = 0; i < segment; ++i) got += segments[i].dim;
      return fail(DumpFault::kDim, static_cast<int64_t>(dim), static_cast<int64_t>(got));
    }
    if (!options.with_state) return true;
    next_element();
    return element == segments.size() || fail_elements(num_elements);
  }

  // Weights of the run, into the columns of their segments.
  bool weights(Wire& wire) noexcept {
    if (!options.has_segments) {
      if (uint32_t ignored; !wire.fixed(ignored)) return fail(wire);
      while (wire.left() >= kFloatBytes && *wire.at == kNum) wire.at += kFloatBytes;
      return true;
    }
    if (segment == segments.size()) return fail_dim();
    const uint32_t dim = segments[segment].dim;
    float* out = static_cast<float*>(columns[segment]) + row * dim + num_weights;
    const size_t n = take_floats(wire, kNum, out, dim - num_weights);
    if (n == 0) return fail(wire);
    is_finite &= monolith::is_finite(out, n);
    num_weights += n;
    if (num_weights == dim) ++segment, num_weights = 0;
    return true;
  }
  bool fail_dim() noexcept {
    int64_t dim = 0;
    for (const DumpSegment& each : segments) dim += each.dim;
    return fail(DumpFault::kDim, dim, dim + 1);
  }

  bool dumps(Wire opt) noexcept {
    while (!opt.is_done()) {
      uint32_t tag;
      if (!opt.tag(tag)) return fail(opt);
      if (tag != kDump) {
        if (tag >> 3 == kDump >> 3) return fail_wire_type();
        if (!opt.skip(tag)) return fail(opt);
        continue;
      }
      Wire dump;
      if (!opt.bytes(dump)) return fail(opt);
      next_element();
      ++num_elements;
      if (element == segments.size()) return fail_elements(num_elements);
      if (!one_dump(dump)) return false;
      column += segments[element].state.size();
      ++element;
    }
    return true;
  }

  // Passes the segments whose optimizers write no dump.
  void next_element() noexcept {
    while (element < segments.size() && segments[element].kind == 0) {
      column += segments[element++].state.size();
    }
  }
  bool fail_elements(size_t got) noexcept {
    const auto has_dump = [](const DumpSegment& each) { return each.kind != 0; };
    const auto expected = std::count_if(segments.begin(), segments.end(), has_dump);
    return fail(DumpFault::kElements, expected, static_cast<int64_t>(got));
  }

  bool one_dump(Wire dump) noexcept {
    const DumpSegment& expected = segments[element];
    error.segment = static_cast<uint32_t>(element);
    bool has_kind = false;
    while (!dump.is_done()) {
      uint32_t tag;
      if (!dump.tag(tag)) return fail(dump);
      if (tag >> 3 != expected.kind) return fail(DumpFault::kKind, expected.kind, tag >> 3);
      if (has_kind || (tag & 7) != kBytesType) return fail_wire_type();
      has_kind = true;
      Wire inside;
      if (!dump.bytes(inside)) return fail(dump);
      if (!state(inside, expected)) return false;
    }
    return has_kind || fail(DumpFault::kKind, expected.kind, 0);
  }

  // Fields in ascending order, as every writer of protobuf leaves them.
  bool state(Wire wire, const DumpSegment& expected) noexcept {
    size_t field = 0, count = 0;
    while (!wire.is_done()) {
      uint32_t tag;
      if (!wire.tag(tag)) return fail(wire);
      const size_t number = (tag >> 3) - 1;
      if (number >= expected.state.size()) {
        if (!wire.skip(tag)) return fail(wire);
        continue;
      }
      while (field < number) {
        if (!is_whole(expected, field, count)) return false;
        ++field, count = 0;
      }
      if (field != number || count == expected.state[field].size) {
        return fail_state(expected, number, field == number ? count + 1 : 0);
      }
      if (!values(wire, tag, expected.state[field], columns[segments.size() + column + field],
                  count))
        return false;
    }
    for (; field < expected.state.size(); ++field, count = 0) {
      if (!is_whole(expected, field, count)) return false;
    }
    return true;
  }
  bool is_whole(const DumpSegment& expected, size_t field, size_t count) noexcept {
    return count == expected.state[field].size || fail_state(expected, field, count);
  }
  bool fail_state(const DumpSegment& expected, size_t field, size_t count) noexcept {
    error.field = static_cast<uint32_t>(field);
    return fail(DumpFault::kState, expected.state[field].size, static_cast<int64_t>(count));
  }

  bool values(Wire& wire, uint32_t tag, const DumpField& field, void* out, size_t& count) noexcept {
    if (field.is_integer) {
      uint64_t value;
      if (!wire.varint_of(tag, value)) return fail(wire);
      static_cast<int64_t*>(out)[row * field.size + count++] = static_cast<int64_t>(value);
      return true;
    }
    if ((tag & 7) != kFixed32Type || tag > UINT8_MAX) return fail_wire_type();
    float* numbers = static_cast<float*>(out) + row * field.size + count;
    const size_t n = take_floats(wire, static_cast<uint8_t>(tag), numbers, field.size - count);
    if (n == 0) return fail(wire);
    is_finite &= monolith::is_finite(numbers, n);
    count += n;
    return true;
  }
};

DumpFault fault_of(Fault fault) noexcept {
  switch (fault) {
    case Fault::kRecordLength:
      return DumpFault::kRecordLength;
    case Fault::kLengthChecksum:
      return DumpFault::kLengthChecksum;
    default:
      return DumpFault::kChecksum;
  }
}

}  // namespace

const char* name_of(DumpFault fault) noexcept {
  switch (fault) {
    case DumpFault::kNone:
      return "none";
    case DumpFault::kMessage:
      return "message";
    case DumpFault::kWireType:
      return "wire_type";
    case DumpFault::kRecordLength:
      return "record_length";
    case DumpFault::kLengthChecksum:
      return "length_checksum";
    case DumpFault::kChecksum:
      return "checksum";
    case DumpFault::kId:
      return "id";
    case DumpFault::kDim:
      return "dim";
    case DumpFault::kKind:
      return "kind";
    case DumpFault::kElements:
      return "elements";
    case DumpFault::kState:
      return "state";
    case DumpFault::kTime:
      return "time";
    case DumpFault::kNonFinite:
      return "non_finite";
  }
  return "";
}

DumpDecoder::DumpDecoder(std::vector<DumpSegment> segments, const DumpOptions& options)
    : segments_(std::move(segments)), options_(options) {}

DumpBlock DumpDecoder::decode(const uint8_t* data, size_t size, size_t most, int64_t* keys,
                              int64_t* times, void* const* columns) const noexcept {
  FrameOptions framing;
  framing.is_tfrecord = true;
  framing.max_bytes = options_.max_bytes;
  DumpBlock block;
  while (block.num_records < most) {
    const Frame frame = read_frame(data + block.consumed, size - block.consumed, framing);
    if (frame.state == Frame::State::kIncomplete) {
      block.needed = frame.needed;
      break;
    }
    DumpError error;
    error.at = block.consumed;
    if (frame.state == Frame::State::kBroken || frame.fault != Fault::kNone) {
      error.fault = fault_of(frame.fault);
      error.expected = static_cast<int64_t>(options_.max_bytes);
      error.got = static_cast<int64_t>(frame.got);
      block.error = error;
      break;
    }
    RowParser parser{segments_, options_, columns, block.num_rows, error};
    if (!parser.parse(frame.record)) {
      block.error = error;
      break;
    }
    if (!parser.is_finite && !options_.skips_non_finite) {
      parser.fail(DumpFault::kNonFinite, 0, parser.key);
      block.error = error;
      break;
    }
    ++block.num_records;
    block.consumed += frame.size;
    if (!parser.is_finite) {
      ++block.num_non_finite;
      continue;
    }
    keys[block.num_rows] = parser.key;
    times[block.num_rows] = parser.time;
    ++block.num_rows;
  }
  return block;
}

}  // namespace monolith
