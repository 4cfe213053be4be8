#include "io/cell_writer.h"

#include <algorithm>

#include "io/string_hash.h"

namespace monolith {

namespace {

constexpr size_t kMaxIds = INT32_MAX;  // of a column: row splits are int32

size_t fixed_size(Number number) noexcept {
  const uint32_t type = wire_type(number);
  return type == kFixed64Type ? 8 : type == kFixed32Type ? 4 : 0;
}

}  // namespace

uint32_t wire_type(Number number) noexcept {
  switch (number) {
    case Number::kFidV1:
    case Number::kFixed64:
    case Number::kDouble:
      return kFixed64Type;
    case Number::kFloat:
      return kFixed32Type;
    case Number::kVarint:
      return kVarintType;
    default:
      return kBytesType;
  }
}

bool CellWriter::append_list(Column& column, Number number, Wire list, const char* field) {
  // The usual list: one packed field, to the end.
  if (number != Number::kBytes && list.left() >= 2 && list.at[0] == (1 << 3 | kBytesType) &&
      list.at[1] < 0x80 && list.at[1] == list.left() - 2) [[likely]] {
    return append_packed(column, number, {list.at + 2, list.end}, field);
  }
  while (!list.is_done()) {
    uint32_t tag;
    if (!list.tag(tag)) return fail(list, field, &column);
    if (tag >> 3 == 1) {
      if (!append_field(column, number, list, tag, field)) return false;
    } else if (!list.skip(tag)) {
      return fail(list, field, &column);
    }
  }
  return true;
}

bool CellWriter::append_field(Column& column, Number number, Wire& wire, uint32_t tag,
                              const char* field) {
  const uint32_t type = tag & 7;
  if (type == wire_type(number)) return append_one(column, number, wire, field);
  Wire data;
  if (!wire.bytes_of(tag, data)) return fail(wire, field, &column);
  return append_packed(column, number, data, field);
}

bool CellWriter::append_numbers(Column& column, Number number, Wire data, const char* field) {
  const size_t size = fixed_size(number);
  if (size != 0 && data.left() % size != 0) {
    data.fault = Fault::kPacked;
    return fail(data, field, &column);
  }
  if (data.is_done()) return true;
  return column.is_ids ? append_to_ids(column, number, data, field)
                       : append_to_floats(column, number, data, field);
}

bool CellWriter::append_one(Column& column, Number number, Wire& wire, const char* field) {
  const Wire before = wire;
  Wire inside;
  uint64_t wide;
  uint32_t narrow;
  bool is_whole = false;
  switch (wire_type(number)) {
    case kBytesType:
      is_whole = wire.bytes(inside);
      break;
    case kFixed64Type:
      is_whole = wire.fixed(wide);
      break;
    case kFixed32Type:
      is_whole = wire.fixed(narrow);
      break;
    default:
      is_whole = wire.varint(wide);
  }
  if (!is_whole) return fail(wire, field, &column);
  if (number != Number::kBytes) return append_packed(column, number, {before.at, wire.at}, field);
  if (!column.is_ids) {
    inside.fault = Fault::kPayload;
    return fail(inside, field, &column);
  }
  if (!has_room(column, 1, inside, field)) return false;
  append_id(column, static_cast<int64_t>(xxh64(inside.at, inside.left(), 0)));
  return true;
}

bool CellWriter::has_room(Column& column, size_t more, const Wire& wire, const char* field) {
  if (more <= kMaxIds - column.ids.size()) [[likely]] {
    column.ids.room(more);
    return true;
  }
  error = {Fault::kTooLarge,
           wire.at,
           field,
           &column,
           static_cast<int64_t>(kMaxIds),
           static_cast<int64_t>(column.ids.size() + more)};
  return false;
}

bool CellWriter::append_to_ids(Column& column, Number number, Wire data, const char* field) {
  if (number == Number::kFloat || number == Number::kDouble) {
    data.fault = Fault::kPayload;
    return fail(data, field, &column);
  }
  if (number == Number::kVarint) return append_varints(column, data, field);
  const size_t most = data.left() / 8;
  if (!has_room(column, most, data, field)) return false;
  int64_t* out = column.ids.room(most);
  if (number == Number::kFixed64) {
    std::memcpy(out, data.at, data.left());
  } else {
    for (size_t i = 0; i < most; ++i) out[i] = from_v1(load<uint64_t>(data.at + 8 * i));
  }
  column.ids.resize(column.ids.size() + most);
  return true;
}

bool CellWriter::append_varints(Column& column, Wire data, const char* field) {
  if (!has_room(column, data.left(), data, field)) return false;
  int64_t* out = column.ids.room(data.left());
  size_t count = 0;
  for (; !data.is_done(); ++count) {
    uint64_t value = 0;
    const size_t size =
        readable_end - data.at >= 8 ? varint_of_word(load<uint64_t>(data.at), value) : 0;
    if (size != 0 && size <= data.left()) [[likely]] {
      data.at += size;
    } else if (!data.varint(value)) {
      return fail(data, field, &column);
    }
    out[count] = static_cast<int64_t>(value);
  }
  column.ids.resize(column.ids.size() + count);
  return true;
}

bool CellWriter::append_to_floats(Column& column, Number number, Wire data, const char* field) {
  uint64_t value;
  switch (number) {
    case Number::kFloat:
      for (; !data.is_done(); data.at += 4) put_float(column, load<float>(data.at));
      return true;
    case Number::kDouble:
      for (; !data.is_done(); data.at += 8) {
        put_float(column, static_cast<float>(load<double>(data.at)));
      }
      return true;
    case Number::kVarint:
      while (!data.is_done()) {
        if (!data.varint(value)) return fail(data, field, &column);
        put_float(column, static_cast<float>(static_cast<int64_t>(value)));
      }
      return true;
    default:
      data.fault = Fault::kPayload;
      return fail(data, field, &column);
  }
}

bool CellWriter::finish_floats(Column& column, const uint8_t* at, const char* field) {
  const ColumnSpec& spec = column.spec;
  float* row = column.floats.data() + row_ * spec.width;
  if (column.num_floats > spec.width && spec.takes_first) return true;
  const uint32_t got = std::min(column.num_floats, spec.width);
  // The row is whole whatever is wrong with it: a batch goes on after a bad row.
  std::fill(row + got, row + spec.width, spec.has_fill ? spec.fill : 0.0f);
  if (column.num_floats < spec.width && spec.has_fill) return true;
  return fail_count(column, column.num_floats, at, field);
}

bool CellWriter::fail_count(Column& column, size_t got, const uint8_t* at,
                            const char* field) noexcept {
  const int64_t expected = column.is_ids ? 1 : column.width;
  error = {got == 0 ? Fault::kMissing : Fault::kCount,
           at,
           field,
           &column,
           expected,
           static_cast<int64_t>(got)};
  return false;
}

}  // namespace monolith
