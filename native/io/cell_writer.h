// Writes the numbers of wire messages into a cell, which is a row of a column.
//
// Id columns accept fids, integers, and strings as their XXH64. Float columns accept floats,
// doubles and integers. A cell is started once, then lists are appended, then the cell is finished.
// Not thread-safe; borrows columns and records.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "io/record_columns.h"
#include "io/wire.h"

namespace monolith {

// Formats of numbers on the wire.
enum class Number : uint8_t { kFidV1, kFixed64, kVarint, kBytes, kFloat, kDouble };

uint32_t wire_type(Number number) noexcept;  // for a number that is not packed

// The first error of a record.
struct RecordError {
  Fault fault = Fault::kNone;
  const uint8_t* at = nullptr;
  const char* field = "";
  const Column* column = nullptr;
  int64_t expected = 0, got = 0;
};

// Describe the error with its numbers, and without the numbers that differ between records.
std::pair<std::string, std::string> describe(const RecordError& error);

class CellWriter {
 public:
  explicit CellWriter(bool keeps_fid_v1) : keeps_fid_v1_(keeps_fid_v1) {}

  RecordError error;
  const uint8_t* readable_end =
      nullptr;  // end of all records: reads may go beyond a message up to this address

  // Moves on to a cell that no column has started.
  void next_cell(size_t row) noexcept {
    row_ = row;
    ++mark_;
    num_started_ = 0;
  }
  size_t row() const noexcept { return row_; }
  size_t num_started() const noexcept {
    return num_started_;
  }  // number of columns started in this cell

  bool is_started(const Column& column) const noexcept { return column.mark == mark_; }

  // Empties the cell. Returns false if the cell has content of a higher priority.
  bool start(Column& column, int priority = 0) noexcept {
    if (column.mark == mark_) {
      if (priority < column.priority) return false;
    } else {
      column.mark = mark_;
      ++num_started_;
    }
    column.priority = priority;
    clear(column);
    return true;
  }

  // Starts the cell, and keeps its content of the same priority.
  bool resume(Column& column, int priority = 0) noexcept {
    return (column.mark == mark_ && column.priority == priority) || start(column, priority);
  }

  void clear(Column& column) noexcept {
    column.num_floats = 0;
    if (column.is_ids) column.ids.resize(begin_of(column));
  }

  // Appends a message with `repeated X value = 1`, packed or not.
  bool append_list(Column& column, Number number, Wire list, const char* field);

  // Appends one number, or packed numbers, of a field with this tag.
  bool append_field(Column& column, Number number, Wire& wire, uint32_t tag, const char* field);

  // Writes a whole cell of one id or one float inline. Returns false if nothing was written.
  bool put_one(Column& column, int priority, Number number, const Wire& data) noexcept {
    if (column.mark == mark_) return false;
    if (column.is_ids) {
      const size_t size = column.ids.size();
      uint64_t id = 0;
      if (size == column.ids.capacity()) return false;
      if (number == Number::kFixed64 && data.left() == 8) {
        id = load<uint64_t>(data.at);
      } else if (number != Number::kVarint || readable_end - data.at < 8 || data.is_done() ||
                 varint_of_word(load<uint64_t>(data.at), id) != data.left()) {
        return false;
      }
      column.ids.data()[size] = static_cast<int64_t>(id);
      column.ids.resize(size + 1);
      column.splits.data()[row_ + 1] = static_cast<int32_t>(size + 1);
    } else {
      if (number != Number::kFloat || column.width != 1 || data.left() != 4) return false;
      column.floats.data()[row_] = load<float>(data.at);
      column.num_floats = 1;
    }
    column.mark = mark_;
    column.priority = priority;
    ++num_started_;
    return true;
  }

  bool append_packed(Column& column, Number number, const Wire& data, const char* field) {
    // One id, or as many floats as a row has: the case of most features.
    if (column.is_ids && number == Number::kFixed64 && data.left() == 8) [[likely]] {
      append_id(column, load<int64_t>(data.at));
      return true;
    }
    if (!column.is_ids && number == Number::kFloat && column.num_floats == 0 &&
        data.left() == sizeof(float) * column.width) [[likely]] {
      std::memcpy(column.floats.data() + row_ * column.width, data.at, data.left());
      column.num_floats = column.width;
      return true;
    }
    return append_numbers(column, number, data, field);
  }

  void append_id(Column& column, int64_t id) {
    *column.ids.room(1) = id;
    column.ids.resize(column.ids.size() + 1);
  }

  // Ends the cell. Returns false if the cell does not fit the column.
  bool finish(Column& column, const uint8_t* at, const char* field) {
    if (column.is_ids) {
      column.splits.data()[row_ + 1] = static_cast<int32_t>(column.ids.size());
      if (!column.is_one_each) [[likely]]
        return true;
      const size_t got = column.ids.size() - begin_of(column);
      return got == 1 || fail_count(column, got, at, field);
    }
    if (column.num_floats == column.width) [[likely]]
      return true;
    return finish_floats(column, at, field);
  }

  bool fail(const Wire& wire, const char* field, const Column* column = nullptr) noexcept {
    error = {wire.fault, wire.at, field, column, 0, 0};
    if (wire.fault == Fault::kLength) error.expected = static_cast<int64_t>(wire.left());
    return false;
  }

  int64_t from_v1(uint64_t fid) const noexcept {
    constexpr uint64_t kSignature = (uint64_t{1} << 48) - 1;
    if (keeps_fid_v1_) return static_cast<int64_t>(fid);
    return static_cast<int64_t>((fid >> 54 << 48) | (fid & kSignature));
  }

 private:
  size_t begin_of(const Column& column) const noexcept {
    return static_cast<size_t>(column.splits.data()[row_]);
  }
  bool append_numbers(Column& column, Number number, Wire data, const char* field);
  bool append_varints(Column& column, Wire data, const char* field);
  bool append_to_ids(Column& column, Number number, Wire data, const char* field);
  bool append_to_floats(Column& column, Number number, Wire data, const char* field);
  bool append_one(Column& column, Number number, Wire& wire, const char* field);
  bool has_room(Column& column, size_t more, const Wire& wire, const char* field);
  bool finish_floats(Column& column, const uint8_t* at, const char* field);
  bool fail_count(Column& column, size_t got, const uint8_t* at, const char* field) noexcept;
  void put_float(Column& column, float value) noexcept {
    if (column.num_floats < column.width) {
      column.floats.data()[row_ * column.width + column.num_floats] = value;
    }
    ++column.num_floats;
  }

  bool keeps_fid_v1_;
  size_t row_ = 0;
  uint64_t mark_ = 0;
  size_t num_started_ = 0;
};

}  // namespace monolith
