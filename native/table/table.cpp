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
      layout_(spec.segments, spec.seed, !spec.is_serving),
      is_serving_(spec.is_serving),
      non_finite_(spec.non_finite),
      clip_value_(spec.clip_value),
      expiry_days_(spec.expiry_days, spec.expiry_slots),
      budget_policy_(spec.budget_policy),
      memory_(spec.budget_bytes, sizeof(Table)),
      arena_(memory_, epochs_, layout_.row_bytes()),
      index_(memory_, epochs_, random_salt(), spec.first_version),
      log_(memory_, spec.log_bytes),
      cuts_(spec.first_generation),
      recorder_(spec.records ? std::make_unique<Recorder>() : nullptr) {
  if (spec.admission.kind == AdmissionKind::kNone) return;
  if (!memory_.try_use(sizeof(Admission))) throw OverBudget();
  admission_ =
      std::make_unique<Admission>(memory_, cuts_, spec.admission, spec.seed, index_.salt());
}

}  // namespace monolith
