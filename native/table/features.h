// Reads all features of a batch in one call: their bags are pooled into one matrix.
//
//   out (batch, columns)   | user: sum | item: mean | item: first 2 ids, a row each |
//
// Rows of a feature that keeps all of them lie in a matrix of their own, a row for each id.
//
// Features of one table follow each other, so that threads share all of the work and equal keys of
// a table are brought together once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "ops/distinct.h"
#include "table/table.h"

namespace monolith {

struct Feature {
  std::string name;  // for messages
  uint32_t table;
  PoolMode mode;
  uint32_t max_length;    // of a sample's ids, the first ones; 0: all
  bool is_block;          // max_length rows of the ids themselves, zeros behind the last
  size_t column;          // of its first value in a row of the matrix
  bool is_apart = false;  // a row for each id of the batch, in a matrix of its own
};

// The ids of a feature, borrowed.
struct IdColumn {
  const void* ids;  // int64, or int32 if they are narrow
  size_t num_ids;
  const int64_t* splits;  // (batch + 1,), from 0 to num_ids
  bool is_narrow = false;
};

// Ids of columns that lie together, one column after another, borrowed.
struct JoinedIds {
  const int64_t* ids;
  size_t num_ids;
  const int64_t* splits;  // (columns, batch + 1), each row from 0 on
  size_t stride;          // from the splits of a column to those of the next; 0: all have the same
  size_t num_columns;
  const uint32_t* columns;  // of each feature; null: those of its number
  size_t batch;
};

// The bags of one batch. Owns a copy of the ids, and what a lookup has learned.
class FeatureKeys {
 public:
  // ids: of each feature, in columns of batch samples. Throws std::invalid_argument if the splits
  // of a feature do not ascend from 0 to the number of its ids.
  FeatureKeys(std::span<const Feature> features, std::span<const IdColumn> ids, size_t batch,
              unsigned threads);
  // The same if the splits of all columns do not end with the ids.
  FeatureKeys(std::span<const Feature> features, const JoinedIds& ids, unsigned threads);
  FeatureKeys(const FeatureKeys&) = delete;
  FeatureKeys& operator=(const FeatureKeys&) = delete;

  const Bags& bags(size_t feature) const noexcept { return bags_[feature]; }
  size_t batch() const noexcept { return batch_; }
  // Of all features, those beyond a limit left out.
  size_t num_keys() const noexcept { return num_keys_; }

  // Which keys of a feature are equal, if a lookup has noted it; else null.
  const DistinctKeys* distinct(size_t feature) const noexcept {
    const bool is_noted = !distinct_.empty() && distinct_[feature].size() > 0;
    return is_noted ? &distinct_[feature] : nullptr;
  }
  // Room to note it, also of several features at once.
  void prepare_distinct() { distinct_.resize(bags_.size()); }
  DistinctKeys& note_distinct(size_t feature, const Table& table, DistinctKeys::Scratch& scratch);

 private:
  // The splits that were looked at last; those of the next feature may be the same.
  struct Checked {
    const int64_t* splits = nullptr;
    size_t num_ids = 0;
    const int64_t* copy = nullptr;
  };
  // Of a feature whose ids are to be copied, its number and where they are.
  struct Source {
    size_t feature;
    const IdColumn* ids;
  };
  void add(const Feature& feature, const IdColumn& ids, Checked& checked,
           std::vector<Source>& sources);
  void copy(std::span<const Source> sources, unsigned threads);
  const int64_t* copy_of_splits(const Feature& feature, const IdColumn& ids);
  // all: bags of the ids, without keys.
  Bags limited(const Feature& feature, const Bags& all, const IdColumn& ids);
  int64_t* own(size_t n) {
    return owned_.emplace_back(std::make_unique_for_overwrite<int64_t[]>(n)).get();
  }

  const size_t batch_;
  size_t num_keys_ = 0;
  std::vector<Bags> bags_;
  std::vector<DistinctKeys> distinct_;  // of each feature, or empty
  std::vector<std::unique_ptr<int64_t[]>> owned_;
};

// Gradients of the matrices of some batches, summed by key in each table.
class FeatureSum {
 public:
  FeatureSum() = default;
  FeatureSum(const FeatureSum&) = delete;
  FeatureSum& operator=(const FeatureSum&) = delete;

  // L2 norm over all tables; not finite if that of a table is not.
  double norm() const noexcept { return norm_; }
  double norm(size_t table) const noexcept {
    return sums_[table] == nullptr ? 0.0 : sums_[table]->norm();
  }

 private:
  friend class FeatureTables;
  // The sums lie in the memory, and have nothing else to give back.
  std::deque<std::pmr::monotonic_buffer_resource> memories_;
  std::vector<GradientSum*> sums_;  // of each table; null: it has no keys
  double norm_ = 0.0;
};

// The tables are borrowed and outlive it. Its calls may run beside each other and beside calls of
// the tables.
class FeatureTables {
 public:
  // Features come table by table.
  FeatureTables(std::vector<Table*> tables, std::vector<Feature> features);

  std::span<const Feature> features() const noexcept { return features_; }

  // A matrix of all samples; other columns may lie beside those of the features.
  template <typename T>
  struct Matrix {
    T* data;
    size_t stride;  // from a row to the next
  };
  // The matrix of the samples, and (num_ids, dim) for each feature that lies apart, in their order.
  template <typename T>
  struct Rows {
    Matrix<T> matrix;
    std::vector<T*> apart{};
  };
  // Values that a lookup copies to columns behind those of the features: (batch, num_columns).
  struct Dense {
    Matrix<const float> values{};
    size_t num_columns = 0;
    size_t column = 0;  // of the first one in a row of the matrix
  };
  // Writes the rows of the features, and the dense columns; out: (batch, columns). Notes for sum()
  // which keys are equal, where a feature has one key a bag: no other call uses the keys meanwhile.
  void lookup(FeatureKeys& keys, const Rows<float>& out, const Dense& dense, bool initial,
              unsigned threads) const;

  struct Piece {
    const FeatureKeys* keys;
    Rows<const float> grads;  // (batch, columns); a null matrix has no gradients
  };
  // Keys and gradients are borrowed while the sum lives. Of equal keys, those of the first piece
  // come first, and in a piece those of the first feature.
  std::unique_ptr<FeatureSum> sum(std::span<const Piece> pieces, unsigned threads) const;

  // step_tables of the tables that have keys. rates: of the first table's segments, then of the
  // second's, and so on; times: of each table.
  AppliedCounts step(FeatureSum& sum, const float* rates, std::span<const uint32_t> times,
                     unsigned threads) const;

 private:
  // Of one thread, to be used again.
  struct Scratch {
    DistinctKeys::Scratch distinct;
    std::vector<float> rows;
  };
  void lookup_distinct(FeatureKeys& keys, size_t feature, bool initial, Scratch& scratch,
                       const Rows<float>& out) const;
  static void copy_dense(const Dense& dense, size_t first, size_t last,
                         const Matrix<float>& out) noexcept;
  template <typename T>
  BagRows<T> rows_of(size_t feature, const Rows<T>& rows) const noexcept;
  template <typename T>
  bool has_rows(size_t feature, const Rows<T>& rows) const noexcept;

  const std::vector<Table*> tables_;
  const std::vector<Feature> features_;
  std::vector<size_t> first_feature_;  // (tables + 1,)
  std::vector<size_t> apart_;          // of each feature, its number among those that lie apart
};

}  // namespace monolith
