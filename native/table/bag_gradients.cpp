#include "table/bag_gradients.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>

#include "ops/take.h"
#include "table/team.h"

namespace monolith {
namespace {

constexpr uint32_t kAhead = 64;  // occurrences between fetching memory and using it

constexpr size_t kLineFloats = 16;

// out += row, of four values at a time; spelled out where the compiler knows dim.
[[gnu::always_inline]] inline void add_values(float* out, const float* row, size_t dim) {
  using Four = float __attribute__((vector_size(16)));
  size_t c = 0;
  for (; c + 4 <= dim; c += 4) {
    Four a, b;
    std::memcpy(&a, out + c, sizeof(a));
    std::memcpy(&b, row + c, sizeof(b));
    a += b;
    std::memcpy(out + c, &a, sizeof(a));
  }
  for (; c < dim; ++c) out[c] += row[c];
}

// sums[numbers[i]] += row i. Rows are short: a call of a kernel would take longer. dim: a number,
// or a constant.
template <typename Dim>
void add_rows(std::span<const uint16_t> numbers, const BagRows<const float>& rows, Dim dim,
              float* sums) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i + kAhead < numbers.size()) fetch_bytes(rows.of(i + kAhead, dim), dim * 4);
    add_values(sums + size_t{numbers[i]} * dim, rows.of(i, dim), dim);
  }
}

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

std::span<const BagPiece> GradientSum::copied(std::span<const BagPiece> pieces) {
  auto* copies = take<BagPiece>(memory_, pieces.size());
  std::uninitialized_copy(pieces.begin(), pieces.end(), copies);
  return {copies, pieces.size()};
}

// Squares are kept by first occurrence and added in that order, whatever the threads did.
GradientSum::GradientSum(std::span<const BagPiece> pieces, size_t dim, const Kernels& kernels,
                         uint64_t salt, uint32_t depth, unsigned threads,
                         std::pmr::monotonic_buffer_resource* memory)
    : own_(memory == nullptr ? std::make_unique<std::pmr::monotonic_buffer_resource>() : nullptr),
      memory_(memory == nullptr ? *own_ : *memory),
      pieces_(copied(pieces)),
      dim_(dim),
      grads_(pieces_, dim, memory_),
      batch_(grads_.keys(), static_cast<uint32_t>(grads_.size()), nullptr, salt, depth, threads,
             memory_),
      sums_(take<float>(memory_, grads_.size() * dim)) {
  double* squares = take<double>(memory_, grads_.size());
  std::fill_n(squares, grads_.size(), 0.0);
  std::atomic<uint32_t> next{0};
  Team::run(threads, [&](Team& team, unsigned member) {
    batch_.arrange(team, member);
    team.attempt([&] {
      Batch::Scratch scratch;
      for (uint32_t p; (p = next++) < batch_.num_partitions();) {
        batch_.group(p, scratch);
        add_up(p, kernels, squares);
      }
    });
  });
  norm_ = std::sqrt(std::accumulate(squares, squares + grads_.size(), 0.0));
}

// The same sums and norm.
GradientSum::GradientSum(const BagPiece& piece, size_t dim, const Kernels& kernels,
                         const DistinctKeys& distinct, std::pmr::monotonic_buffer_resource* memory)
    : own_(memory == nullptr ? std::make_unique<std::pmr::monotonic_buffer_resource>() : nullptr),
      memory_(memory == nullptr ? *own_ : *memory),
      pieces_(copied({&piece, 1})),
      dim_(dim),
      grads_(pieces_, dim, memory_),
      batch_(distinct.keys(), distinct.seen(), distinct.num_removed, memory_),
      sums_(take<float>(memory_, distinct.size() * dim, kLineFloats * 4)) {
  std::fill_n(sums_, distinct.size() * dim, -0.0f);  // plus the first value is that, bit for bit
  using OneLine = std::integral_constant<size_t, kLineFloats>;
  const BagRows<const float>& rows = pieces_.front().grads;
  if (dim == kLineFloats) {
    add_rows(distinct.numbers(), rows, OneLine{}, sums_);
  } else {
    add_rows(distinct.numbers(), rows, dim, sums_);
  }
  double total = 0.0;
  for (const uint16_t number : distinct.as_met()) {
    total += kernels.sum_squares(sums_ + size_t{number} * dim, dim);
  }
  norm_ = std::sqrt(total);
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
