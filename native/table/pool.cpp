// Implements the reading verbs by bag: rows are pooled directly into the output while they are
// read.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "table/bags.h"
#include "table/read.h"

namespace monolith {
namespace {

// The bag of a key, for keys in ascending order.
struct BagCursor {
  const Bags& bags;
  size_t bag;
  size_t begin, end;

  BagCursor(const Bags& bags, size_t bag) noexcept
      : bags(bags), bag(bag), begin(bags.begin(bag)), end(bags.end(bag)) {}
  void move_to(size_t key) noexcept {
    while (key >= end) {
      ++bag;
      begin = end;
      end = bags.end(bag);
    }
  }
};

using Four = float __attribute__((vector_size(16)));
constexpr size_t kShort = 64;  // up to this dim, calling a kernel costs more than it saves

// sum += weight * values; each operation rounds.
inline void add_row(const Kernels& kernels, float* out, const float* sum, const float* values,
                    float weight, size_t dim) {
  if (dim > kShort) return kernels.add_scaled(out, sum, values, weight, dim);
  size_t c = 0;
  for (; c + 4 <= dim; c += 4) {
    Four total, row;
    std::memcpy(&total, sum + c, sizeof(total));
    std::memcpy(&row, values + c, sizeof(row));
    total += weight * row;
    std::memcpy(out + c, &total, sizeof(total));
  }
  for (; c < dim; ++c) out[c] = sum[c] + weight * values[c];
}

// Adds the row of key i to its bag, which starts with its first row.
void take_row(const Kernels& kernels, const BagCursor& at, size_t i, const float* row, size_t dim,
              float* pooled, int32_t* winners) {
  const Bags& bags = at.bags;
  if (i == at.begin) {
    if (bags.weights != nullptr) kernels.scale(pooled, pooled, bags.weights[i], dim);
    if (winners != nullptr) std::fill_n(winners, dim, static_cast<int32_t>(i));
  } else if (winners != nullptr) {
    kernels.take_max(pooled, winners, row, static_cast<int32_t>(i), dim);
  } else if (bags.weights != nullptr) {
    kernels.add_scaled(pooled, pooled, row, bags.weights[i], dim);
  } else {
    kernels.add(pooled, row, dim);
  }
  if (i + 1 == at.end && i > at.begin && bags.has_factors()) {
    kernels.scale(pooled, pooled, bags.factor(at.bag), dim);
  }
}

void clear_empty_bags(const Bags& bags, size_t first, size_t last, size_t dim,
                      const BagRows<float>& out, int32_t* winners) {
  for (size_t bag = first; bag < last; ++bag) {
    if (bags.begin(bag) < bags.end(bag)) continue;
    std::fill_n(out.of(bag, dim), dim, 0.0f);
    if (winners != nullptr) std::fill_n(winners + bag * dim, dim, -1);
  }
}

// Calls member(for_each_piece) on several threads; for_each_piece(piece) calls piece(first, last)
// until all bags are done. A piece has the bags that begin within `piece_keys` keys; one thread
// sums a long bag, so that the sum has one order.
template <typename Member>
void share_bags(const Bags& bags, size_t piece_keys, unsigned threads, const Member& member) {
  const size_t num_pieces = std::max<size_t>(1, (bags.num_keys + piece_keys - 1) / piece_keys);
  std::atomic<size_t> next{0};
  Team::run(threads, [&](Team& team, unsigned) {
    team.attempt([&] {
      member([&](const auto& piece) {
        for (size_t p; (p = next.fetch_add(1)) < num_pieces;) {
          const size_t first = bags.bag_from(p * piece_keys);
          const size_t last =
              p + 1 < num_pieces ? bags.bag_from((p + 1) * piece_keys) : bags.num_bags;
          if (first < last) piece(first, last);
        }
      });
    });
  });
}

}  // namespace

void pool_rows(const Bags& bags, const float* rows, size_t dim, float* out, int32_t* winners,
               unsigned threads) {
  constexpr size_t kPieceKeys = 4096;
  const Kernels& used = kernels();
  share_bags(bags, kPieceKeys, threads, [&](const auto& for_each_piece) {
    for_each_piece([&](size_t first, size_t last) {
      clear_empty_bags(bags, first, last, dim, {out, dim}, winners);
      BagCursor at(bags, first);
      for (size_t i = bags.begin(first); i < bags.begin(last); ++i) {
        at.move_to(i);
        float* pooled = out + at.bag * dim;
        if (i == at.begin) std::copy_n(rows + i * dim, dim, pooled);
        take_row(used, at, i, rows + i * dim, dim, pooled,
                 winners == nullptr ? nullptr : winners + at.bag * dim);
      }
    });
  });
}

void Table::check_bags(const char* verb, const Bags& bags) const {
  if (bags.are_splits_valid()) return;
  throw std::invalid_argument(std::string("[Table.") + verb + "] expected row_splits from 0 to " +
                              std::to_string(bags.num_keys) +
                              ", ascending, got others than Bags checked (table '" + name_ + "')");
}

// Calls piece(range of bags) on several threads.
template <typename Piece>
void Table::in_bags(const Bags& bags, unsigned threads, const Piece& piece) const {
  share_bags(bags, kPiece, threads, [&](const auto& for_each_piece) {
    Epochs::Guard guard(epochs_);
    for_each_piece([&](size_t first, size_t last) { piece(BagRange{first, last, guard}); });
  });
}

// Calls read(first, last) for the keys of a range: once, unless the range has a very long bag.
template <typename Read>
void Table::read_range(const Bags& bags, const BagRange& range, const Read& read) const {
  const size_t end = bags.begin(range.last);
  for (size_t at = bags.begin(range.first); at < end; at += 2 * kPiece) {
    read(at, std::min(at + 2 * kPiece, end));
    range.guard.refresh();
  }
}

// target(cursor, i) returns the destination of the row of key i, at which the cursor is; then calls
// use(cursor, i).
template <typename Target, typename Use>
void Table::read_bags(const Bags& bags, const BagRange& range, const ReadOptions& options,
                      const Target& target, const Use& use) const {
  BagCursor cursor(bags, range.first);
  const auto find = [&](size_t i) {
    cursor.move_to(i);
    return target(cursor, i);
  };
  read_range(bags, range, [&](size_t first, size_t last) {
    read_weights(bags.keys, first, last, options, find,
                 [&](size_t i, const PendingKey&) { use(cursor, i); });
  });
}

// Sums rows of floats in place: each new sum is written to the other of two buffers, and is
// accepted if the row did not change meanwhile.
void Table::sum_bags(const Bags& bags, const BagRange& range, const ReadOptions& options,
                     const BagRows<float>& out) const {
  constexpr size_t kAhead = 16;  // bags between the prefetch of their output and its write
  const size_t dim = layout_.dim();
  const Kernels& kernels = layout_.kernels();
  std::vector<float> rows(3 * dim);
  float *sum = rows.data(), *next = sum + dim, *missing = next + dim;
  BagCursor at(bags, range.first);
  const auto hit = [&](size_t i, const char* row, uint32_t) __attribute__((always_inline)) {
    at.move_to(i);
    const auto* values = reinterpret_cast<const float*>(row);
    const float weight = bags.weights != nullptr ? bags.weights[i] : 1.0f;
    if (i > at.begin) return add_row(kernels, next, sum, values, weight, dim);
    if (at.bag + kAhead < range.last) fetch_bytes(out.of(at.bag + kAhead, dim), dim * 4);
    float* first = i + 1 == at.end ? out.of(at.bag, dim) : next;
    bags.weights == nullptr ? racy_load(first, row, dim * 4)
                            : kernels.scale(first, values, weight, dim);
  };
  const auto done = [&](size_t i, const PendingKey&) __attribute__((always_inline)) {
    if (at.end - at.begin == 1) return;
    std::swap(sum, next);
    if (i + 1 < at.end) return;
    const float factor = bags.has_factors() ? bags.factor(at.bag) : 1.0f;
    kernels.scale(out.of(at.bag, dim), sum, factor, dim);
  };
  const auto miss = [&](size_t i) {
    initial_or_zeros(missing, bags.keys[i], options);
    hit(i, reinterpret_cast<const char*>(missing), 0);
    done(i, {});
  };
  read_range(bags, range, [&](size_t first, size_t last) {
    read<Fetch::kWeights>(bags.keys, first, last, hit, done, miss);
  });
}

void Table::pool_range(const Bags& bags, const BagRange& range, const ReadOptions& options,
                       const BagRows<float>& out, int32_t* winners) const {
  const size_t dim = layout_.dim();
  const Kernels& kernels = layout_.kernels();
  clear_empty_bags(bags, range.first, range.last, dim, out, winners);
  if (winners == nullptr && is_read_in_place()) return sum_bags(bags, range, options, out);
  std::vector<float> scratch(dim);
  const auto target = [&](const BagCursor& at, size_t i) {
    return i == at.begin ? out.of(at.bag, dim) : scratch.data();
  };
  const auto use = [&](const BagCursor& at, size_t i) {
    take_row(kernels, at, i, scratch.data(), dim, out.of(at.bag, dim),
             winners == nullptr ? nullptr : winners + at.bag * dim);
  };
  read_bags(bags, range, options, target, use);
}

void Table::lookup_bags(const Bags& bags, const ReadOptions& options, float* out, int32_t* winners,
                        unsigned threads) const {
  check_bags("lookup_bags", bags);
  in_bags(bags, threads, [&](const BagRange& range) {
    pool_range(bags, range, options, {out, layout_.dim()}, winners);
  });
}

void Table::lookup_some_bags(const Bags& bags, size_t first, size_t last,
                             const ReadOptions& options, const BagRows<float>& out) const {
  Epochs::Guard guard(epochs_);
  pool_range(bags, {first, last, guard}, options, out, nullptr);
}

void Table::bag_weight_gradients(const Bags& bags, const ReadOptions& options, const float* grads,
                                 float* out, unsigned threads) const {
  check_bags("bag_weight_gradients", bags);
  const size_t dim = layout_.dim();
  const Kernels& kernels = layout_.kernels();
  in_bags(bags, threads, [&](const BagRange& range) {
    std::vector<float> scratch(dim);
    const auto target = [&](const BagCursor&, size_t) { return scratch.data(); };
    const auto use = [&](const BagCursor& at, size_t i) {
      out[i] = kernels.dot(scratch.data(), grads + at.bag * dim, static_cast<uint32_t>(dim));
    };
    read_bags(bags, range, options, target, use);
  });
}

}  // namespace monolith
