#include "io/record_decoder.h"

#include <charconv>
#include <stdexcept>

namespace monolith {

namespace {

constexpr size_t kMaxExpected = 4096;     // features whose order is remembered
constexpr size_t kMaxName = 127;          // bytes of a name that is remembered
constexpr size_t kNamePrefix = 2;         // bytes of tag and length of a name
constexpr size_t kBlockRows = 1 << 18;    // a small batch may have many rows
constexpr size_t kBlockCopies = 1 << 24;  // and its shared lists many values
constexpr std::string_view kLinePrefix = "line_id.";

struct LineName {
  std::string_view name;
  uint32_t field;
  Number number;
  bool is_repeated;
};
constexpr LineName kLineNames[] = {
    {"uid", 2, Number::kFixed64, false},        {"req_time", 3, Number::kVarint, false},
    {"item_id", 4, Number::kFixed64, false},    {"actions", 6, Number::kVarint, true},
    {"chnid", 19, Number::kVarint, false},      {"pre_actions", 23, Number::kVarint, true},
    {"sample_rate", 27, Number::kFloat, false}, {"special_strategies", 39, Number::kVarint, true},
    {"device_type", 41, Number::kBytes, false}, {"cid", 48, Number::kBytes, false},
    {"user_id", 49, Number::kBytes, false},     {"is_draw", 87, Number::kVarint, false},
    {"rank", 145, Number::kVarint, false},      {"data_source_name", 235, Number::kBytes, false},
};

}  // namespace

RecordDecoder::RecordDecoder(const std::vector<ColumnSpec>& specs, const DecoderOptions& options,
                             const FrameOptions& frames)
    : specs_(specs), options_(options), frames_(frames), cells_(options.keeps_fid_v1) {
  frames_.record_type = static_cast<uint32_t>(options.type);
  slot_columns_.fill(-1);
  ids_before_.resize(specs.size());
  find_targets();
  find_packed_numbers();
}

void RecordDecoder::find_targets() {
  const bool is_tf = options_.type == RecordType::kTfExample;
  const bool is_instance = options_.type == RecordType::kInstance;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const std::string& name = specs_[i].name;
    const auto column = static_cast<int32_t>(i);
    if (!is_tf && name == "data_source_key") {
      if (!specs_[i].is_ids) {
        throw std::invalid_argument(
            "[RecordDecoder] expected column data_source_key of ids, got one of numbers");
      }
      key_ = column;
      continue;
    }
    if (is_instance && find_slot(name, column)) continue;
    awaited_.push_back(column);
    if (is_tf) {
      targets_[name] = {TargetKind::kColumn, column, 0};
    } else if (name.starts_with(kLinePrefix)) {
      if (!find_line_field(name.substr(kLinePrefix.size()), column)) {
        throw std::invalid_argument(name.substr(kLinePrefix.size()) +
                                    " is not in line id, pls check!");
      }
    } else if (name == "label") {
      label_ = column;
      if (!is_instance) {
        targets_["label"] = {TargetKind::kColumn, column, 2};
        targets_["__LABEL__"] = {TargetKind::kColumn, column, 1};
      }
    } else if (name == "instance_weight") {
      weight_ = column;
      if (!is_instance) targets_[name] = {TargetKind::kColumn, column, 1};
    } else {
      if (is_instance && name == "value") value_ = column;
      targets_[name] = {TargetKind::kColumn, column, 1};
    }
  }
  if (!lines_.empty() && !is_instance) targets_["__LINE_ID__"] = {TargetKind::kLineId, -1, 1};
}

bool RecordDecoder::find_line_field(const std::string& name, int32_t column) {
  for (const LineName& line : kLineNames) {
    if (line.name != name) continue;
    line_fields_[line.field] = {column, line.number, line.is_repeated};
    lines_.push_back(column);
    ColumnSpec& spec = specs_[static_cast<size_t>(column)];
    if (name == "sample_rate" && !spec.has_fill) {  // the default of the message
      spec.has_fill = true;
      spec.fill = 1;
    }
    return true;
  }
  return false;
}

// slot_{n} and fc_slot_{n} are the flat fids of slot n.
bool RecordDecoder::find_slot(const std::string& name, int32_t column) {
  std::string_view digits = name;
  if (digits.starts_with("fc_")) digits.remove_prefix(3);
  if (!digits.starts_with("slot_")) return false;
  digits.remove_prefix(5);
  uint32_t slot = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), slot);
  if (error != std::errc() || end != digits.data() + digits.size()) return false;
  if (slot >= slot_columns_.size()) return false;
  if (!specs_[static_cast<size_t>(column)].is_ids) return false;
  if (slot_columns_[slot] >= 0) {
    throw std::invalid_argument("[RecordDecoder] expected one column of slot " +
                                std::to_string(slot) + ", got two");
  }
  slot_columns_[slot] = column;
  slots_.push_back(column);
  targets_[name] = {TargetKind::kColumn, column, 0};
  return true;
}

const RecordDecoder::Target& RecordDecoder::target_of(Wire name, size_t position) {
  static const Target kNoTarget;
  const std::string_view text(reinterpret_cast<const char*>(name.at), name.left());
  if (position < expected_.size()) {
    const std::string_view previous(expected_[position].name);
    if (previous.size() == text.size() + kNamePrefix && previous.ends_with(text)) {
      return expected_[position].target;
    }
  }
  const auto entry = targets_.find(std::string(text));
  const Target& target = entry == targets_.end() ? kNoTarget : entry->second;
  if (position >= kMaxExpected || text.size() > kMaxName) return target;
  if (position >= expected_.size()) expected_.resize(position + 1);
  num_expected_ = expected_.size();
  const char prefix[kNamePrefix] = {1 << 3 | kBytesType, static_cast<char>(text.size())};
  expected_[position] = {std::string(prefix, kNamePrefix).append(text), target};
  return expected_[position].target;
}

