#include "table/table.h"

namespace monolith {

Table::Table(const TableSpec& spec)
    : name_(spec.name),
      layout_(spec.segments, spec.seed),
      non_finite_(spec.non_finite),
      clip_value_(spec.clip_value),
      arena_(memory_, epochs_, layout_.row_bytes()),
      index_(memory_, epochs_, spec.first_version) {}

}  // namespace monolith
