#include "io/arrow_block.h"

#include <charconv>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace monolith {
namespace {

constexpr std::string_view kInt64 = "l", kFloat = "f", kList = "+l", kFixedList = "+w:";

// Returns the common name of a format.
std::string type_name(std::string_view format) {
  static constexpr std::pair<std::string_view, const char*> kNames[] = {
      {"l", "int64"},  {"f", "float"},  {"i", "int32"},   {"g", "double"},      {"L", "uint64"},
      {"b", "bool"},   {"u", "string"}, {"+l", "list"},   {"+L", "large_list"}, {"+s", "struct"},
      {"I", "uint32"}, {"e", "half"},   {"+vl", "views"},
  };
  for (const auto& [known, name] : kNames) {
    if (format == known) return name;
  }
  return "format '" + std::string(format) + "'";
}

[[noreturn]] void refuse(const std::string& name, const std::string& expected,
                         const std::string& got) {
  throw std::invalid_argument("[data] expected column '" + name + "' of a block " + expected +
                              ", got " + got);
}

std::string list_name(const ArrowSchema& schema) {
  const std::string name = type_name(schema.format);
  return schema.n_children == 1 ? name + " of " + type_name(schema.children[0]->format) : name;
}

// Refuses nulls in [first, first + count).
void check_whole(const std::string& name, const ArrowArray& array, size_t first, size_t count) {
  if (array.null_count == 0 || array.n_buffers == 0 || array.buffers[0] == nullptr) return;
  const auto* bits = static_cast<const uint8_t*>(array.buffers[0]);
  size_t num_missing = 0;
  for (size_t i = first; i < first + count; ++i) num_missing += (bits[i / 8] >> (i % 8) & 1) == 0;
  if (num_missing > 0) {
    refuse(name, "without missing values", std::to_string(num_missing) + " missing ones");
  }
}

void check_length(const std::string& name, const ArrowArray& array, size_t length) {
  if (array.length < 0 || array.offset < 0 || static_cast<size_t>(array.length) < length) {
    refuse(name, "of " + std::to_string(length) + " values", std::to_string(array.length));
  }
}

template <typename T>
const T* buffer(const ArrowArray& array, int64_t number, size_t first) {
  const auto* values =
      number < array.n_buffers ? static_cast<const T*>(array.buffers[number]) : nullptr;
  return values == nullptr ? nullptr : values + first;
}

// Without an early end, so that the compiler makes vectors of it.
bool is_ascending(const int32_t* offsets, size_t n) {
  bool is_back = false;
  for (size_t i = 1; i < n; ++i) is_back |= offsets[i] < offsets[i - 1];
  return !is_back;
}

size_t width_of(const std::string& name, std::string_view format) {
  size_t width = 0;
  const std::string_view digits = format.substr(kFixedList.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), width);
  if (error != std::errc() || end != digits.data() + digits.size() || width == 0) {
    refuse(name, "with lists of a fixed size from 1 on", type_name(format));
  }
  return width;
}

}  // namespace

ArrowBlock::ArrowBlock(const BlockNames& names, const ArrowArray& array, const ArrowSchema& schema)
    : num_rows_(static_cast<size_t>(array.length)), first_row_(static_cast<size_t>(array.offset)) {
  std::unordered_map<std::string_view, size_t> numbers;
  for (int64_t i = 0; i < schema.n_children; ++i) {
    numbers.emplace(schema.children[i]->name, static_cast<size_t>(i));
  }
  const auto find = [&](const std::string& name) {
    const auto number = numbers.find(name);
    if (number == numbers.end()) {
      throw std::invalid_argument("[data] expected a column '" + name +
                                  "' in a block, got none; what changes blocks must keep it");
    }
    return number->second;
  };
  for (const std::string& name : names.ids) {
    const size_t i = find(name);
    ids_.push_back(ids_of(name, *array.children[i], *schema.children[i]));
  }
  for (const std::string& name : names.floats) {
    const size_t i = find(name);
    floats_.push_back(floats_of(name, *array.children[i], *schema.children[i]));
  }
  for (const std::string& name : names.times) {
    const size_t i = find(name);
    const Ids times = ids_of(name, *array.children[i], *schema.children[i]);
    if (times.offsets != nullptr) refuse(name, "of int64", list_name(*schema.children[i]));
    times_.push_back(times.values);
  }
}

ArrowBlock::Ids ArrowBlock::ids_of(const std::string& name, const ArrowArray& array,
                                   const ArrowSchema& schema) const {
  check_length(name, array, first_row_ + num_rows_);
  const size_t first = static_cast<size_t>(array.offset) + first_row_;
  if (schema.format == kInt64) {
    check_whole(name, array, first, num_rows_);
    return {buffer<int64_t>(array, 1, first), nullptr};
  }
  if (schema.format != kList || schema.children[0]->format != kInt64) {
    refuse(name, "of int64, or lists of it", list_name(schema) + "; cast it");
  }
  check_whole(name, array, first, num_rows_);
  // Without rows there may be no offsets.
  static constexpr int32_t kNoRows[1] = {0};
  const int32_t* offsets = num_rows_ == 0 ? kNoRows : buffer<int32_t>(array, 1, first);
  const ArrowArray& items = *array.children[0];
  const int64_t begin = offsets[0], end = offsets[num_rows_];
  if (begin < 0 || end > items.length || !is_ascending(offsets, num_rows_ + 1)) {
    refuse(name, "with lists that follow each other in " + std::to_string(items.length) + " values",
           "others");
  }
  const auto first_item = static_cast<size_t>(items.offset);
  check_whole(name, items, first_item + static_cast<size_t>(begin),
              static_cast<size_t>(end - begin));
  return {buffer<int64_t>(items, 1, first_item), offsets};
}

ArrowBlock::Floats ArrowBlock::floats_of(const std::string& name, const ArrowArray& array,
                                         const ArrowSchema& schema) const {
  check_length(name, array, first_row_ + num_rows_);
  const size_t first = static_cast<size_t>(array.offset) + first_row_;
  const std::string_view format = schema.format;
  if (format == kFloat) {
    check_whole(name, array, first, num_rows_);
    return {buffer<float>(array, 1, first), 0};
  }
  if (!format.starts_with(kFixedList) || schema.children[0]->format != kFloat) {
    refuse(name, "of float, or lists of a fixed size of it", list_name(schema) + "; cast it");
  }
  const size_t width = width_of(name, format);
  check_whole(name, array, first, num_rows_);
  const ArrowArray& items = *array.children[0];
  check_length(name, items, (first + num_rows_) * width);
  const size_t first_item = static_cast<size_t>(items.offset) + first * width;
  check_whole(name, items, first_item, num_rows_ * width);
  return {buffer<float>(items, 1, first_item), width};
}

}  // namespace monolith
