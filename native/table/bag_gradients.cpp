#include "table/bag_gradients.h"

#include <algorithm>
#include <cmath>

#include "ops/batch.h"
#include "table/table.h"
#include "table/team.h"

namespace monolith {

BagGradients::BagGradients(std::span<const BagPiece> pieces, size_t dim)
    : pieces_(pieces), dim_(dim), starts_{0}, factors_(pieces.size()) {
  for (const BagPiece& piece : pieces) starts_.push_back(starts_.back() + piece.bags.num_keys);
  rows_ = std::make_unique_for_overwrite<const float*[]>(size());
  if (pieces.size() != 1) joined_ = std::make_unique_for_overwrite<int64_t[]>(size());
  keys_ = pieces.size() == 1 ? pieces.front().bags.keys : joined_.get();
  const float** row = rows_.get();
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Bags& bags = pieces[p].bags;
    if (joined_) std::copy_n(bags.keys, bags.num_keys, joined_.get() + starts_[p]);
    if (bags.has_factors()) factors_[p].resize(bags.num_bags);
    for (size_t bag = 0; bag < bags.num_bags; ++bag) {
      row = std::fill_n(row, bags.end(bag) - bags.begin(bag), pieces[p].grads + bag * dim);
      if (bags.has_factors()) factors_[p][bag] = bags.factor(bag);
    }
  }
}

void BagGradients::prefetch(uint32_t i) const noexcept { prefetch_bytes(rows_[i], dim_ * 4); }

BagGradients::Term BagGradients::term(uint32_t i) const noexcept {
  size_t p = 0;
  if (pieces_.size() > 1) {
    p = std::upper_bound(starts_.begin(), starts_.end(), i) - starts_.begin() - 1;
  }
  const BagPiece& piece = pieces_[p];
  const size_t key = i - starts_[p];
  const auto offset = static_cast<size_t>(rows_[i] - piece.grads);
  if (piece.winners != nullptr) {
    return {rows_[i], piece.winners + offset, 1.0f, static_cast<int32_t>(key)};
  }
  if (piece.bags.weights != nullptr) return {rows_[i], nullptr, piece.bags.weights[key], 0};
  return {rows_[i], nullptr, piece.bags.has_factors() ? factors_[p][offset / dim_] : 1.0f, 0};
}

const float* BagGradients::sum(std::span<const uint32_t> occurrences, const Kernels& kernels,
                               float* scratch) const noexcept {
  const Term first = term(occurrences.front());
  if (first.winners != nullptr) {
    kernels.select(scratch, first.grads, first.winners, first.place, dim_);
  } else if (occurrences.size() == 1 && first.factor == 1.0f) {
    return first.grads;
  } else {
    kernels.scale(scratch, first.grads, first.factor, dim_);
  }
  for (const uint32_t i : occurrences.subspan(1)) {
    const Term next = term(i);
    if (next.winners != nullptr) {
      kernels.add_selected(scratch, next.grads, next.winners, next.place, dim_);
    } else {
      kernels.add_scaled(scratch, scratch, next.grads, next.factor, dim_);
    }
  }
  return scratch;
}

// Squares are kept by first occurrence and added in that order, whatever the threads did.
double Table::bag_gradient_norm(std::span<const BagPiece> pieces, unsigned threads) const {
  for (const BagPiece& piece : pieces) check_bags("bag_gradient_norm", piece.bags);
  const BagGradients grads(pieces, layout_.dim());
  const Kernels& kernels = layout_.kernels();
  constexpr size_t kAhead = 10;  // keys between fetching memory and using it
  threads = std::max(1u, threads);
  Batch batch(grads.keys(), static_cast<uint32_t>(grads.size()), nullptr, index_.salt(), 0,
              threads);
  const auto squares = std::make_unique<double[]>(grads.size());
  std::atomic<uint32_t> next{0};
  Team::run(threads, [&](Team& team, unsigned member) {
    batch.count(member, team.size());
    team.meet();
    batch.place(member, team.size());
    team.meet();
    team.attempt([&] {
      Batch::Scratch scratch;
      std::vector<float> sum(layout_.dim());
      for (uint32_t p; (p = next++) < batch.num_partitions();) {
        batch.group(p, scratch);
        const std::span<const Batch::Entry> entries = batch.distinct(p);
        for (size_t i = 0; i < entries.size(); ++i) {
          if (i + 2 * kAhead < entries.size()) {
            grads.prefetch_place(batch.occurrences(entries[i + 2 * kAhead]).back());
          }
          if (i + kAhead < entries.size()) {
            grads.prefetch(batch.occurrences(entries[i + kAhead]).back());
          }
          const std::span<const uint32_t> occurrences = batch.occurrences(entries[i]);
          const float* gradient = grads.sum(occurrences, kernels, sum.data());
          squares[occurrences.front()] = kernels.sum_squares(gradient, layout_.dim());
        }
      }
    });
  });
  double total = 0.0;
  for (size_t i = 0; i < grads.size(); ++i) total += squares[i];
  return std::sqrt(total);
}

}  // namespace monolith
