#include "table/exchange.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>

#include "ops/fetch.h"
#include "ops/take.h"
#include "table/copy.h"
#include "table/hash.h"
#include "table/share.h"

namespace monolith {
namespace {

constexpr size_t kAhead = 16;        // ids between fetching a row and using it
constexpr size_t kRangeKeys = 2048;  // ids that a thread pools at once
constexpr size_t kRangeBags = 4096;

uint64_t process_salt() {
  static const uint64_t salt = (uint64_t{std::random_device()()} << 32) | 1;
  return salt;
}

// Some bags of a feature.
struct Range {
  size_t feature, first, last;
};

void add_ranges(std::vector<Range>& ranges, size_t feature, const Bags& bags) {
  for (size_t first = 0; first < bags.num_bags;) {
    const size_t key = bags.begin(first) + kRangeKeys;
    size_t last = key < bags.num_keys ? bags.bag_from(key) : bags.num_bags;
    last = std::clamp(last, first + 1, std::min(first + kRangeBags, bags.num_bags));
    ranges.push_back({feature, first, last});
    first = last;
  }
}

// rows: of each distinct key; numbers: of each id in the bags.
void pool_bags(const Bags& bags, size_t first, size_t last, const float* const* rows,
               const uint32_t* numbers, size_t dim, const BagRows<float>& out) noexcept {
  const Kernels& used = kernels();
  const size_t end_of_all = bags.begin(last);
  for (size_t bag = first; bag < last; ++bag) {
    float* pooled = out.of(bag, dim);
    const size_t begin = bags.begin(bag), end = bags.end(bag);
    if (begin == end) {
      std::fill_n(pooled, dim, 0.0f);
      continue;
    }
    for (size_t i = begin; i < end; ++i) {
      if (i + kAhead < end_of_all) fetch_bytes(rows[numbers[i + kAhead]], dim * 4);
      const float* row = rows[numbers[i]];
      i == begin ? copy_short(pooled, row, dim * 4) : used.add(pooled, row, dim);
    }
    if (end > begin + 1 && bags.has_factors()) used.scale(pooled, pooled, bags.factor(bag), dim);
  }
}

}  // namespace

uint32_t ExchangeKeys::server_of(const Batch::Entry& entry) const noexcept {
  if (!owners_.empty()) return owners_[entry.hash >> 52];
  const auto n = static_cast<int64_t>(num_servers_);
  const int64_t remainder = entry.key % n;
  return static_cast<uint32_t>(remainder < 0 ? remainder + n : remainder);
}

std::vector<ExchangeKeys::Part> ExchangeKeys::parts() const {
  std::vector<Part> parts;
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].n > 0) parts.push_back({t, tables_[t].n});
  }
  return parts;
}

// Partitions of the batch are counted by server, then numbered: each by one thread.
void ExchangeKeys::group(OfTable& table, unsigned threads) const {
  const int64_t* keys = table.bags.front().keys;
  if (table.bags.size() > 1) {
    auto* joined = take<int64_t>(table.memory, table.n);
    keys = joined;
    for (const Bags& bags : table.bags) joined = std::copy_n(bags.keys, bags.num_keys, joined);
  }
  Batch& batch = table.batch.emplace(keys, static_cast<uint32_t>(table.n), nullptr, process_salt(),
                                     0, threads, table.memory);
  table.numbers = take<uint32_t>(table.memory, table.n);
  const size_t num_counts = batch.num_partitions() * num_servers_;
  uint32_t* counts = take<uint32_t>(table.memory, num_counts);
  std::fill_n(counts, num_counts, 0);
  std::atomic<uint32_t> next_grouped{0}, next_numbered{0};
  Team::run(threads, [&](Team& team, unsigned member) {
    batch.arrange(team, member);
    team.attempt([&] {
      Batch::Scratch scratch;
      for (uint32_t p; (p = next_grouped++) < batch.num_partitions();) {
        batch.group(p, scratch);
        uint32_t* next = counts + p * num_servers_;
        for (const Batch::Entry& entry : batch.distinct(p)) ++next[server_of(entry)];
      }
    });
    team.barrier();
    if (team.has_failed()) return;
    if (member == 0) {
      uint32_t next = 0;
      for (size_t server = 0; server < num_servers_; ++server) {
        table.starts[server] = next;
        for (size_t at = server; at < num_counts; at += num_servers_) {
          next += std::exchange(counts[at], next);
        }
      }
      table.starts[num_servers_] = next;
    }
    team.barrier();
    for (uint32_t p; (p = next_numbered++) < batch.num_partitions();) {
      uint32_t* next = counts + p * num_servers_;
      for (Batch::Entry& entry : batch.distinct(p)) {
        entry.row = next[server_of(entry)]++;
        for (const uint32_t i : batch.occurrences(entry)) table.numbers[i] = entry.row;
      }
    }
  });
}

