#include "table/features.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "table/copy.h"
#include "table/group.h"
#include "table/share.h"

namespace monolith {
namespace {

constexpr size_t kRangeKeys = 2048;  // keys that a thread reads at once
constexpr size_t kRangeBags = 4096;
constexpr size_t kAllBags = SIZE_MAX;  // of a feature, its distinct keys once
constexpr size_t kRangeSamples = 512;
constexpr size_t kPieceIds = 4096;
constexpr size_t kDense = SIZE_MAX;  // in place of a feature

// Some bags of a feature.
struct Range {
  size_t feature, first, last;
};

// Whether to look at the bags one by one: they may have one key each, and are not too many or few.
bool may_be_single(const Bags& bags) noexcept {
  constexpr size_t kLeast = 64;
  return bags.num_bags == bags.num_keys && bags.num_keys >= kLeast &&
         bags.num_keys <= DistinctKeys::kMost;
}

void add_ranges(std::vector<Range>& ranges, size_t feature, const Bags& bags) {
  for (size_t first = 0; first < bags.num_bags;) {
    const size_t key = bags.begin(first) + kRangeKeys;
    size_t last = key < bags.num_keys ? bags.bag_from(key) : bags.num_bags;
    last = std::clamp(last, first + 1, std::min(first + kRangeBags, bags.num_bags));
    ranges.push_back({feature, first, last});
    first = last;
  }
}

// Where the ids of each column begin, and the end of all; one behind the ids, if that is further.
std::vector<size_t> starts_of(const JoinedIds& ids) {
  std::vector<size_t> starts{0};
  starts.reserve(ids.num_columns + 1);
  for (size_t column = 0; column < ids.num_columns; ++column) {
    // A negative or absurd number is more than are left.
    const auto count = static_cast<size_t>(ids.splits[column * ids.stride + ids.batch]);
    starts.push_back(starts.back() + std::min(count, ids.num_ids + 1 - starts.back()));
  }
  return starts;
}

// Of each feature; one that is not among the ids has more than any splits say.
std::vector<IdColumn> columns_of(const JoinedIds& ids, size_t num_features) {
  const std::vector<size_t> starts = starts_of(ids);
  std::vector<IdColumn> columns;
  columns.reserve(num_features);
  for (size_t f = 0; f < num_features; ++f) {
    const size_t column = ids.columns == nullptr ? f : ids.columns[f];
    const size_t first = starts[column], last = starts[column + 1];
    columns.push_back({ids.ids + first, last > ids.num_ids ? SIZE_MAX : last - first,
                       ids.splits + column * ids.stride});
  }
  return columns;
}

void copy_ids(const IdColumn& ids, size_t first, size_t count, int64_t* to) noexcept {
  if (ids.is_narrow) {
    std::copy_n(static_cast<const int32_t*>(ids.ids) + first, count, to);
  } else {
    std::copy_n(static_cast<const int64_t*>(ids.ids) + first, count, to);
  }
}

size_t bags_per_row(const Feature& feature) noexcept {
  return feature.is_block ? feature.max_length : 1;
}

// Tables that follow each other, as many as have few keys, with memory for their sums.
struct Run {
  size_t first, last;
  size_t n;  // keys, and what the tables cost
  std::pmr::monotonic_buffer_resource* memory;
};

void add_table(std::vector<Run>& runs, size_t table, size_t num_keys) {
  constexpr size_t kRunCost = 512;
  const size_t cost = num_keys + kPartKeys;
  if (!runs.empty() && runs.back().n + cost <= kRunCost) {
    runs.back().last = table;
    runs.back().n += cost;
  } else {
    runs.push_back({table, table, cost, nullptr});
  }
}

}  // namespace

FeatureKeys::FeatureKeys(std::span<const Feature> features, std::span<const IdColumn> ids,
                         size_t batch, unsigned threads)
    : batch_(batch) {
  bags_.reserve(features.size());
  Checked checked;
  std::vector<Source> sources;
  for (size_t f = 0; f < features.size(); ++f) add(features[f], ids[f], checked, sources);
  copy(sources, threads);
}

FeatureKeys::FeatureKeys(std::span<const Feature> features, const JoinedIds& ids, unsigned threads)
    : FeatureKeys(features, columns_of(ids, features.size()), ids.batch, threads) {
  const size_t end = starts_of(ids).back();
  if (end != ids.num_ids) {
    throw std::invalid_argument("[Features.lookup] expected " + std::to_string(ids.num_ids) +
                                " ids in the rows of all features, got " + std::to_string(end));
  }
}

DistinctKeys& FeatureKeys::note_distinct(size_t feature, const Table& table,
                                         DistinctKeys::Scratch& scratch) {
  DistinctKeys& made = distinct_[feature];
  const Bags& bags = bags_[feature];
  if (made.size() == 0) {
    made = DistinctKeys(bags.keys, bags.num_keys, table.salt(), table.index_depth(), scratch);
  }
  return made;
}

void FeatureKeys::add(const Feature& feature, const IdColumn& ids, Checked& checked,
                      std::vector<Source>& sources) {
  if (ids.splits != checked.splits || ids.num_ids != checked.num_ids) {
    checked = {ids.splits, ids.num_ids, copy_of_splits(feature, ids)};
  }
  Bags bags{nullptr, ids.num_ids, checked.copy, batch_, feature.mode, nullptr, 1};
  if (feature.is_apart)
    bags = {nullptr, ids.num_ids, nullptr, ids.num_ids, feature.mode, nullptr, 1};
  if (feature.max_length > 0) {
    bags = limited(feature, bags, ids);
  } else {
    sources.push_back({bags_.size(), &ids});
  }
  bags_.push_back(bags);
  num_keys_ += bags.num_keys;
}

// Null: each bag is one id. They are checked in our memory, for nobody knows who writes the other.
const int64_t* FeatureKeys::copy_of_splits(const Feature& feature, const IdColumn& ids) {
  Bags bags{nullptr, ids.num_ids, ids.splits, batch_, feature.mode, nullptr};
  if (bags.are_single() && ids.splits[batch_] == static_cast<int64_t>(batch_)) return nullptr;
  int64_t* splits = own(batch_ + 1);
  std::copy_n(ids.splits, batch_ + 1, splits);
  bags.row_splits = splits;
  if (!bags.are_splits_valid()) {
    throw std::invalid_argument(
        "[Features.lookup] expected row_splits that ascend from 0 to the number of ids, got "
        "others (feature '" +
        feature.name + "')");
  }
  return splits;
}

void FeatureKeys::copy(std::span<const Source> sources, unsigned threads) {
  struct Piece {
    const IdColumn* from;
    size_t first, last;
    int64_t* to;
  };
  size_t num_ids = 0;
  for (const Source& source : sources) num_ids += source.ids->num_ids;
  int64_t* to = own(num_ids);
  std::vector<Piece> pieces;
  for (const auto& [feature, ids] : sources) {
    bags_[feature].keys = to;
    for (size_t first = 0; first < ids->num_ids; first += kPieceIds) {
      const size_t last = std::min(first + kPieceIds, ids->num_ids);
      pieces.push_back({ids, first, last, to + first});
    }
    to += ids->num_ids;
  }
  std::atomic<size_t> next{0};
  const auto most = static_cast<unsigned>(std::min<size_t>(threads, pieces.size()));
  Team::run(most, [&](Team&, unsigned) {
    for (size_t p; (p = next++) < pieces.size();) {
      copy_ids(*pieces[p].from, pieces[p].first, pieces[p].last - pieces[p].first, pieces[p].to);
    }
  });
}

// A block is max_length bags for each sample, of one id or none.
Bags FeatureKeys::limited(const Feature& feature, const Bags& all, const IdColumn& ids) {
  const size_t limit = feature.max_length, per_row = bags_per_row(feature);
  const size_t num_bags = all.num_bags * per_row;
  int64_t *keys = own(all.num_keys), *splits = own(num_bags + 1);
  size_t num_keys = 0;
  *splits = 0;
  for (size_t sample = 0; sample < all.num_bags; ++sample) {
    const size_t count = std::min(limit, all.end(sample) - all.begin(sample));
    copy_ids(ids, all.begin(sample), count, keys + num_keys);
    for (size_t place = 1; place <= per_row; ++place) {
      const size_t taken = feature.is_block ? std::min(place, count) : count;
      splits[sample * per_row + place] = static_cast<int64_t>(num_keys + taken);
    }
    num_keys += count;
  }
  return {keys, num_keys, splits, num_bags, all.mode, nullptr};
}

FeatureTables::FeatureTables(std::vector<Table*> tables, std::vector<Feature> features)
    : tables_(std::move(tables)), features_(std::move(features)) {
  for (size_t t = 0, f = 0; t <= tables_.size(); ++t) {
    while (f < features_.size() && features_[f].table < t) ++f;
    first_feature_.push_back(f);
  }
  size_t num_apart = 0;
  for (const Feature& feature : features_) {
    apart_.push_back(num_apart);
    num_apart += feature.is_apart;
  }
}

template <typename T>
BagRows<T> FeatureTables::rows_of(size_t f, const Rows<T>& rows) const noexcept {
  const Feature& feature = features_[f];
  if (feature.is_apart) return {rows.apart[apart_[f]], tables_[feature.table]->layout().dim()};
  return {rows.matrix.data + feature.column, rows.matrix.stride, bags_per_row(feature)};
}

template <typename T>
bool FeatureTables::has_rows(size_t f, const Rows<T>& rows) const noexcept {
  return (features_[f].is_apart ? rows.apart[apart_[f]] : rows.matrix.data) != nullptr;
}

// All bags of a feature: each distinct key is read once, and written to all of its bags.
void FeatureTables::lookup_distinct(FeatureKeys& keys, size_t f, bool initial, Scratch& scratch,
                                    const Rows<float>& out) const {
  const Table& table = *tables_[features_[f].table];
  const Bags& given = keys.bags(f);
  const BagRows<float> all = rows_of(f, out);
  if (!given.are_single()) {
    return table.lookup_some_bags(given, 0, given.num_bags, {initial, nullptr}, all);
  }
  DistinctKeys& distinct = keys.note_distinct(f, table, scratch.distinct);
  const size_t dim = table.layout().dim();
  if (scratch.rows.size() < distinct.size() * dim) scratch.rows.resize(distinct.size() * dim);
  float* rows = scratch.rows.data();
  distinct.num_removed = table.num_removed();
  table.lookup_seen(distinct.keys(), rows, initial, distinct.seen());
  // The matrix leaves the caches before it is used, and would be fetched before it is written.
  const auto is_whole_lines = [](uintptr_t bytes) { return bytes % sizeof(Line) == 0; };
  const bool streams = is_whole_lines(dim * 4) && is_whole_lines(all.stride * 4) &&
                       is_whole_lines(reinterpret_cast<uintptr_t>(all.data));
  const std::span<const uint16_t> numbers = distinct.numbers();
  for (size_t bag = 0; bag < numbers.size(); ++bag) {
    float* to = all.of(bag, dim);
    const float* row = rows + numbers[bag] * dim;
    streams ? racy_stream(to, row, dim * 4) : copy_short(to, row, dim * 4);
  }
  if (streams) fence_streamed();
}

void FeatureTables::copy_dense(const Dense& dense, size_t first, size_t last,
                               const Matrix<float>& out) noexcept {
  for (size_t sample = first; sample < last; ++sample) {
    copy_short(out.data + sample * out.stride + dense.column,
               dense.values.data + sample * dense.values.stride, dense.num_columns * 4);
  }
}

void FeatureTables::lookup(FeatureKeys& keys, const Rows<float>& out, const Dense& dense,
                           bool initial, unsigned threads) const {
  constexpr size_t kShares = 8;  // features for each thread, so that no thread is left with one
  const bool are_many = features_.size() >= kShares * threads;
  std::vector<Range> ranges;
  for (size_t f = 0; f < features_.size(); ++f) {
    if (are_many && may_be_single(keys.bags(f))) {
      keys.prepare_distinct();
      ranges.push_back({f, 0, kAllBags});
    } else {
      add_ranges(ranges, f, keys.bags(f));
    }
  }
  // Neighbours lie in the same lines of the output: a thread takes some of them together.
  const size_t claim = std::clamp<size_t>(ranges.size() / (8 * threads), 1, 64);
  // Last, so that threads which are done with features share these.
  const size_t num_samples = dense.num_columns > 0 ? keys.batch() : 0;
  for (size_t first = 0; first < num_samples; first += kRangeSamples) {
    ranges.push_back({kDense, first, std::min(first + kRangeSamples, num_samples)});
  }
  std::atomic<size_t> next{0};
  Team::run(threads, [&](Team& team, unsigned) {
    team.attempt([&] {
      Scratch scratch;
      for (size_t at; (at = next.fetch_add(claim)) < ranges.size() && !team.has_failed();) {
        for (size_t r = at; r < std::min(at + claim, ranges.size()); ++r) {
          const auto [f, first, last] = ranges[r];
          if (f == kDense) {
            copy_dense(dense, first, last, out.matrix);
            continue;
          }
          if (last == kAllBags) {
            lookup_distinct(keys, f, initial, scratch, out);
            continue;
          }
          tables_[features_[f].table]->lookup_some_bags(keys.bags(f), first, last,
                                                        {initial, nullptr}, rows_of(f, out));
        }
      }
    });
  });
}

std::unique_ptr<FeatureSum> FeatureTables::sum(std::span<const Piece> pieces,
                                               unsigned threads) const {
  std::vector<BagPiece> found;  // table by table
  std::vector<const DistinctKeys*> distinct(tables_.size());
  std::vector<size_t> starts{0};
  std::vector<Run> runs;
  for (size_t t = 0; t < tables_.size(); ++t) {
    size_t num_keys = 0;
    for (const Piece& piece : pieces) {
      for (size_t f = first_feature_[t]; f < first_feature_[t + 1]; ++f) {
        const Bags& bags = piece.keys->bags(f);
        if (bags.num_keys == 0 || !has_rows(f, piece.grads)) continue;
        found.push_back({bags, rows_of(f, piece.grads), nullptr});
        distinct[t] = piece.keys->distinct(f);
        num_keys += bags.num_keys;
      }
    }
    if (found.size() - starts.back() != 1) distinct[t] = nullptr;  // of several
    starts.push_back(found.size());
    if (num_keys > 0) add_table(runs, t, num_keys);
  }
  auto made = std::make_unique<FeatureSum>();
  made->sums_.resize(tables_.size());
  made->memories_.resize(runs.size());
  for (size_t r = 0; r < runs.size(); ++r) runs[r].memory = &made->memories_[r];
  share(std::move(runs), threads, [&](const Run& run, unsigned members) {
    for (size_t t = run.first; t <= run.last; ++t) {
      if (starts[t] == starts[t + 1]) continue;
      const std::span own(found.begin() + starts[t], found.begin() + starts[t + 1]);
      made->sums_[t] = new (run.memory->allocate(sizeof(GradientSum), alignof(GradientSum)))
          GradientSum(tables_[t]->sum_bag_gradients(own, members, run.memory, distinct[t]));
    }
  });
  double total = 0.0;
  for (size_t t = 0; t < tables_.size(); ++t) total += made->norm(t) * made->norm(t);
  made->norm_ = std::sqrt(total);
  return made;
}

AppliedCounts FeatureTables::step(FeatureSum& sum, const float* rates,
                                  std::span<const uint32_t> times, unsigned threads) const {
  std::vector<TableStep> steps;
  std::vector<AppliedCounts> counts(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    GradientSum* own = sum.sums_[t];
    if (own != nullptr) {
      steps.push_back({tables_[t], own, rates, times[t], nullptr, own->grads().size(), &counts[t]});
    }
    rates += tables_[t]->layout().segments().size();
  }
  step_tables(steps, threads);
  AppliedCounts total;
  for (const AppliedCounts& of_table : counts) {
    total.applied += of_table.applied;
    total.inserted += of_table.inserted;
    total.refused += of_table.refused;
    total.skipped += of_table.skipped;
  }
  return total;
}

}  // namespace monolith
