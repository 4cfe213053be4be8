#include "table/table.h"

#include <random>

namespace monolith {
namespace {

uint64_t random_salt() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

}  // namespace

Table::Table(const TableSpec& spec)
    : name_(spec.name),
      layout_(spec.segments, spec.seed),
      non_finite_(spec.non_finite),
      clip_value_(spec.clip_value),
      arena_(memory_, epochs_, layout_.row_bytes()),
      index_(memory_, epochs_, random_salt(), spec.first_version) {}

}  // namespace monolith
