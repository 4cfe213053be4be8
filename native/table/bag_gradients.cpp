#include "table/bag_gradients.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "ops/take.h"
#include "table/team.h"

namespace monolith {
namespace {

constexpr uint32_t kAhead = 16;  // occurrences between fetching memory and using it

}  // namespace

BagGradients::BagGradients(std::span<const BagPiece> pieces, size_t dim,
                           std::pmr::monotonic_buffer_resource& memory)
    : pieces_(pieces),
      dim_(dim),
      starts_(take<size_t>(memory, pieces.size() + 1)),
      factors_(take<float*>(memory, pieces.size())) {
  starts_[0] = 0;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Bags& bags = pieces[p].bags;
    starts_[p + 1] = starts_[p] + bags.num_keys;
    factors_[p] = bags.has_factors() ? take<float>(memory, bags.num_bags) : nullptr;
  }
  const bool is_one = pieces.size() == 1;
  if (is_one) keys_ = pieces.front().bags.keys;
  if (is_one && pieces.front().bags.are_single()) {
    if (factors_[0] != nullptr) std::fill_n(factors_[0], size(), 1.0f);
    return;
  }
  rows_ = take<const float*>(memory, size());
  int64_t* joined = is_one ? nullptr : take<int64_t>(memory, size());
  if (!is_one) keys_ = joined;
  const float** row = rows_;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Bags& bags = pieces[p].bags;
    if (!is_one) joined = std::copy_n(bags.keys, bags.num_keys, joined);
    for (size_t bag = 0; bag < bags.num_bags; ++bag) {
      row = std::fill_n(row, bags.end(bag) - bags.begin(bag), pieces[p].grads.of(bag, dim));
      if (factors_[p] != nullptr) factors_[p][bag] = bags.factor(bag);
    }
  }
}

BagGradients::Term BagGradients::term(uint32_t i) const noexcept {
  size_t p = 0;
  if (pieces_.size() > 1) {
    p = std::upper_bound(starts_, starts_ + pieces_.size() + 1, i) - starts_ - 1;
  }
  const BagPiece& piece = pieces_[p];
  const size_t key = i - starts_[p];
  const float* grads = row(i);
  const auto offset = static_cast<size_t>(grads - piece.grads.data);
  if (piece.winners != nullptr) {
    return {grads, piece.winners + offset / piece.grads.stride * dim_, 1.0f,
            static_cast<int32_t>(key)};
  }
  if (piece.bags.weights != nullptr) return {grads, nullptr, piece.bags.weights[key], 0};
  return {grads, nullptr,
          piece.bags.has_factors() ? factors_[p][offset / piece.grads.stride] : 1.0f, 0};
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
GradientSum::GradientSum(std::span<const BagPiece> pieces, size_t dim, const Kernels& kernels,
                         uint64_t salt, uint32_t depth, unsigned threads,
                         std::pmr::monotonic_buffer_resource* memory, const DistinctKeys* distinct)
    : own_(memory == nullptr ? std::make_unique<std::pmr::monotonic_buffer_resource>() : nullptr),
      memory_(memory == nullptr ? *own_ : *memory),
      pieces_(std::uninitialized_copy(pieces.begin(), pieces.end(),
                                      take<BagPiece>(memory_, pieces.size())) -
                  pieces.size(),
              pieces.size()),
      dim_(dim),
      grads_(pieces_, dim, memory_),
      is_numbered_(distinct != nullptr),
      batch_(is_numbered_ ? distinct->keys.data() : grads_.keys(),
             static_cast<uint32_t>(is_numbered_ ? distinct->keys.size() : grads_.size()), nullptr,
             salt, depth, threads, memory_, is_numbered_),
      sums_(take<float>(memory_, size_t{batch_.size()} * dim)) {
  double total = is_numbered_ ? add_up(*distinct, kernels) : 0.0;
  double* squares = is_numbered_ ? nullptr : take<double>(memory_, grads_.size());
  if (!is_numbered_) std::fill_n(squares, grads_.size(), 0.0);
  std::atomic<uint32_t> next{0};
  Team::run(threads, [&](Team& team, unsigned member) {
    batch_.arrange(team, member);
    team.attempt([&] {
      Batch::Scratch scratch;
      for (uint32_t p; (p = next++) < batch_.num_partitions();) {
        batch_.group(p, scratch);
        if (squares != nullptr) add_up(p, kernels, squares);
      }
    });
  });
  for (size_t i = 0; squares != nullptr && i < grads_.size(); ++i) total += squares[i];
  norm_ = std::sqrt(total);
}

// The same sums and total of squares, where it is known which keys are equal.
double GradientSum::add_up(const DistinctKeys& distinct, const Kernels& kernels) noexcept {
  const auto n = static_cast<uint32_t>(grads_.size());
  for (uint32_t i = 0; i < n; ++i) {
    if (i + kAhead < n) grads_.prefetch(i + kAhead);
    const uint32_t number = distinct.numbers[i];
    const float* row = grads_.row(i);
    float* sum = sums_ + size_t{number} * dim_;
    if (distinct.first[number] == i) {
      std::copy_n(row, dim_, sum);
    } else {
      for (size_t c = 0; c < dim_; ++c) sum[c] += row[c];
    }
  }
  double total = 0.0;
  for (size_t u = 0; u < distinct.keys.size(); ++u) {
    total += kernels.sum_squares(sums_ + u * dim_, dim_);
  }
  return total;
}

void GradientSum::add_up(uint32_t partition, const Kernels& kernels, double* squares) noexcept {
  const std::span<const uint32_t> order = batch_.order(partition);
  size_t fetched = 0, used = 0;
  for (const Batch::Entry& entry : batch_.distinct(partition)) {
    used += entry.num_occurs;
    for (; fetched < std::min(used + kAhead, order.size()); ++fetched) {
      grads_.prefetch(order[fetched]);
    }
    float* sum = sums_ + size_t{entry.first} * dim_;
    const std::span<const uint32_t> occurrences = batch_.occurrences(entry);
    grads_.sum(occurrences, kernels, sum);
    squares[occurrences.front()] = kernels.sum_squares(sum, dim_);
  }
}

}  // namespace monolith
