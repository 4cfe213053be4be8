#include "table/bag_gradients.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "table/team.h"

namespace monolith {

BagGradients::BagGradients(std::span<const BagPiece> pieces, size_t dim)
    : pieces_(pieces), dim_(dim), starts_{0}, factors_(pieces.size()) {
  for (const BagPiece& piece : pieces) starts_.push_back(starts_.back() + piece.bags.num_keys);
  if (pieces.size() == 1 && pieces.front().bags.are_single()) {
    keys_ = pieces.front().bags.keys;
    factors_.front().assign(pieces.front().bags.has_factors() ? size() : 0, 1.0f);
    return;
  }
  rows_ = std::make_unique_for_overwrite<const float*[]>(size());
  if (pieces.size() != 1) joined_ = std::make_unique_for_overwrite<int64_t[]>(size());
  keys_ = pieces.size() == 1 ? pieces.front().bags.keys : joined_.get();
  const float** row = rows_.get();
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Bags& bags = pieces[p].bags;
    if (joined_) std::copy_n(bags.keys, bags.num_keys, joined_.get() + starts_[p]);
    if (bags.has_factors()) factors_[p].resize(bags.num_bags);
    for (size_t bag = 0; bag < bags.num_bags; ++bag) {
      row = std::fill_n(row, bags.end(bag) - bags.begin(bag), pieces[p].grads.of(bag, dim));
      if (bags.has_factors()) factors_[p][bag] = bags.factor(bag);
    }
  }
}

BagGradients::Term BagGradients::term(uint32_t i) const noexcept {
  size_t p = 0;
  if (pieces_.size() > 1) {
    p = std::upper_bound(starts_.begin(), starts_.end(), i) - starts_.begin() - 1;
  }
  const BagPiece& piece = pieces_[p];
  const size_t key = i - starts_[p];
  const float* grads = row(i);
  const auto offset = static_cast<size_t>(grads - piece.grads.data);
  if (piece.winners != nullptr) {
    return {grads, piece.winners + offset / piece.grads.stride * dim_, 1.0f, static_cast<int32_t>(key)};
  }
  if (piece.bags.weights != nullptr) return {grads, nullptr, piece.bags.weights[key], 0};
  return {grads, nullptr, piece.bags.has_factors() ? factors_[p][offset / piece.grads.stride] : 1.0f, 0};
}

void BagGradients::sum(std::span<const uint32_t> occurrences, const Kernels& kernels,
                       float* out) const noexcept {
  const Term first = term(occurrences.front());
  if (first.winners != nullptr) {
    kernels.select(out, first.grads, first.winners, first.place, dim_);
  } else {
    kernels.scale(out, first.grads, first.factor, dim_);
  }
  for (const uint32_t i : occurrences.subspan(1)) {
    const Term next = term(i);
    if (next.winners != nullptr) {
      kernels.add_selected(out, next.grads, next.winners, next.place, dim_);
    } else {
      kernels.add_scaled(out, out, next.grads, next.factor, dim_);
    }
  }
}

void BagGradients::write_out(const Kernels& kernels, float* out) const noexcept {
  for (uint32_t i = 0; i < size(); ++i) sum({&i, 1}, kernels, out + i * dim_);
}

// Squares are kept by first occurrence and added in that order, whatever the threads did.
GradientSum::GradientSum(std::vector<BagPiece> pieces, size_t dim, const Kernels& kernels,
                         uint64_t salt, uint32_t depth, unsigned threads)
    : pieces_(std::move(pieces)),
      dim_(dim),
      grads_(pieces_, dim),
      batch_(grads_.keys(), static_cast<uint32_t>(grads_.size()), nullptr, salt, depth, threads),
      sums_(std::make_unique_for_overwrite<float[]>(grads_.size() * dim)) {
  const auto squares = std::make_unique<double[]>(grads_.size());
  std::atomic<uint32_t> next{0};
  Team::run(threads, [&](Team& team, unsigned member) {
    batch_.arrange(team, member);
    team.attempt([&] {
      Batch::Scratch scratch;
      for (uint32_t p; (p = next++) < batch_.num_partitions();) {
        batch_.group(p, scratch);
        add_up(p, kernels, squares.get());
      }
    });
  });
  double total = 0.0;
  for (size_t i = 0; i < grads_.size(); ++i) total += squares[i];
  norm_ = std::sqrt(total);
}

void GradientSum::add_up(uint32_t partition, const Kernels& kernels, double* squares) noexcept {
  constexpr size_t kAhead = 16;  // occurrences between fetching memory and using it
  const std::span<const uint32_t> order = batch_.order(partition);
  size_t fetched = 0, used = 0;
  for (const Batch::Entry& entry : batch_.distinct(partition)) {
    used += entry.num_occurs;
    for (; fetched < std::min(used + kAhead, order.size()); ++fetched) {
      grads_.prefetch(order[fetched]);
    }
    float* sum = sums_.get() + batch_.index_of(entry) * dim_;
    const std::span<const uint32_t> occurrences = batch_.occurrences(entry);
    grads_.sum(occurrences, kernels, sum);
    squares[occurrences.front()] = kernels.sum_squares(sum, dim_);
  }
}

}  // namespace monolith
