#include "table/group.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>

#include "table/share.h"

namespace monolith {
namespace {

// The counts of tables that are stepped concurrently.
class CountSum {
 public:
  void add(const AppliedCounts& counts) noexcept {
    applied_ += counts.applied;
    inserted_ += counts.inserted;
    refused_ += counts.refused;
    skipped_ += counts.skipped;
  }
  AppliedCounts get() const noexcept { return {applied_, inserted_, refused_, skipped_}; }

 private:
  std::atomic<uint64_t> applied_{0}, inserted_{0}, refused_{0}, skipped_{0};
};

}  // namespace

std::vector<TableGroup::Part> TableGroup::parts_of(const Keys& keys,
                                                   const uint8_t* are_stepped) const {
  const int64_t* splits = keys.splits;
  const size_t num_tables = tables_.size();
  if (splits[0] != 0 || splits[num_tables] != static_cast<int64_t>(keys.num_keys) ||
      !std::is_sorted(splits, splits + num_tables + 1)) {
    throw std::invalid_argument("[TableGroup] expected row_splits from 0 to " +
                                std::to_string(keys.num_keys) + ", ascending, got others");
  }
  std::vector<Part> parts;
  size_t first_float = 0, first_segment = 0;
  for (size_t t = 0; t < num_tables; ++t) {
    Table* table = tables_[t];
    const auto n = static_cast<size_t>(splits[t + 1] - splits[t]);
    if (n > 0 || (are_stepped != nullptr && are_stepped[t] != 0)) {
      parts.push_back({table, keys.keys + splits[t], n, first_float, first_segment, t});
    }
    first_float += n * table->layout().dim();
    first_segment += table->layout().segments().size();
  }
  return parts;
}

void TableGroup::lookup(const Keys& keys, float* out, bool initial, const float* scales,
                        unsigned threads) const {
  share(in_pieces(parts_of(keys)), threads, [&](const Part& part, unsigned members) {
    part.table->lookup(part.keys, part.n, out + part.first_float, initial,
                       scales + part.first_segment, members);
  });
}

void TableGroup::assign(const Keys& keys, const float* values, uint32_t now, unsigned threads) {
  share(parts_of(keys), threads, [&](const Part& part, unsigned members) {
    part.table->assign(part.keys, part.n, values + part.first_float, now, members);
  });
}

void TableGroup::assign_add(const Keys& keys, const float* values, uint32_t now, unsigned threads) {
  share(parts_of(keys), threads, [&](const Part& part, unsigned members) {
    part.table->assign_add(part.keys, part.n, values + part.first_float, now, members);
  });
}

void TableGroup::check_finite(const std::vector<Part>& parts, const float* grads,
                              unsigned threads) {
  share(parts, threads, [&](const Part& part, unsigned members) {
    part.table->check_finite(grads + part.first_float, part.n, members);
  });
}

AppliedCounts TableGroup::apply_gradients(const Keys& keys, const float* grads,
                                          const Table::StepOptions& options, uint32_t now,
                                          unsigned threads) {
  const std::vector<Part> parts = parts_of(keys);
  check_finite(parts, grads, threads);
  CountSum sum;
  share(parts, threads, [&](const Part& part, unsigned members) {
    const Table::StepOptions own{options.rates + part.first_segment,
                                 options.scales + part.first_segment, options.step};
    sum.add(part.table->apply_gradients(part.keys, part.n, grads + part.first_float, own, now,
                                        members));
  });
  return sum.get();
}

AppliedCounts TableGroup::push(const Push& push, unsigned threads) {
  const std::vector<Part> parts = parts_of(push.keys, push.are_stepped);
  check_finite(parts, push.grads, threads);
  CountSum sum;
  share(parts, threads, [&](const Part& part, unsigned members) {
    const Table::StepOptions own{push.rates + part.first_segment, push.scales + part.first_segment,
                                 static_cast<int64_t>(part.table->num_update_calls())};
    const size_t first_key = part.keys - push.keys.keys;
    sum.add(part.table->apply_gradients(part.keys, part.n, push.grads + part.first_float, own,
                                        static_cast<uint32_t>(push.times[part.number]), members,
                                        push.counts + first_key));
  });
  return sum.get();
}

void step_tables(const std::vector<TableStep>& steps, unsigned threads) {
  share(steps, threads, [](const TableStep& step, unsigned members) {
    const auto number = static_cast<int64_t>(step.table->num_update_calls());
    const AppliedCounts counts = step.table->apply_bag_gradients(
        *step.sum, {step.rates, nullptr, number}, step.now, members);
    if (step.counts != nullptr) *step.counts = counts;
    if (step.is_done != nullptr) *step.is_done = 1;
  });
}

}  // namespace monolith