void ExchangeKeys::place(std::span<const uint32_t> dims) {
  splits_.resize(num_servers_ * (tables_.size() + 1));
  size_t key = 0, value = 0;
  for (size_t server = 0; server < num_servers_; ++server) {
    key_starts_.push_back(key);
    float_starts_.push_back(value);
    int64_t* splits = splits_.data() + server * (tables_.size() + 1);
    for (size_t t = 0; t < tables_.size(); ++t) {
      OfTable& table = tables_[t];
      const size_t first = table.starts[server], count = table.starts[server + 1] - first;
      table.places[server] = {key - first, value - first * dims[t]};  // may wrap; sums do not
      splits[t] = static_cast<int64_t>(key - key_starts_.back());
      key += count;
      value += count * dims[t];
    }
    splits[tables_.size()] = static_cast<int64_t>(key - key_starts_.back());
  }
  key_starts_.push_back(key);
  float_starts_.push_back(value);
}

void ExchangeKeys::write(int64_t* keys, int64_t* splits, unsigned threads) const {
  std::copy(splits_.begin(), splits_.end(), splits);
  share(parts(), threads, [&](const Part& part, unsigned) {
    const OfTable& table = tables_[part.table];
    for (uint32_t p = 0; p < table.batch->num_partitions(); ++p) {
      for (const Batch::Entry& entry : table.batch->distinct(p)) {
        keys[table.places[server_of(entry)].key + entry.row] = entry.key;
      }
    }
  });
}

Exchange::Exchange(std::vector<uint32_t> dims, std::vector<Feature> features,
                   std::vector<uint16_t> owners, size_t num_servers)
    : dims_(std::move(dims)),
      features_(std::move(features)),
      owners_(std::move(owners)),
      num_servers_(num_servers) {
  for (size_t t = 0, f = 0; t <= dims_.size(); ++t) {
    while (f < features_.size() && features_[f].table < t) ++f;
    first_feature_.push_back(f);
  }
  size_t num_apart = 0;
  for (const Feature& feature : features_) {
    apart_.push_back(num_apart);
    num_apart += feature.is_apart;
  }
}

template <typename BagsOf>
void Exchange::group(ExchangeKeys& keys, const BagsOf& bags, unsigned threads) const {
  keys.num_servers_ = num_servers_;
  keys.owners_ = owners_;
  for (size_t t = 0; t < dims_.size(); ++t) {
    ExchangeKeys::OfTable& table = keys.tables_.emplace_back();
    table.starts.resize(num_servers_ + 1);
    table.places.resize(num_servers_);
    table.bags = bags(t);
    for (const Bags& some : table.bags) table.n += some.num_keys;
    keys.num_ids_ += table.n;
  }
  share(keys.parts(), threads, [&](const ExchangeKeys::Part& part, unsigned members) {
    keys.group(keys.tables_[part.table], members);
  });
  keys.place(dims_);
}

std::unique_ptr<ExchangeKeys> Exchange::keys_of(std::unique_ptr<FeatureKeys> features,
                                                unsigned threads) const {
  std::unique_ptr<ExchangeKeys> keys(new ExchangeKeys());
  keys->features_ = std::move(features);
  const auto bags_of = [&](size_t t) {
    std::vector<Bags> list;
    for (size_t f = first_feature_[t]; f < first_feature_[t + 1]; ++f) {
      const Bags& bags = keys->features_->bags(f);
      if (bags.num_keys > 0) list.push_back(bags);
    }
    return list;
  };
  group(*keys, bags_of, threads);
  return keys;
}

std::unique_ptr<ExchangeKeys> Exchange::keys_of(std::span<const Piece> pieces,
                                                unsigned threads) const {
  std::unique_ptr<ExchangeKeys> keys(new ExchangeKeys());
  const auto bags_of = [&](size_t t) {
    std::vector<Bags> list;
    for (const BagPiece& piece : pieces_of(pieces, t)) list.push_back(piece.bags);
    return list;
  };
  group(*keys, bags_of, threads);
  return keys;
}

template <typename T>
BagRows<T> Exchange::rows_of(size_t f, const Rows<T>& rows) const noexcept {
  const Feature& feature = features_[f];
  if (feature.is_apart) return {rows.apart[apart_[f]], dims_[feature.table]};
  if (rows.matrix.data == nullptr) return {nullptr, 0};
  const size_t per_row = feature.is_block ? feature.max_length : 1;
  return {rows.matrix.data + feature.column, rows.matrix.stride, per_row};
}

