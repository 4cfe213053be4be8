// Gradients of pooled rows, seen as the gradients of the keys in the bags, which are never written
// out: the gradient of an occurrence is that of its bag times a factor, or a choice of its columns.
#pragma once

#include <memory>
#include <memory_resource>
#include <span>

#include "ops/batch.h"
#include "ops/distinct.h"
#include "optimizer/kernels.h"
#include "table/arena.h"
#include "table/bags.h"

namespace monolith {

struct BagPiece {
  Bags bags;
  BagRows<const float> grads;
  const int32_t* winners;  // (num_bags, dim), of kMax, else null
};

// Pieces and memory are borrowed and outlive it. Occurrences are counted through all pieces.
class BagGradients {
 public:
  BagGradients(std::span<const BagPiece> pieces, size_t dim,
               std::pmr::monotonic_buffer_resource& memory);

  const int64_t* keys() const noexcept { return keys_; }
  size_t size() const noexcept { return starts_[pieces_.size()]; }

  [[gnu::always_inline]] void prefetch(uint32_t i) const noexcept { fetch_bytes(row(i), dim_ * 4); }
  // Of an occurrence, its bag's gradient.
  const float* row(uint32_t i) const noexcept {
    return rows_ != nullptr ? rows_[i] : pieces_.front().grads.of(i, dim_);
  }
  // out = sum of the occurrences' gradients in order, starting from the first (contract 1).
  void sum(std::span<const uint32_t> occurrences, const Kernels& kernels,
           float* out) const noexcept;
  // The gradient of each occurrence, (occurrences, dim).
  void write_out(const Kernels& kernels, float* out) const noexcept;

 private:
  // The gradient of one occurrence.
  struct Term {
    const float* grads;
    const int32_t* winners;  // or null: the factor counts
    float factor;
    int32_t place;  // of the columns that it won
  };
  Term term(uint32_t i) const noexcept;

  const std::span<const BagPiece> pieces_;
  const size_t dim_;
  size_t* starts_;                // (pieces + 1,), of their occurrences
  float** factors_;               // of each piece's bags; null where its mode has none
  const float** rows_ = nullptr;  // of each occurrence; null: in its own place
  const int64_t* keys_;           // of all pieces
};

// The gradients of the distinct keys in some bags: those of equal keys are summed.
class GradientSum {
 public:
  // The pieces are copied; the memory that they name is borrowed while it lives. salt, depth: of
  // the table, as Batch takes them. memory: of many sums that end together; null: of its own.
  GradientSum(std::span<const BagPiece> pieces, size_t dim, const Kernels& kernels, uint64_t salt,
              uint32_t depth, unsigned threads,
              std::pmr::monotonic_buffer_resource* memory = nullptr);
  // Of one piece with one key a bag and no weights, of which is known where equal keys are: that is
  // borrowed like its keys. The batch does not know how often a key occurs.
  GradientSum(const BagPiece& piece, size_t dim, const Kernels& kernels,
              const DistinctKeys& distinct, std::pmr::monotonic_buffer_resource* memory);
  GradientSum(const GradientSum&) = delete;
  GradientSum& operator=(const GradientSum&) = delete;

  // L2 norm; not finite if a gradient of a key is not, or a sum.
  double norm() const noexcept { return norm_; }
  const BagGradients& grads() const noexcept { return grads_; }
  Batch& batch() noexcept { return batch_; }

  // Of a distinct key, (dim). What a writing call asks of its values.
  [[gnu::always_inline]] void prefetch(const Batch&, const Batch::Entry& entry) const noexcept {
    fetch_bytes(at(entry), dim_ * 4);
  }
  const float* sum(const Batch&, const Batch::Entry& entry, const Kernels&, float*) const noexcept {
    return at(entry);
  }

 private:
  const float* at(const Batch::Entry& entry) const noexcept {
    return sums_ + size_t{entry.first} * dim_;
  }
  std::span<const BagPiece> copied(std::span<const BagPiece> pieces);
  void add_up(uint32_t partition, const Kernels& kernels, double* squares) noexcept;

  std::unique_ptr<std::pmr::monotonic_buffer_resource> own_;
  std::pmr::monotonic_buffer_resource& memory_;
  const std::span<const BagPiece> pieces_;
  const size_t dim_;
  const BagGradients grads_;
  Batch batch_;
  float* const sums_;  // (occurrences, dim), used at Entry::first
  double norm_ = 0.0;
};

}  // namespace monolith
