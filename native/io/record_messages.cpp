// Decodes Example, tf.train.Example and LineId. Field numbers are those of the published schemas.
#include "io/record_decoder.h"

namespace monolith {

namespace {

enum class Form : uint8_t { kNone, kScalar, kList, kLists };
struct Payload {
  Number number = Number::kVarint;
  Form form = Form::kNone;
  const char* field = "";
};

// The oneof of Feature, by field number.
constexpr Payload kPayloads[] = {
    {},
    {Number::kFidV1, Form::kList, "Feature.fid_v1_list"},
    {Number::kFixed64, Form::kList, "Feature.fid_v2_list"},
    {Number::kFloat, Form::kList, "Feature.float_list"},
    {Number::kDouble, Form::kList, "Feature.double_list"},
    {Number::kVarint, Form::kList, "Feature.int64_list"},
    {Number::kBytes, Form::kList, "Feature.bytes_list"},
    {Number::kFixed64, Form::kLists, "Feature.fid_v2_lists"},
    {Number::kFloat, Form::kLists, "Feature.float_lists"},
    {Number::kDouble, Form::kLists, "Feature.double_lists"},
    {Number::kVarint, Form::kLists, "Feature.int64_lists"},
    {Number::kBytes, Form::kLists, "Feature.bytes_lists"},
    {Number::kVarint, Form::kScalar, "Feature.int64_value"},
    {Number::kFloat, Form::kScalar, "Feature.float_value"},
    {Number::kDouble, Form::kScalar, "Feature.double_value"},
    {Number::kBytes, Form::kScalar, "Feature.bytes_value"},
    {Number::kFidV1, Form::kLists, "Feature.fid_v1_lists"},
};
constexpr Payload kTfPayloads[] = {
    {},
    {Number::kBytes, Form::kList, "Feature.bytes_list"},
    {Number::kFloat, Form::kList, "Feature.float_list"},
    {Number::kVarint, Form::kList, "Feature.int64_list"},
};
constexpr uint32_t kNumPayloads = std::size(kPayloads), kNumTfPayloads = std::size(kTfPayloads);

constexpr uint32_t bytes_tag(uint32_t number) { return number << 3 | kBytesType; }

// Every list in a message `repeated XList list = 1`.
bool append_lists(CellWriter& cells, Column& column, const Payload& payload, Wire lists) {
  while (!lists.is_done()) {
    uint32_t tag;
    if (!lists.tag(tag)) return cells.fail(lists, payload.field, &column);
    if (tag >> 3 != 1) {
      if (!lists.skip(tag)) return cells.fail(lists, payload.field, &column);
      continue;
    }
    Wire list;
    if (!lists.bytes_of(tag, list)) return cells.fail(lists, payload.field, &column);
    if (!cells.append_list(column, payload.number, list, payload.field)) return false;
  }
  return true;
}

// The payload of one field; `wire` is after its tag.
bool append_payload(CellWriter& cells, Column& column, const Payload& payload, Wire& wire,
                    uint32_t tag) {
  if (payload.form == Form::kScalar) {
    if ((tag & 7) != wire_type(payload.number)) {
      wire.fault = Fault::kWireType;
      return cells.fail(wire, payload.field, &column);
    }
    cells.clear(column);  // the last one counts
    return cells.append_field(column, payload.number, wire, tag, payload.field);
  }
  Wire inside;
  if (!wire.bytes_of(tag, inside)) return cells.fail(wire, payload.field, &column);
  if (payload.form == Form::kLists) return append_lists(cells, column, payload, inside);
  return cells.append_list(column, payload.number, inside, payload.field);
}

}  // namespace

bool RecordDecoder::parse_feature(Column& column, Wire feature, uint32_t& payload) {
  while (!feature.is_done()) {
    uint32_t tag;
    if (!feature.tag(tag)) return cells_.fail(feature, "Feature", &column);
    const uint32_t number = tag >> 3;
    if (number >= kNumPayloads) {
      if (!feature.skip(tag)) return cells_.fail(feature, "Feature", &column);
      continue;
    }
    // In a oneof, another payload replaces the previous payload; the same payload continues it.
    if (payload != number && payload != 0) cells_.clear(column);
    payload = number;
    if (!append_payload(cells_, column, kPayloads[number], feature, tag)) return false;
  }
  return true;
}

bool RecordDecoder::parse_tf_feature(Column& column, Wire feature, uint32_t& payload) {
  while (!feature.is_done()) {
    uint32_t tag;
    if (!feature.tag(tag)) return cells_.fail(feature, "Feature", &column);
    const uint32_t number = tag >> 3;
    if (number >= kNumTfPayloads) {
      if (!feature.skip(tag)) return cells_.fail(feature, "Feature", &column);
      continue;
    }
    if (payload != number && payload != 0) cells_.clear(column);
    payload = number;
    if (!append_payload(cells_, column, kTfPayloads[number], feature, tag)) return false;
  }
  return true;
}

bool RecordDecoder::starts_with(const Wire& wire, const std::string& begin) noexcept {
  const size_t size = begin.size();
  if (wire.left() < size) return false;
  const auto* name = reinterpret_cast<const uint8_t*>(begin.data());
  if (size < 8 || size > 24) return std::memcmp(wire.at, name, size) == 0;
  // Words that may overlap.
  const size_t last = size - 8, middle = last / 2;
  const uint64_t differs = (load<uint64_t>(wire.at) ^ load<uint64_t>(name)) |
                           (load<uint64_t>(wire.at + middle) ^ load<uint64_t>(name + middle)) |
                           (load<uint64_t>(wire.at + last) ^ load<uint64_t>(name + last));
  return differs == 0;
}

void RecordDecoder::find_packed_numbers() {
  const bool is_tf = options_.type == RecordType::kTfExample;
  packed_numbers_.fill(-1);
  for (uint32_t i = 0; i < packed_numbers_.size() && i < (is_tf ? kNumTfPayloads : kNumPayloads);
       ++i) {
    const Payload& payload = (is_tf ? kTfPayloads : kPayloads)[i];
    if (payload.form == Form::kList) packed_numbers_[i] = static_cast<int8_t>(payload.number);
  }
}

// One packed list, of a payload of Feature.
bool RecordDecoder::parse_any_packed(const Target& target, uint32_t payload, const Wire& list) {
  if (target.kind == TargetKind::kNothing) return true;
  const bool is_tf = options_.type == RecordType::kTfExample;
  const Payload kNothing{};
  const Payload& kind = payload < (is_tf ? kNumTfPayloads : kNumPayloads)
                            ? (is_tf ? kTfPayloads : kPayloads)[payload]
                            : kNothing;
  if (target.kind == TargetKind::kColumn && kind.form == Form::kList &&
      kind.number != Number::kBytes) [[likely]] {
    Column& column = column_of(target.column);
    if (!cells_.start(column, target.priority)) return true;
    return cells_.append_packed(column, kind.number, list, kind.field) &&
           cells_.finish(column, list.at, kind.field);
  }
  parts_.clear();
  return parse_parts(target, {list.at - 4, list.end}, parts_);
}

// A NamedFeature, and an entry of tf.train.Features: a name, and a Feature.
bool RecordDecoder::parse_any_named_feature(Wire entry, size_t position) {
  constexpr const char* kField = "named_feature";
  Wire name, feature;
  bool has_feature = false;
  parts_.clear();
  while (!entry.is_done()) {
    uint32_t tag;
    if (!entry.tag(tag)) return cells_.fail(entry, kField);
    if (tag >> 3 == 1) {
      if (!entry.bytes_of(tag, name)) return cells_.fail(entry, kField);
    } else if (tag >> 3 == 2) {
      if (has_feature) parts_.push_back(feature);
      if (!entry.bytes_of(tag, feature)) return cells_.fail(entry, kField);
      has_feature = true;
    } else if (!entry.skip(tag)) {
      return cells_.fail(entry, kField);
    }
  }
  const Target& target = target_of(name, position);
  if (target.kind == TargetKind::kNothing) return true;
  return parse_parts(target, feature, parts_);
}

// A Feature in several parts, which protobuf merges; the last one apart.
bool RecordDecoder::parse_parts(const Target& target, Wire last, const std::vector<Wire>& before) {
  if (target.kind == TargetKind::kLineId) return parse_line_feature(last);
  Column& column = column_of(target.column);
  if (!cells_.start(column, target.priority)) return true;
  const bool is_tf = options_.type == RecordType::kTfExample;
  uint32_t payload = 0;
  for (const Wire& part : before) {
    if (!(is_tf ? parse_tf_feature(column, part, payload) : parse_feature(column, part, payload))) {
      return false;
    }
  }
  if (!(is_tf ? parse_tf_feature(column, last, payload) : parse_feature(column, last, payload))) {
    return false;
  }
  return cells_.finish(column, last.at, "Feature");
}

bool RecordDecoder::parse_example(Wire record) {
  size_t position = 0;
  while (!record.is_done()) {
    uint32_t tag;
    if (!record.tag(tag)) return cells_.fail(record, "Example");
    Wire inside;
    switch (tag >> 3) {
      case 1:
        if (!record.bytes_of(tag, inside)) return cells_.fail(record, "Example.named_feature");
        if (!parse_named_feature(inside, position++)) return false;
        break;
      case 100:
        if (!record.bytes_of(tag, inside)) return cells_.fail(record, "Example.line_id");
        if (!parse_line_id(inside, 0)) return false;
        break;
      case 101:
        if (!parse_typed_floats(label_, record, tag, "Example.label")) return false;
        break;
      case 102: {
        float weight;
        if ((tag & 7) != kFixed32Type) record.fault = Fault::kWireType;
        if (record.fault != Fault::kNone || !record.fixed(weight)) {
          return cells_.fail(record, "Example.instance_weight");
        }
        // Absent and 0 are the same on the wire; neither is a weight.
        if (weight_ < 0 || weight <= 0 || !cells_.start(column_of(weight_))) break;
        const Wire bytes{record.at - sizeof weight, record.at};
        if (!cells_.append_packed(column_of(weight_), Number::kFloat, bytes,
                                  "Example.instance_weight")) {
          return false;
        }
        break;
      }
      case 103:
        if (!parse_key(record, tag, "Example.data_source_key")) return false;
        break;
      default:
        if (!record.skip(tag)) return cells_.fail(record, "Example");
    }
  }
  return true;
}

bool RecordDecoder::parse_tf_example(Wire record) {
  size_t position = 0;
  while (!record.is_done()) {
    uint32_t tag;
    if (!record.tag(tag)) return cells_.fail(record, "Example");
    if (tag >> 3 != 1) {
      if (!record.skip(tag)) return cells_.fail(record, "Example");
      continue;
    }
    Wire map;
    if (!record.bytes_of(tag, map)) return cells_.fail(record, "Example.features");
    if (!parse_tf_features(map, position)) return false;
  }
  return true;
}

bool RecordDecoder::parse_tf_features(Wire map, size_t& position) {
  while (!map.is_done()) {
    uint32_t tag;
    if (!map.tag(tag)) return cells_.fail(map, "Features");
    if (tag >> 3 != 1) {
      if (!map.skip(tag)) return cells_.fail(map, "Features");
      continue;
    }
    Wire entry;
    if (!map.bytes_of(tag, entry)) return cells_.fail(map, "Features.feature");
    if (!parse_named_feature(entry, position++)) return false;
  }
  return true;
}

bool RecordDecoder::parse_typed_floats(int32_t column, Wire& wire, uint32_t tag,
                                       const char* field) {
  if (column < 0 || !cells_.resume(column_of(column))) {
    return wire.skip(tag) || cells_.fail(wire, field);
  }
  return cells_.append_field(column_of(column), Number::kFloat, wire, tag, field);
}

bool RecordDecoder::parse_key(Wire& wire, uint32_t tag, const char* field) {
  uint64_t key;
  if (!wire.varint_of(tag, key)) return cells_.fail(wire, field);
  if (!frames_.lagrangex_header) data_source_key_ = static_cast<uint32_t>(key);
  return true;
}

bool RecordDecoder::parse_line_id(Wire message, int priority) {
  if (lines_.empty()) return true;
  while (!message.is_done()) {
    uint32_t tag;
    if (!message.tag(tag)) return cells_.fail(message, "LineId");
    const uint32_t number = tag >> 3;
    const LineField field = number < line_fields_.size() ? line_fields_[number] : LineField{};
    Column* column = field.column < 0 ? nullptr : &column_of(field.column);
    if (column != nullptr && !field.is_repeated && (tag & 7) != wire_type(field.number)) {
      message.fault = Fault::kWireType;
      return cells_.fail(message, "LineId", column);
    }
    const bool is_wanted =
        column != nullptr &&
        (field.is_repeated ? cells_.resume(*column, priority) : cells_.start(*column, priority));
    if (!is_wanted) {
      if (!message.skip(tag)) return cells_.fail(message, "LineId");
    } else if (!cells_.append_field(*column, field.number, message, tag, "LineId")) {
      return false;
    }
  }
  return true;
}

// A Feature whose first string is a LineId.
bool RecordDecoder::parse_line_feature(Wire feature) {
  while (!feature.is_done()) {
    uint32_t tag;
    if (!feature.tag(tag)) return cells_.fail(feature, "__LINE_ID__");
    if (tag != bytes_tag(6)) {
      if (!feature.skip(tag)) return cells_.fail(feature, "__LINE_ID__");
      continue;
    }
    Wire list, text;
    if (!feature.bytes(list)) return cells_.fail(feature, "__LINE_ID__");
    while (!list.is_done()) {
      if (!list.tag(tag)) return cells_.fail(list, "__LINE_ID__");
      if (tag != bytes_tag(1)) {
        if (!list.skip(tag)) return cells_.fail(list, "__LINE_ID__");
        continue;
      }
      if (!list.bytes(text)) return cells_.fail(list, "__LINE_ID__");
      return parse_line_id(text, 1);
    }
  }
  return true;
}

}  // namespace monolith
