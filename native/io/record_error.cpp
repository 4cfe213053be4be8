// Formats the errors of records.
#include <string>
#include <utility>

#include "io/cell_writer.h"

namespace monolith {

namespace {

struct Words {
  std::string expected, got;
};

// The expected value without numbers of the record, and the actual value.
Words words_of(const RecordError& error) {
  const std::string expected = std::to_string(error.expected), got = std::to_string(error.got);
  switch (error.fault) {
    case Fault::kTruncated:
      return {"a whole number", "the end of the message"};
    case Fault::kVarint:
      return {"a varint of at most 10 bytes", "a longer one"};
    case Fault::kLength:
      return {"a length within the message", "one beyond its " + expected + " bytes"};
    case Fault::kTag:
      return {"a field number from 1 to 536870911", "another"};
    case Fault::kWireType:
      return {"the field's wire type", "another"};
    case Fault::kGroup:
      return {"a group with its end", "none, or too many inside each other"};
    case Fault::kPacked:
      return {"whole packed numbers", "a part of one"};
    case Fault::kPayload:
      return {error.column != nullptr && error.column->is_ids ? "ids" : "numbers",
              error.column != nullptr && error.column->is_ids ? "floats" : "strings or fids"};
    case Fault::kMissing:
      return {error.expected == 1 ? "a value" : expected + " values", "none"};
    case Fault::kCount:
      return {error.expected == 1 ? "one value" : expected + " values", got};
    case Fault::kBatchSize:
      return {"a batch_size of at least 0", got};
    case Fault::kRows:
      return {"as many features as the batch has rows", got + " for " + expected + " rows"};
    case Fault::kTooLarge:
      return {"at most " + expected + " rows or values", got};
    case Fault::kRecordLength:
      return {"a length of at most " + expected + " bytes",
              std::to_string(static_cast<uint64_t>(error.got)) +
                  "; check the framing: lagrangex_header, kafka_dump_prefix, has_sort_id, "
                  "kafka_dump, TFRecord, compression"};
    case Fault::kChecksum:
      return {"the checksum of the record's bytes", "another"};
    case Fault::kLengthChecksum:
      return {"the checksum of the record's length", "another; is it a TFRecord file?"};
    case Fault::kRecordType:
      return {"records of type " + expected, "type " + got};
    default:
      return {"a good record", "another"};
  }
}

}  // namespace

std::pair<std::string, std::string> describe(const RecordError& error) {
  std::string where = error.field;
  if (error.column != nullptr) where += " (column '" + error.column->spec.name + "')";
  if (error.fault == Fault::kMark) return {"DEADBEEF value found", "DEADBEEF value found"};
  const Words words = words_of(error);
  const std::string expected = where + ": expected " + words.expected;
  return {expected + ", got " + words.got, expected};
}

}  // namespace monolith
