// Reads the wire format of protobuf from untrusted memory.
//
// Every length is checked before its use. A call that returns false has set `fault`, has left `at`
// at the place of the fault, and has not set its output. Borrows the memory; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace monolith {

enum class Fault : uint8_t {
  kNone,
  kTruncated,     // the message ends inside a number
  kVarint,        // a varint of more than 10 bytes
  kLength,        // a length that reaches beyond the message
  kTag,           // a field number of 0, or a tag of more than 32 bits
  kWireType,      // a known field of another wire type, or an unknown wire type
  kGroup,         // a group without its end, or nested too deeply
  kPacked,        // packed numbers whose size is no multiple of one number
  kPayload,       // numbers of a kind that the column does not accept
  kMissing,       // a column without a value, and without a fill
  kCount,         // a number of values that differs from the column
  kBatchSize,     // a batch size below 0
  kRows,          // a list whose number of features differs from the rows of the batch
  kTooLarge,      // more rows or values than the limits
  kMark,          // a length that marks overwritten memory
  kRecordLength,  // a length of a record beyond the limit
  kChecksum,      // the checksum of a record's bytes
  kLengthChecksum,
  kRecordType,  // the header names another type of records
};

enum WireType : uint32_t { kVarintType = 0, kFixed64Type = 1, kBytesType = 2, kFixed32Type = 5 };

template <class T>
T load(const uint8_t* at) noexcept {
  static_assert(sizeof(T) <= 8);
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Decodes the varint in the low bytes of a word. Returns its number of bytes, or 0 if more than 8.
inline size_t varint_of_word(uint64_t word, uint64_t& value) noexcept {
  const uint64_t stops = ~word & 0x8080808080808080;
  if (stops == 0) return 0;
  word &= stops ^ (stops - 1);  // up to the first byte without the high bit
  word = (word & 0x007f007f007f007f) | (word & 0x7f007f007f007f00) >> 1;
  word = (word & 0x00003fff00003fff) | (word & 0x3fff00003fff0000) >> 2;
  value = (word & 0x000000000fffffff) | (word & 0x0fffffff00000000) >> 4;
  return static_cast<size_t>(__builtin_ctzll(stops)) / 8 + 1;
}

struct Wire {
  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;
  Fault fault = Fault::kNone;

  bool is_done() const noexcept { return at == end; }
  size_t left() const noexcept { return static_cast<size_t>(end - at); }

  bool fail(Fault why) noexcept {
    fault = why;
    return false;
  }

  bool varint(uint64_t& value) noexcept {
    if (at != end && *at < 0x80) [[likely]] {
      value = *at++;
      return true;
    }
    return long_varint(value);
  }

  // Field number << 3 | wire type.
  bool tag(uint32_t& value) noexcept {
    const uint8_t* begin = at;
    uint64_t wide;
    if (!varint(wide)) return false;
    value = static_cast<uint32_t>(wide);
    if (wide >= 8 && wide <= UINT32_MAX) [[likely]]
      return true;
    at = begin;
    return fail(Fault::kTag);
  }

  // Reads a length and the bytes after it.
  bool bytes(Wire& inside) noexcept {
    const uint8_t* begin = at;
    uint64_t size;
    if (!varint(size)) return false;
    if (size > left()) [[unlikely]] {
      at = begin;
      return fail(Fault::kLength);
    }
    inside = {at, at + size};
    at += size;
    return true;
  }

  template <class T>
  bool fixed(T& value) noexcept {
    if (left() < sizeof value) return fail(Fault::kTruncated);
    value = load<T>(at);
    at += sizeof value;
    return true;
  }

  // Reads the bytes of a field that must have a length.
  bool bytes_of(uint32_t tag, Wire& inside) noexcept {
    if ((tag & 7) != kBytesType) return fail(Fault::kWireType);
    return bytes(inside);
  }

  // Reads the number of a field that must be a varint.
  bool varint_of(uint32_t tag, uint64_t& value) noexcept {
    if ((tag & 7) != kVarintType) return fail(Fault::kWireType);
    return varint(value);
  }

  // Reads the usual encoding of a list in a field 2: tag and length of the field, of a payload, and
  // of one packed field 1, each to the end of the enclosing one, with all lengths below 128.
  // Returns the field number of the payload, and sets its bytes; otherwise returns 0 and changes
  // nothing.
  uint32_t packed_feature(Wire& payload) noexcept {
    constexpr uint64_t kTags = uint64_t{2 << 3 | kBytesType} | uint64_t{1 << 3 | kBytesType} << 32;
    if (left() < 8) return 0;
    const uint64_t word = load<uint64_t>(at) & 0xffffffffffff;
    const uint64_t size = word >> 8 & 0xff, tag = word >> 16 & 0xff;
    const uint64_t usual = kTags + tag * 0x10000 + size * 0x010001000100 - 0x040002000000;
    if (word != usual || size < 4 || size > 127 || size > left() - 2) return 0;
    if ((tag & 0x87) != kBytesType || tag < 8) return 0;
    payload = {at + 6, at + 2 + size};
    at += 2 + size;
    return static_cast<uint32_t>(tag >> 3);
  }

  // Skips the field after this tag, as protobuf requires for unknown fields.
  bool skip(uint32_t tag) noexcept {
    if ((tag & 7) == kBytesType) [[likely]] {
      Wire inside;
      return bytes(inside);
    }
    return skip_other(tag, 0);
  }

 private:
  bool long_varint(uint64_t& value) noexcept;
  bool skip_other(uint32_t tag, int depth) noexcept;
};

}  // namespace monolith
