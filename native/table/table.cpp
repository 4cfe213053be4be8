#include "table/table.h"

namespace monolith {

Table::Table(const TableSpec& spec)
    : name_(spec.name),
      layout_(spec.segments, spec.seed, !spec.is_serving),
      is_serving_(spec.is_serving),
      non_finite_(spec.non_finite),
      clip_value_(spec.clip_value),
      arena_(memory_, epochs_, layout_.row_bytes()),
      index_(memory_, epochs_, spec.first_version) {}

}  // namespace monolith