void RecordDecoder::begin_block() {
  columns_ = RecordColumns(specs_);
  num_copies_ = 0;
  columns_.ensure_rows(rows_before_);
  for (size_t i = 0; i < specs_.size(); ++i) columns_.columns[i].ids.reserve(ids_before_[i]);
}

RecordBlock RecordDecoder::decode(const uint8_t* data, size_t size) {
  RecordBlock block;
  begin_block();
  cells_.readable_end = data + size;
  while (block.consumed < size && columns_.num_rows < kBlockRows && num_copies_ < kBlockCopies) {
    const uint8_t* at = data + block.consumed;
    const Frame frame = read_frame(at, size - block.consumed, frames_);
    if (frame.state == Frame::State::kIncomplete) {
      block.needed = frame.needed;
      break;
    }
    RecordError error{frame.fault,
                      at + frame.at,
                      "frame",
                      nullptr,
                      static_cast<int64_t>(frames_.max_bytes),
                      static_cast<int64_t>(frame.got)};
    if (frame.state == Frame::State::kBroken) {
      block.broken = describe(error).first;
      block.broken_at = block.consumed + frame.at;
      break;
    }
    if (frame.fault != Fault::kNone) {
      error.expected = frames_.record_type;
      add_bad(block, data, error, -1);
    } else {
      add_record(block, data, frame.record, frame.data_source_key);
    }
    ++block.num_records;
    block.consumed += frame.size;
    if (options_.stops_at_error && !block.bad.empty()) break;
  }
  for (size_t i = 0; i < specs_.size(); ++i) ids_before_[i] = columns_.columns[i].ids.size();
  rows_before_ = columns_.num_rows;
  block.columns = std::move(columns_);
  return block;
}

std::vector<std::pair<size_t, size_t>> RecordDecoder::spans(const uint8_t* data, size_t size,
                                                            size_t most) const {
  std::vector<std::pair<size_t, size_t>> extents;
  for (size_t at = 0; at < size && extents.size() < most;) {
    const Frame frame = read_frame(data + at, size - at, frames_);
    if (frame.state != Frame::State::kRecord) break;
    const auto begin = static_cast<size_t>(frame.record.at - data);
    if (frame.fault == Fault::kNone) extents.emplace_back(begin, begin + frame.record.left());
    at += frame.size;
  }
  return extents;
}

RecordBlock RecordDecoder::decode_split(const uint8_t* data, const int64_t* splits, size_t n) {
  RecordBlock block;
  begin_block();
  cells_.readable_end = data + splits[n];
  for (size_t i = 0; i < n; ++i) {
    add_record(block, data, {data + splits[i], data + splits[i + 1]}, 0);
    ++block.num_records;
    if (options_.stops_at_error && !block.bad.empty()) break;
  }
  block.columns = std::move(columns_);
  return block;
}

void RecordDecoder::add_record(RecordBlock& block, const uint8_t* data, Wire record, uint32_t key) {
  const size_t rows = columns_.num_rows;
  data_source_key_ = key;
  bad_rows_.clear();
  if (!parse_record(record)) [[unlikely]] {
    columns_.roll_back(rows);
    add_bad(block, data, cells_.error, -1);
    return;
  }
  for (const BadRow& bad : bad_rows_) {
    add_bad(block, data, bad.error, static_cast<int64_t>(bad.row));
    if (options_.stops_at_error) break;
  }
}

void RecordDecoder::add_bad(RecordBlock& block, const uint8_t* data, const RecordError& error,
                            int64_t row) const {
  auto [text, reason] = describe(error);
  block.bad.push_back({block.num_records, static_cast<size_t>(error.at - data), row,
                       std::move(text), std::move(reason)});
}

bool RecordDecoder::parse_record(Wire record) {
  if (options_.type == RecordType::kExampleBatch) return parse_example_batch(record);
  columns_.ensure_rows(columns_.num_rows + 1);
  cells_.next_cell(columns_.num_rows);
  switch (options_.type) {
    case RecordType::kInstance:
      return parse_instance(record) && finish_row(record);
    case RecordType::kTfExample:
      return parse_tf_example(record) && finish_row(record);
    default:
      return parse_example(record) && finish_row(record);
  }
}

// Ends the cells that fields of the record started, and fills the other cells.
bool RecordDecoder::finish_row(Wire record) {
  for (const int32_t slot : slots_) {
    if (!cells_.finish(column_of(slot), record.at, "Instance.fid")) return false;
  }
  for (const int32_t typed : {label_, weight_, value_}) {
    if (typed < 0 || !cells_.is_started(column_of(typed))) continue;
    if (!cells_.finish(column_of(typed), record.at, "label")) return false;
  }
  for (const int32_t line : lines_) {
    if (!cells_.is_started(column_of(line))) continue;
    if (!cells_.finish(column_of(line), record.at, "line_id")) return false;
  }
  if (key_ >= 0) {
    cells_.append_id(column_of(key_), data_source_key_);
    cells_.finish(column_of(key_), record.at, "data_source_key");
  }
  if (cells_.num_started() != awaited_.size()) {
    for (const int32_t number : awaited_) {
      Column& column = column_of(number);
      if (cells_.is_started(column)) continue;
      cells_.start(column);
      if (!cells_.finish(column, record.at, "record")) return false;
    }
  }
  ++columns_.num_rows;
  return true;
}

}  // namespace monolith
