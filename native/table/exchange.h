// Features of a batch whose tables are on servers, as the client sees them: the distinct keys that
// each server is asked for, the rows of its answer pooled by bag, and the gradients of the bags
// summed by key.
//
//   keys to a server        | of table 0 | of table 1 | ...      row splits (tables + 1,)
//   rows, or gradients      the same, with the dim of its table for each key
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "ops/batch.h"
#include "table/features.h"

namespace monolith {

// The distinct keys of one batch, or of several, server by server and table by table. Read-only
// after `Exchange` has made it; any number of threads may read.
class ExchangeKeys {
 public:
  ExchangeKeys(const ExchangeKeys&) = delete;
  ExchangeKeys& operator=(const ExchangeKeys&) = delete;

  // Ids in the bags, each as often as it occurs.
  size_t num_ids() const noexcept { return num_ids_; }
  // Where the keys of each server begin, and the end of all: (servers + 1,).
  std::span<const size_t> key_starts() const noexcept { return key_starts_; }
  // The same for rows and gradients, in floats.
  std::span<const size_t> float_starts() const noexcept { return float_starts_; }
  // keys: (key_starts().back(),); splits: (servers, tables + 1), each row from 0 on.
  void write(int64_t* keys, int64_t* splits, unsigned threads) const;

 private:
  friend class Exchange;
  // Where a table's keys lie in what a server gets. Minus the number of its first key there, so
  // that a key is at the sum with its own number.
  struct Place {
    size_t key, value;
  };
  struct OfTable {
    std::pmr::monotonic_buffer_resource memory;
    std::vector<Bags> bags;        // without those that are empty
    size_t n = 0;                  // keys in the bags
    std::optional<Batch> batch;    // Entry::row is the number of a key: server by server
    uint32_t* numbers = nullptr;   // (n,), of each id
    std::vector<uint32_t> starts;  // (servers + 1,), first number of each server
    std::vector<Place> places;     // (servers,)
  };
  // A table of a call.
  struct Part {
    size_t table, n;
  };

  ExchangeKeys() = default;
  uint32_t server_of(const Batch::Entry& entry) const noexcept;
  void group(OfTable& table, unsigned threads) const;
  void place(std::span<const uint32_t> dims);
  std::vector<Part> parts() const;

  std::unique_ptr<FeatureKeys> features_;  // null: of several batches
  std::deque<OfTable> tables_;
  size_t num_servers_ = 0, num_ids_ = 0;
  std::span<const uint16_t> owners_;
  std::vector<int64_t> splits_;  // (servers, tables + 1)
  std::vector<size_t> key_starts_, float_starts_;
};

// What client and servers agree on. Any thread may call at any time; it outlives its keys.
class Exchange {
 public:
  // dims: of each table; features come table by table. owners: server of each partition, (4096,), a
  // partition being the top 12 bits of a key's hash; empty: the server is the floor remainder of
  // the key.
  Exchange(std::vector<uint32_t> dims, std::vector<Feature> features, std::vector<uint16_t> owners,
           size_t num_servers);

  std::span<const Feature> features() const noexcept { return features_; }

  template <typename T>
  using Rows = FeatureTables::Rows<T>;
  // Gradients of one batch; null where an output has none: its keys are left out.
  struct Piece {
    const ExchangeKeys* keys;
    Rows<const float> grads;
  };

  std::unique_ptr<ExchangeKeys> keys_of(std::unique_ptr<FeatureKeys> features,
                                        unsigned threads) const;
  // The keys that have gradients, of one batch or several, whose keys are borrowed.
  std::unique_ptr<ExchangeKeys> keys_of(std::span<const Piece> pieces, unsigned threads) const;

  // Pools the answers of the servers, with the bits of Table::lookup_bags. keys: of one batch.
  void pool(const ExchangeKeys& keys, std::span<const float* const> answers, const Rows<float>& out,
            unsigned threads) const;

  // Sums of equal keys in the order of the pieces, the features and the ids, starting from the
  // first (contract 1). keys: of the pieces, in this order. out: (float_starts().back(),); counts:
  // (key_starts().back(),), ids of each key. Returns the norm of each table, as GradientSum has it.
  std::vector<double> sum(const ExchangeKeys& keys, std::span<const Piece> pieces, float* out,
                          int32_t* counts, unsigned threads) const;
  // Ids of one table that have gradients.
  size_t num_ids(std::span<const Piece> pieces, size_t table) const;
  // Each of them with its gradient: keys (n,), grads (n, dim).
  void write_out(std::span<const Piece> pieces, size_t table, int64_t* keys, float* grads) const;

 private:
  // bags(table): those of each table, without empty ones.
  template <typename BagsOf>
  void group(ExchangeKeys& keys, const BagsOf& bags, unsigned threads) const;
  template <typename T>
  BagRows<T> rows_of(size_t feature, const Rows<T>& rows) const noexcept;
  std::vector<BagPiece> pieces_of(std::span<const Piece> pieces, size_t table) const;

  const std::vector<uint32_t> dims_;
  const std::vector<Feature> features_;
  const std::vector<uint16_t> owners_;
  const size_t num_servers_;
  std::vector<size_t> first_feature_;  // (tables + 1,)
  std::vector<size_t> apart_;          // of each feature, its number among those that lie apart
};

}  // namespace monolith
