// An exchange with servers: each key is asked for once, and rows and sums have the bits of a table.
#include "table/exchange.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "table/hash.h"
#include "tests/check.h"
#include "tests/tables.h"

using namespace monolith;

namespace {

constexpr size_t kServers = 3, kBatch = 5000;
const std::vector<uint32_t> kDims = {4, 7};

std::vector<uint16_t> owners() {
  std::vector<uint16_t> all(4096);
  for (size_t p = 0; p < all.size(); ++p) all[p] = static_cast<uint16_t>(p * kServers / 4096);
  return all;
}

// Two pooled features of the first table; one in blocks and one apart of the second.
std::vector<Feature> features() {
  return {{"a", 0, PoolMode::kMean, 0, false, 0},
          {"b", 0, PoolMode::kSum, 2, false, 4},
          {"c", 1, PoolMode::kSum, 2, true, 8},
          {"d", 1, PoolMode::kSum, 0, false, 0, true}};
}
constexpr size_t kWidth = 8 + 2 * 7;

struct Batch4 {
  std::vector<int64_t> ids, splits{0};
  std::vector<IdColumn> columns;
};

Batch4 some_ids(int64_t seed) {
  Batch4 all;
  for (size_t sample = 0; sample < kBatch; ++sample) {
    for (size_t i = 0; i < sample % 4; ++i) {
      all.ids.push_back((static_cast<int64_t>(all.ids.size()) * 7919 + seed) % 3000 - 1500);
    }
    all.splits.push_back(static_cast<int64_t>(all.ids.size()));
  }
  for (int f = 0; f < 4; ++f) {
    all.columns.push_back({all.ids.data(), all.ids.size(), all.splits.data()});
  }
  return all;
}

std::unique_ptr<FeatureKeys> keys_of(const Batch4& ids, unsigned threads) {
  return std::make_unique<FeatureKeys>(features(), ids.columns, kBatch, threads);
}

struct Request {
  std::vector<int64_t> keys, splits;
};

Request written(const ExchangeKeys& keys, unsigned threads) {
  Request all{std::vector<int64_t>(keys.key_starts().back()), std::vector<int64_t>(kServers * 3)};
  keys.write(all.keys.data(), all.splits.data(), threads);
  return all;
}

void test_each_key_goes_to_its_server_once() {
  const Exchange exchange(kDims, features(), owners(), kServers);
  const Batch4 ids = some_ids(0);
  for (const unsigned threads : {1u, 3u}) {
    const auto keys = exchange.keys_of(keys_of(ids, threads), threads);
    const Request request = written(*keys, threads);
    std::set<int64_t> seen[2];
    for (size_t server = 0; server < kServers; ++server) {
      const int64_t* splits = request.splits.data() + server * 3;
      CHECK(splits[0] == 0);
      for (size_t t = 0; t < 2; ++t) {
        for (int64_t i = splits[t]; i < splits[t + 1]; ++i) {
          const int64_t key = request.keys[keys->key_starts()[server] + static_cast<size_t>(i)];
          CHECK(owners()[key_hash(key) >> 52] == server);
          CHECK(seen[t].insert(key).second);
        }
      }
    }
    CHECK(seen[0] == std::set<int64_t>(ids.ids.begin(), ids.ids.end()));
    CHECK(seen[1] == seen[0]);
  }
}

// What a server would answer: a row all of key, table and column.
float value_of(int64_t key, size_t table, size_t column) {
  return std::sin(static_cast<float>(key) + 0.1f * static_cast<float>(table * 16 + column));
}

std::vector<float> answers_to(const ExchangeKeys& keys, const Request& request) {
  std::vector<float> rows;
  for (size_t server = 0; server < kServers; ++server) {
    const int64_t* splits = request.splits.data() + server * 3;
    for (size_t t = 0; t < 2; ++t) {
      for (int64_t i = splits[t]; i < splits[t + 1]; ++i) {
        const int64_t key = request.keys[keys.key_starts()[server] + static_cast<size_t>(i)];
        for (size_t c = 0; c < kDims[t]; ++c) rows.push_back(value_of(key, t, c));
      }
    }
  }
  return rows;
}

void test_pooled_rows_equal_those_of_each_id() {
  const Exchange exchange(kDims, features(), owners(), kServers);
  const Batch4 ids = some_ids(3);
  for (const unsigned threads : {1u, 3u}) {
    const auto keys = exchange.keys_of(keys_of(ids, threads), threads);
    const std::vector<float> rows = answers_to(*keys, written(*keys, threads));
    std::vector<const float*> answers;
    for (size_t s = 0; s < kServers; ++s) answers.push_back(rows.data() + keys->float_starts()[s]);
    std::vector<float> out(kBatch * kWidth), apart(ids.ids.size() * 7), mean(kBatch * 4);
    exchange.pool(*keys, answers, {{out.data(), kWidth}, {apart.data()}}, threads);
    std::vector<float> each;
    for (const int64_t id : ids.ids) {
      for (size_t c = 0; c < 4; ++c) each.push_back(value_of(id, 0, c));
    }
    const Bags bags{ids.ids.data(), ids.ids.size(),  ids.splits.data(),
                    kBatch,         PoolMode::kMean, nullptr};
    pool_rows(bags, each.data(), 4, mean.data(), nullptr, 1);
    for (size_t sample = 0; sample < kBatch; ++sample) {
      CHECK(std::equal(mean.begin() + sample * 4, mean.begin() + sample * 4 + 4,
                       out.begin() + sample * kWidth));
    }
    for (size_t i = 0; i < ids.ids.size(); ++i) {
      for (size_t c = 0; c < 7; ++c) CHECK(apart[i * 7 + c] == value_of(ids.ids[i], 1, c));
    }
  }
}

// Two batches; the second has no gradient of its matrix.
void test_sums_equal_those_of_a_table() {
  const Exchange exchange(kDims, features(), owners(), kServers);
  const Batch4 ids[] = {some_ids(3), some_ids(8)};
  std::vector<float> grads(kBatch * kWidth), apart(ids[0].ids.size() * 7);
  for (size_t i = 0; i < grads.size(); ++i) grads[i] = std::cos(static_cast<float>(i));
  for (size_t i = 0; i < apart.size(); ++i) apart[i] = std::cos(static_cast<float>(i) + 0.5f);
  for (const unsigned threads : {1u, 3u}) {
    const auto first = exchange.keys_of(keys_of(ids[0], threads), threads);
    const auto second = exchange.keys_of(keys_of(ids[1], threads), threads);
    const Exchange::Piece pieces[] = {{first.get(), {{grads.data(), kWidth}, {apart.data()}}},
                                      {second.get(), {{nullptr, 0}, {apart.data()}}}};
    const auto keys = exchange.keys_of(pieces, threads);
    const Request request = written(*keys, threads);
    std::vector<float> sums(keys->float_starts().back());
    std::vector<int32_t> counts(request.keys.size());
    const std::vector<double> norms =
        exchange.sum(*keys, pieces, sums.data(), counts.data(), threads);
    CHECK(exchange.num_ids(pieces, 0) == exchange.num_ids({pieces, 1}, 0));
    CHECK(exchange.num_ids(pieces, 1) > exchange.num_ids({pieces, 1}, 1));
    uint64_t total = 0;
    for (const int32_t count : counts) total += static_cast<uint64_t>(count);
    CHECK(total == keys->num_ids());
    for (size_t t = 0; t < 2; ++t) {
      // The same through a table: every occurrence, and then every sum.
      Table expected(adagrad_table(kDims[t])), found(adagrad_table(kDims[t]));
      const size_t n = exchange.num_ids(pieces, t);
      std::vector<int64_t> all_keys(n);
      std::vector<float> all_grads(n * kDims[t]);
      exchange.write_out(pieces, t, all_keys.data(), all_grads.data());
      const float rate = 0.1f;
      const Table::StepOptions options{&rate, nullptr, 0};
      const Bags bags{all_keys.data(), n, nullptr, n, PoolMode::kSum, nullptr, 1};
      const BagPiece piece{bags, {all_grads.data(), kDims[t]}, nullptr};
      GradientSum sum = expected.sum_bag_gradients({&piece, 1}, 1);
      CHECK(sum.norm() == norms[t]);
      expected.apply_bag_gradients(sum, options, 9, 1);
      for (size_t server = 0; server < kServers; ++server) {
        const int64_t* splits = request.splits.data() + server * 3;
        const size_t start = keys->key_starts()[server] + static_cast<size_t>(splits[t]);
        const auto count = static_cast<size_t>(splits[t + 1] - splits[t]);
        size_t value = keys->float_starts()[server];
        if (t == 1) value += static_cast<size_t>(splits[1]) * kDims[0];
        found.apply_gradients(request.keys.data() + start, count, sums.data() + value, options, 9,
                              threads, counts.data() + start);
      }
      std::vector<float> a(n * kDims[t]), b(n * kDims[t]);
      expected.lookup(all_keys.data(), n, a.data(), true, nullptr, 1);
      found.lookup(all_keys.data(), n, b.data(), true, nullptr, 1);
      CHECK(a == b);
    }
  }
}

void test_nothing_to_ask_for() {
  const Exchange exchange(kDims, features(), owners(), kServers);
  const std::vector<int64_t> splits(kBatch + 1);
  const std::vector<IdColumn> columns(4, {nullptr, 0, splits.data()});
  const auto keys =
      exchange.keys_of(std::make_unique<FeatureKeys>(features(), columns, kBatch, 1), 1);
  CHECK(keys->num_ids() == 0 && keys->key_starts().back() == 0);
  std::vector<float> out(kBatch * kWidth, 1.0f);
  exchange.pool(*keys, std::vector<const float*>(kServers), {{out.data(), kWidth}, {nullptr}}, 1);
  CHECK(out == std::vector<float>(kBatch * kWidth));
}

}  // namespace

int main() {
  test_each_key_goes_to_its_server_once();
  test_pooled_rows_equal_those_of_each_id();
  test_sums_equal_those_of_a_table();
  test_nothing_to_ask_for();
}