void Exchange::pool(const ExchangeKeys& keys, std::span<const float* const> answers,
                    const Rows<float>& out, unsigned threads) const {
  std::vector<std::vector<const float*>> rows(dims_.size());
  std::vector<const uint32_t*> numbers(features_.size());
  std::vector<Range> ranges;
  for (size_t t = 0; t < dims_.size(); ++t) {
    const ExchangeKeys::OfTable& table = keys.tables_[t];
    rows[t].resize(table.starts.back());
    for (size_t server = 0; server < num_servers_; ++server) {
      const size_t place = table.places[server].value - keys.float_starts_[server];
      for (size_t u = table.starts[server]; u < table.starts[server + 1]; ++u) {
        rows[t][u] = answers[server] + (place + u * dims_[t]);
      }
    }
    const uint32_t* next = table.numbers;
    for (size_t f = first_feature_[t]; f < first_feature_[t + 1]; ++f) {
      const Bags& bags = keys.features_->bags(f);
      numbers[f] = next;
      next += bags.num_keys;
      add_ranges(ranges, f, bags);
    }
  }
  // Neighbours lie in the same lines of the output: a thread takes some of them together.
  const size_t claim = std::clamp<size_t>(ranges.size() / (8 * threads), 1, 64);
  std::atomic<size_t> next{0};
  Team::run(threads, [&](Team&, unsigned) {
    for (size_t at; (at = next.fetch_add(claim)) < ranges.size();) {
      for (size_t r = at; r < std::min(at + claim, ranges.size()); ++r) {
        const auto [f, first, last] = ranges[r];
        const uint32_t table = features_[f].table;
        pool_bags(keys.features_->bags(f), first, last, rows[table].data(), numbers[f],
                  dims_[table], rows_of(f, out));
      }
    }
  });
}

std::vector<BagPiece> Exchange::pieces_of(std::span<const Piece> pieces, size_t t) const {
  std::vector<BagPiece> parts;
  for (const Piece& piece : pieces) {
    for (size_t f = first_feature_[t]; f < first_feature_[t + 1]; ++f) {
      const Bags& bags = piece.keys->features_->bags(f);
      const BagRows<const float> grads = rows_of(f, piece.grads);
      if (bags.num_keys > 0 && grads.data != nullptr) parts.push_back({bags, grads, nullptr});
    }
  }
  return parts;
}

std::vector<double> Exchange::sum(const ExchangeKeys& keys, std::span<const Piece> pieces,
                                  float* out, int32_t* counts, unsigned threads) const {
  constexpr size_t kAheadRows = 64;
  const Kernels& used = kernels();
  std::vector<double> norms(dims_.size());
  share(keys.parts(), threads, [&](const ExchangeKeys::Part& part, unsigned members) {
    const ExchangeKeys::OfTable& table = keys.tables_[part.table];
    const size_t dim = dims_[part.table];
    std::pmr::monotonic_buffer_resource memory;
    const std::vector<BagPiece> parts = pieces_of(pieces, part.table);
    const BagGradients grads(parts, dim, memory);
    // By first occurrence, and added in that order, whatever the threads do.
    double* squares = take<double>(memory, table.n);
    std::fill_n(squares, table.n, 0.0);
    std::atomic<uint32_t> next{0};
    Team::run(members, [&](Team&, unsigned) {
      for (uint32_t p; (p = next++) < table.batch->num_partitions();) {
        const std::span<const uint32_t> order = table.batch->order(p);
        size_t fetched = 0, end = 0;
        for (const Batch::Entry& entry : table.batch->distinct(p)) {
          end += entry.num_occurs;
          for (; fetched < std::min(end + kAheadRows, order.size()); ++fetched) {
            grads.prefetch(order[fetched]);
          }
          const ExchangeKeys::Place& place = table.places[keys.server_of(entry)];
          const std::span<const uint32_t> occurrences = table.batch->occurrences(entry);
          float* sum = out + (place.value + entry.row * dim);
          grads.sum(occurrences, used, sum);
          squares[occurrences.front()] = used.sum_squares(sum, dim);
          counts[place.key + entry.row] = static_cast<int32_t>(entry.num_occurs);
        }
      }
    });
    norms[part.table] = std::sqrt(std::accumulate(squares, squares + table.n, 0.0));
  });
  return norms;
}

size_t Exchange::num_ids(std::span<const Piece> pieces, size_t table) const {
  size_t n = 0;
  for (const BagPiece& piece : pieces_of(pieces, table)) n += piece.bags.num_keys;
  return n;
}

void Exchange::write_out(std::span<const Piece> pieces, size_t table, int64_t* keys,
                         float* grads) const {
  std::pmr::monotonic_buffer_resource memory;
  const std::vector<BagPiece> parts = pieces_of(pieces, table);
  if (parts.empty()) return;
  const BagGradients source(parts, dims_[table], memory);
  std::copy_n(source.keys(), source.size(), keys);
  source.write_out(kernels(), grads);
}

}  // namespace monolith
