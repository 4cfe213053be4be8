// Gradients of pooled rows, seen as the gradients of the keys in the bags, which are never written
// out: the gradient of an occurrence is that of its bag times a factor, or a choice of its columns.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "optimizer/kernels.h"
#include "table/bags.h"

namespace monolith {

struct BagPiece {
  Bags bags;
  const float* grads;      // (num_bags, dim)
  const int32_t* winners;  // (num_bags, dim), of kMax, else null
};

// The pieces are borrowed and outlive it. Occurrences are counted through all pieces.
class BagGradients {
 public:
  BagGradients(std::span<const BagPiece> pieces, size_t dim);

  const int64_t* keys() const noexcept { return keys_; }
  size_t size() const noexcept { return starts_.back(); }

  void prefetch_place(uint32_t i) const noexcept { __builtin_prefetch(rows_.get() + i); }
  void prefetch(uint32_t i) const noexcept;
  // Sum of the occurrences' gradients in order, starting from the first (contract 1): in scratch,
  // (dim), or where it is.
  const float* sum(std::span<const uint32_t> occurrences, const Kernels& kernels,
                   float* scratch) const noexcept;

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
  std::vector<size_t> starts_;               // (pieces + 1,), of their occurrences
  std::vector<std::vector<float>> factors_;  // of each piece's bags, where its mode has any
  std::unique_ptr<const float*[]> rows_;     // of each occurrence, its bag's gradient
  std::unique_ptr<int64_t[]> joined_;        // keys of several pieces
  const int64_t* keys_;
};

}  // namespace monolith
