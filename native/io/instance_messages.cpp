// Decodes Instance: flat fids of all slots, and named features. Field numbers are those of the
// published schemas.
#include <algorithm>
#include <cmath>

#include "io/record_decoder.h"

namespace monolith {

namespace {

struct Payload {
  Number number;
  bool is_lists;
  const char* field;
};
// By field number; 1 is the name.
constexpr Payload kPayloads[] = {
    {},
    {},
    {Number::kFixed64, false, "Feature.fid"},
    {Number::kFloat, false, "Feature.float_value"},
    {Number::kVarint, false, "Feature.int64_value"},
    {Number::kBytes, false, "Feature.bytes_value"},
    {Number::kFixed64, true, "Feature.fid_list"},
    {Number::kFloat, true, "Feature.float_list"},
    {Number::kVarint, true, "Feature.int64_list"},
    {Number::kBytes, true, "Feature.bytes_list"},
};
constexpr uint32_t kBytesValue = 5;
constexpr size_t kQuantizedMark = 6;  // bytes of "UE_QTZ"
constexpr uint32_t kMaxHalves = 4;    // vectors up to this length are stored as half floats
constexpr float kLargestHalf = 65504;

float from_half(uint16_t half) noexcept {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  float value = exponent == 31  ? kLargestHalf
                : exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
  return half >> 15 ? -value : value;
}

bool is_empty(uint32_t number, uint32_t tag, const Wire& inside) noexcept {
  const bool is_packed = number < kBytesValue && (tag & 7) == kBytesType;
  return is_packed && inside.is_done();
}

}  // namespace

bool RecordDecoder::parse_instance(Wire record) {
  size_t position = 0;
  while (!record.is_done()) {
    uint32_t tag;
    if (!record.tag(tag)) return cells_.fail(record, "Instance");
    Wire inside;
    switch (tag >> 3) {
      case 1:
        if (!parse_flat_fids(record, tag)) return false;
        break;
      case 2:
        if (!parse_typed_floats(value_, record, tag, "Instance.value")) return false;
        break;
      case 3:
        if (!parse_typed_floats(label_, record, tag, "Instance.label")) return false;
        break;
      case 4:
        if (weight_ >= 0) cells_.start(column_of(weight_));  // the last one counts
        if (!parse_typed_floats(weight_, record, tag, "Instance.instance_weight")) return false;
        break;
      case 5:
        if (!record.bytes_of(tag, inside)) return cells_.fail(record, "Instance.line_id");
        if (!parse_line_id(inside, 0)) return false;
        break;
      case 9:
        if (!record.bytes_of(tag, inside)) return cells_.fail(record, "Instance.feature");
        if (!parse_instance_feature(inside, position++)) return false;
        break;
      case 100:
        if (!parse_key(record, tag, "Instance.data_source_key")) return false;
        break;
      default:
        if (!record.skip(tag)) return cells_.fail(record, "Instance");
    }
  }
  return true;
}

bool RecordDecoder::parse_flat_fids(Wire& wire, uint32_t tag) {
  constexpr const char* kField = "Instance.fid";
  Wire data;
  if ((tag & 7) == kFixed64Type) {
    const uint8_t* begin = wire.at;
    uint64_t fid;
    if (!wire.fixed(fid)) return cells_.fail(wire, kField);
    data = {begin, wire.at};
  } else if (!wire.bytes_of(tag, data)) {
    return cells_.fail(wire, kField);
  }
  if (data.left() % 8 != 0) {
    data.fault = Fault::kPacked;
    return cells_.fail(data, kField);
  }
  if (slots_.empty()) return true;
  for (; !data.is_done(); data.at += 8) {
    const uint64_t fid = load<uint64_t>(data.at);
    const int32_t column = slot_columns_[fid >> 54];
    if (column >= 0) cells_.append_id(column_of(column), cells_.from_v1(fid));
  }
  return true;
}

bool RecordDecoder::parse_instance_feature(Wire message, size_t position) {
  constexpr const char* kField = "Instance.feature";
  constexpr uint32_t kNone = std::size(kPayloads);
  Wire name, quantized, wire = message;
  uint32_t first = kNone;  // of the payloads that are not empty
  while (!wire.is_done()) {
    uint32_t tag;
    if (!wire.tag(tag)) return cells_.fail(wire, kField);
    const uint32_t number = tag >> 3;
    Wire inside;
    if (number == 1) {
      if (!wire.bytes_of(tag, name)) return cells_.fail(wire, kField);
      continue;
    }
    const bool has_bytes = (tag & 7) == kBytesType;
    if (has_bytes ? !wire.bytes(inside) : !wire.skip(tag)) return cells_.fail(wire, kField);
    if (number >= kNone || is_empty(number, tag, inside)) continue;
    first = std::min(first, number);
    const bool is_marked = number == kBytesValue && has_bytes && inside.left() >= kQuantizedMark &&
                           std::memcmp(inside.at, "UE_QTZ", kQuantizedMark) == 0;
    if (is_marked && quantized.at == nullptr) quantized = inside;
  }
  const Target& target = target_of(name, position);
  if (target.kind != TargetKind::kColumn) return true;
  Column& column = column_of(target.column);
  const bool is_slot = target.priority == 0;  // in addition to the flat fids
  if (!is_slot && !cells_.start(column, target.priority)) return true;
  if (quantized.at != nullptr && !column.spec.is_ids) return parse_quantized(column, quantized);
  if (first < kNone && !parse_instance_payload(column, message, first)) return false;
  return is_slot || cells_.finish(column, message.at, kField);
}

// All fields of one payload.
bool RecordDecoder::parse_instance_payload(Column& column, Wire message, uint32_t payload) {
  const Payload& kind = kPayloads[payload];
  while (!message.is_done()) {
    uint32_t tag;
    if (!message.tag(tag)) return cells_.fail(message, kind.field, &column);
    if (tag >> 3 != payload) {
      if (!message.skip(tag)) return cells_.fail(message, kind.field, &column);
      continue;
    }
    if (!kind.is_lists) {
      if (!cells_.append_field(column, kind.number, message, tag, kind.field)) return false;
      continue;
    }
    Wire list;
    if (!message.bytes_of(tag, list)) return cells_.fail(message, kind.field, &column);
    if (!cells_.append_list(column, kind.number, list, kind.field)) return false;
  }
  return true;
}

// x = min + (max - min) / 255 * q: two half floats, then a byte for each number; of up to 4 numbers
// their half floats.
bool RecordDecoder::parse_quantized(Column& column, Wire bytes) {
  const uint32_t width = column.spec.width;
  bytes.at += kQuantizedMark;
  const bool is_half = width <= kMaxHalves;
  const size_t expected = is_half ? size_t{2} * width : size_t{4} + width;
  if (bytes.left() != expected) {
    cells_.error = {Fault::kCount,
                    bytes.at,
                    "Feature.bytes_value",
                    &column,
                    static_cast<int64_t>(expected),
                    static_cast<int64_t>(bytes.left())};
    return false;
  }
  float* out = column.floats.data() + cells_.row() * width;
  const float low = from_half(load<uint16_t>(bytes.at));
  const float step = is_half ? 0 : (from_half(load<uint16_t>(bytes.at + 2)) - low) / 255;
  for (uint32_t i = 0; i < width; ++i) {
    out[i] = is_half ? from_half(load<uint16_t>(bytes.at + 2 * i))
                     : low + step * static_cast<float>(bytes.at[4 + i]);
  }
  column.num_floats = width;
  return true;
}

}  // namespace monolith
