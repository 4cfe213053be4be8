// Decodes framed records into columns, many in one pass: Monolith's Example, ExampleBatch and
// Instance, and tf.train.Example.
//
// Features are found by name; a record whose features are in the order of the previous record needs
// one comparison per feature. Not thread-safe; blocks are independent of their decoder.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/cell_writer.h"
#include "io/frames.h"
#include "io/record_columns.h"

namespace monolith {

enum class RecordType : uint8_t { kInstance = 1, kExampleBatch = 2, kExample = 3, kTfExample = 4 };

struct DecoderOptions {
  RecordType type = RecordType::kExample;
  bool keeps_fid_v1 = false;
  bool stops_at_error = true;  // otherwise bad records are skipped
};

// An error of a record, or of one row of a batch.
struct BadRecord {
  size_t record;       // number of the record in the block
  size_t at;           // offset of the error in the data
  int64_t row;         // row of the block, which keeps its values; -1 if the record has no rows
  std::string text;    // message with its numbers
  std::string reason;  // message without numbers
};

struct RecordBlock {
  RecordColumns columns;
  size_t num_records = 0;
  size_t consumed = 0;  // bytes of complete frames
  size_t needed = 0;    // bytes that the next frame requires; 0 if unknown or broken
  std::string broken;   // error of the frame after the consumed bytes, or empty
  size_t broken_at = 0;
  std::vector<BadRecord> bad;
};

class RecordDecoder {
 public:
  RecordDecoder(const std::vector<ColumnSpec>& specs, const DecoderOptions& options,
                const FrameOptions& frames);

  // Decodes the complete frames at the start of the data, which is borrowed. A broken frame ends
  // the block.
  RecordBlock decode(const uint8_t* data, size_t size);

  // Returns begin and end of the first complete records, at most `most`; skips records that cannot
  // be trusted.
  std::vector<std::pair<size_t, size_t>> spans(const uint8_t* data, size_t size, size_t most) const;

  // Decodes records without frames: record i is data[splits[i] .. splits[i + 1]). `splits`: (n +
  // 1,).
  RecordBlock decode_split(const uint8_t* data, const int64_t* splits, size_t n);

 private:
  enum class TargetKind : uint8_t { kNothing, kColumn, kLineId };
  struct Target {
    TargetKind kind = TargetKind::kNothing;
    int32_t column = -1;
    int priority = 0;
  };
  struct ExpectedFeature {
    std::string name;  // the name as a field: tag, length, bytes
    Target target;
  };

  void find_targets();
  bool find_line_field(const std::string& name, int32_t column);
  bool find_slot(const std::string& name, int32_t column);
  void begin_block();
  void add_record(RecordBlock& block, const uint8_t* data, Wire record, uint32_t key);
  void add_bad(RecordBlock& block, const uint8_t* data, const RecordError& error,
               int64_t row) const;
  const Target& target_of(Wire name, size_t position);

  bool parse_record(Wire record);
  bool parse_example(Wire record);
  bool parse_tf_example(Wire record);
  bool parse_instance(Wire record);
  bool parse_example_batch(Wire record);
  bool finish_row(Wire record);

  bool parse_tf_features(Wire map, size_t& position);
  bool parse_named_feature(const Wire& entry, size_t position) {
    // The usual entry: the name from the previous record, and a list of numbers.
    if (position < num_expected_ && starts_with(entry, expected_[position].name)) [[likely]] {
      Wire rest{entry.at + expected_[position].name.size(), entry.end}, list;
      const uint32_t payload = rest.packed_feature(list);
      if (payload != 0 && rest.is_done()) [[likely]]
        return parse_packed(expected_[position].target, payload, list);
    }
    return parse_any_named_feature(entry, position);
  }
  static bool starts_with(const Wire& wire, const std::string& begin) noexcept;
  bool parse_packed(const Target& target, uint32_t payload, const Wire& list) {
    const int8_t number = packed_numbers_[payload];
    if (target.kind == TargetKind::kColumn && number >= 0 &&
        cells_.put_one(column_of(target.column), target.priority, static_cast<Number>(number),
                       list)) [[likely]]
      return true;
    return parse_any_packed(target, payload, list);
  }
  bool parse_any_packed(const Target& target, uint32_t payload, const Wire& list);
  void find_packed_numbers();
  bool parse_any_named_feature(Wire entry, size_t position);
  bool parse_parts(const Target& target, Wire last, const std::vector<Wire>& before);
  bool parse_feature(Column& column, Wire feature, uint32_t& payload);
  bool parse_tf_feature(Column& column, Wire feature, uint32_t& payload);
  bool parse_line_id(Wire message, int priority);
  bool parse_line_feature(Wire feature);
  bool parse_typed_floats(int32_t column, Wire& wire, uint32_t tag, const char* field);
  bool parse_key(Wire& wire, uint32_t tag, const char* field);

  bool parse_flat_fids(Wire& wire, uint32_t tag);
  bool parse_instance_feature(Wire message, size_t position);
  bool parse_instance_payload(Column& column, Wire message, uint32_t payload);
  bool parse_quantized(Column& column, Wire bytes);

  bool parse_named_list(Wire list, size_t position);
  bool parse_list_features(const Target& target, Wire list);
  bool parse_list_feature(const Target& target, Wire feature);
  bool is_bad_row();
  bool finish_line_cells(const uint8_t* at);
  bool begin_list(const Target& target);
  void clear_list(Column& column);
  bool add_copies(Column& column, const uint8_t* at, size_t count);
  void end_list(const Target& target, int64_t rows, bool is_shared);
  bool finish_batch(const uint8_t* end, int64_t batch_size);
  bool finish_list(Column& column, const uint8_t* end, size_t batch_size);
  bool share(Column& column, const uint8_t* end, size_t batch_size);
  bool fill_column(Column& column, const uint8_t* end, size_t batch_size);

  Column& column_of(int32_t number) { return columns_.columns[static_cast<size_t>(number)]; }

  std::vector<ColumnSpec> specs_;
  DecoderOptions options_;
  FrameOptions frames_;
  std::unordered_map<std::string, Target> targets_;
  std::vector<ExpectedFeature> expected_;
  size_t num_expected_ = 0;
  std::array<int8_t, 16> packed_numbers_;   // Number of each payload that is one list, or -1
  std::array<int32_t, 1024> slot_columns_;  // by slot of a fid v1; -1 if not requested
  struct LineField {
    int32_t column = -1;  // -1 if not requested
    Number number = Number::kVarint;
    bool is_repeated = false;
  };
  std::array<LineField, 256> line_fields_;  // by number in LineId
  std::vector<int32_t> slots_, lines_;      // columns of slots and of LineId fields
  int32_t label_ = -1, weight_ = -1, value_ = -1, key_ = -1;
  std::vector<int32_t>
      awaited_;  // columns that get their fill in a record that does not start them
  std::vector<size_t> ids_before_;  // number of ids of each column in the previous block
  size_t rows_before_ = 0;
  size_t num_copies_ = 0;  // values of the block that were copied from shared lists and fills

  // State of the record that is being read.
  RecordColumns columns_;
  CellWriter cells_;
  uint32_t data_source_key_ = 0;
  struct BadRow {
    RecordError error;
    size_t row;
  };
  std::vector<BadRow> bad_rows_;
  std::vector<Wire> parts_;
};

}  // namespace monolith
