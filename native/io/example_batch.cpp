// Decodes ExampleBatch: a list of features for each name, with one feature per row or one for all
// rows.
//
// The size of the batch is after the lists, so lists are written in their order, from the first row
// of the record on, and checked at the end.
#include <algorithm>

#include "io/record_decoder.h"

namespace monolith {

namespace {

constexpr int64_t kMaxRows = 1 << 20;   // of a batch
constexpr size_t kMaxCopies = 1 << 24;  // values that a shared list, or a fill, becomes
constexpr uint32_t kFeatureTag = 2 << 3 | kBytesType;
constexpr const char* kList = "named_feature_list";

}  // namespace

bool RecordDecoder::parse_example_batch(Wire record) {
  const Wire whole = record;
  int64_t batch_size = 0;
  size_t position = 0;
  for (Column& column : columns_.columns) column.list_rows = -1;
  while (!record.is_done()) {
    uint32_t tag;
    if (!record.tag(tag)) return cells_.fail(record, "ExampleBatch");
    Wire list;
    uint64_t size;
    switch (tag >> 3) {
      case 1:
        if (!record.bytes_of(tag, list)) return cells_.fail(record, kList);
        if (!parse_named_list(list, position++)) return false;
        break;
      case 3:
        if (!record.varint_of(tag, size)) return cells_.fail(record, "ExampleBatch.batch_size");
        batch_size = static_cast<int32_t>(size);
        break;
      case 100:
        if (!parse_key(record, tag, "ExampleBatch.data_source_key")) return false;
        break;
      default:
        if (!record.skip(tag)) return cells_.fail(record, "ExampleBatch");
    }
  }
  return finish_batch(whole.at, batch_size);
}

bool RecordDecoder::parse_named_list(Wire list, size_t position) {
  Wire name, wire = list;
  while (!wire.is_done()) {  // the last name counts, wherever it stands
    uint32_t tag;
    if (!wire.tag(tag)) return cells_.fail(wire, kList);
    if (tag >> 3 == 1) {
      if (!wire.bytes_of(tag, name)) return cells_.fail(wire, kList);
    } else if (!wire.skip(tag)) {
      return cells_.fail(wire, kList);
    }
  }
  const Target& target = target_of(name, position);
  if (target.kind == TargetKind::kNothing || !begin_list(target)) return true;
  return parse_list_features(target, list);
}

// Whether the column has no list of a higher priority.
bool RecordDecoder::begin_list(const Target& target) {
  if (target.kind == TargetKind::kLineId) {
    for (const int32_t line : lines_) clear_list(column_of(line));
    return true;
  }
  Column& column = column_of(target.column);
  if (column.list_rows >= 0 && target.priority < column.list_priority) return false;
  column.list_priority = target.priority;
  clear_list(column);
  return true;
}

// Drops the values of an earlier list of the column: the last list counts.
void RecordDecoder::clear_list(Column& column) {
  if (column.list_rows < 0) return;
  cells_.next_cell(columns_.num_rows);
  cells_.clear(column);
  std::erase_if(bad_rows_, [&column](const BadRow& bad) { return bad.error.column == &column; });
}

bool RecordDecoder::parse_list_features(const Target& target, Wire list) {
  const size_t base = columns_.num_rows;
  const bool is_column = target.kind == TargetKind::kColumn;
  int64_t rows = 0;
  uint64_t type = 0;
  while (!list.is_done()) {
    if (rows == kMaxRows) {
      cells_.error = {Fault::kTooLarge, list.at, kList, nullptr, kMaxRows, rows + 1};
      return false;
    }
    Wire numbers;
    if (const uint32_t payload = is_column ? list.packed_feature(numbers) : 0) [[likely]] {
      const size_t row = base + static_cast<size_t>(rows++);
      columns_.ensure_rows(row + 1);
      cells_.next_cell(row);
      if (!parse_packed(target, payload, numbers) && !is_bad_row()) return false;
      continue;
    }
    uint32_t tag;
    if (!list.tag(tag)) return cells_.fail(list, kList);
    if (tag == kFeatureTag) [[likely]] {
      Wire feature;
      if (!list.bytes(feature)) return cells_.fail(list, kList);
      const size_t row = base + static_cast<size_t>(rows++);
      columns_.ensure_rows(row + 1);
      cells_.next_cell(row);
      if (!parse_list_feature(target, feature)) return false;
    } else if (tag >> 3 == 3) {
      if (!list.varint_of(tag, type)) return cells_.fail(list, kList);
    } else if (tag >> 3 == 2) {
      list.fault = Fault::kWireType;
      return cells_.fail(list, kList);
    } else if (!list.skip(tag)) {
      return cells_.fail(list, kList);
    }
  }
  end_list(target, rows, type == 1);
  return true;
}

bool RecordDecoder::parse_list_feature(const Target& target, Wire feature) {
  if (target.kind == TargetKind::kLineId) {
    return parse_line_feature(feature) && finish_line_cells(feature.at);
  }
  Column& column = column_of(target.column);
  uint32_t payload = 0;
  cells_.start(column, target.priority);
  if (!parse_feature(column, feature, payload)) return false;
  return cells_.finish(column, feature.at, kList) || is_bad_row();
}

// Whether the error concerns one row only: then the error is noted, and the batch continues.
bool RecordDecoder::is_bad_row() {
  if (cells_.error.fault != Fault::kMissing && cells_.error.fault != Fault::kCount) return false;
  bad_rows_.push_back({cells_.error, cells_.row()});
  return true;
}

bool RecordDecoder::finish_line_cells(const uint8_t* at) {
  for (const int32_t line : lines_) {
    Column& column = column_of(line);
    if (!cells_.is_started(column)) cells_.start(column);
    if (!cells_.finish(column, at, "__LINE_ID__")) is_bad_row();
  }
  return true;
}

void RecordDecoder::end_list(const Target& target, int64_t rows, bool is_shared) {
  const auto end = [rows, is_shared](Column& column) {
    column.list_rows = rows;
    column.is_shared = is_shared;
  };
  if (target.kind == TargetKind::kColumn) return end(column_of(target.column));
  for (const int32_t line : lines_) end(column_of(line));
}

bool RecordDecoder::finish_batch(const uint8_t* at, int64_t batch_size) {
  if (batch_size < 0 || batch_size > kMaxRows) {
    cells_.error = {batch_size < 0 ? Fault::kBatchSize : Fault::kTooLarge,
                    at,
                    "ExampleBatch.batch_size",
                    nullptr,
                    kMaxRows,
                    batch_size};
    return false;
  }
  const auto rows = static_cast<size_t>(batch_size);
  columns_.ensure_rows(columns_.num_rows + rows);
  for (Column& column : columns_.columns) {
    if (!finish_list(column, at, rows)) return false;
  }
  columns_.num_rows += rows;
  return true;
}

bool RecordDecoder::finish_list(Column& column, const uint8_t* at, size_t rows) {
  const size_t base = columns_.num_rows;
  if (key_ >= 0 && &column == &column_of(key_)) {
    for (size_t row = 0; row < rows; ++row) {
      cells_.next_cell(base + row);
      cells_.append_id(column, data_source_key_);
      cells_.finish(column, at, "data_source_key");
    }
    return true;
  }
  if (column.list_rows < 0) return fill_column(column, at, rows);
  if (column.is_shared && column.list_rows > 0) return share(column, at, rows);
  if (column.list_rows == static_cast<int64_t>(rows)) return true;
  cells_.error = {Fault::kRows, at, kList, &column, static_cast<int64_t>(rows), column.list_rows};
  return false;
}

// The record has no list of this column.
bool RecordDecoder::fill_column(Column& column, const uint8_t* at, size_t rows) {
  if (!column.is_ids && column.spec.has_fill && !add_copies(column, at, rows * column.width)) {
    return false;
  }
  for (size_t row = 0; row < rows; ++row) {
    cells_.next_cell(columns_.num_rows + row);
    cells_.start(column);
    if (!cells_.finish(column, at, "ExampleBatch")) return false;
  }
  return true;
}

// Few bytes may expand to many values, so values per column are limited, and the block ends early.
bool RecordDecoder::add_copies(Column& column, const uint8_t* at, size_t count) {
  num_copies_ += count;
  if (count <= kMaxCopies && column.ids.size() + count <= INT32_MAX) return true;
  cells_.error = {Fault::kTooLarge, at, kList, &column, kMaxCopies, static_cast<int64_t>(count)};
  return false;
}

// Copies the first feature of the list to every row.
bool RecordDecoder::share(Column& column, const uint8_t* at, size_t rows) {
  const size_t base = columns_.num_rows;
  for (const BadRow& bad : bad_rows_) {
    if (bad.error.column != &column) continue;
    cells_.error = bad.error;
    return false;
  }
  if (!column.spec.is_ids) {
    if (!add_copies(column, at, rows * column.width)) return false;
    float* first = column.floats.data() + base * column.spec.width;
    for (size_t row = 1; row < rows; ++row) {
      std::copy_n(first, column.spec.width, first + row * column.spec.width);
    }
    return true;
  }
  int32_t* splits = column.splits.data() + base;
  const auto count = static_cast<size_t>(splits[1] - splits[0]);
  const auto begin = static_cast<size_t>(splits[0]);
  if (!add_copies(column, at, count * rows)) return false;
  column.ids.resize(begin);
  column.ids.room(count * rows);
  for (size_t row = 1; row < rows; ++row) {
    const auto to = begin + row * count;
    std::copy_n(column.ids.data() + begin, count, column.ids.data() + to);
    splits[row + 1] = static_cast<int32_t>(to + count);
  }
  column.ids.resize(begin + count * rows);
  return true;
}

}  // namespace monolith
