// Runs every verb concurrently with every other verb, from many threads. Run under the thread and
// address sanitizers.
//
// Each key's row holds `dim` equal weights at all times, because every write is uniform over the
// row: a torn read shows as a row of unequal weights. The weights of the bf16 table are small
// multiples of 1/4, which it rounds to themselves.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "check.h"
#include "tables.h"

using namespace monolith;

namespace {

constexpr uint32_t kDim = 16;
constexpr size_t kKeys = 4000;
constexpr size_t kBatch = 600;
constexpr int kRounds = 120;

TableSpec constant_table() {
  TableSpec spec = adagrad_table(kDim);
  spec.segments[0].minval = spec.segments[0].maxval = 1.0f;
  spec.expiry_days = 1;
  spec.log_bytes = 1000;  // blocks of few notes, so that threads take many
  return spec;
}

TableSpec bf16_table() {
  TableSpec spec;
  spec.segments = {{kDim, "sgd", {}, 1.0f, 1.0f, false, "bf16"}};
  return spec;
}

// With a rule for admission, expiry by the times that write() uses, and too small a budget.
TableSpec forgetful_table(AdmissionKind kind, BudgetPolicy policy, size_t budget_bytes) {
  TableSpec spec = constant_table();
  spec.admission = {kind, 2, {{5, 0}}, size_t{16} * 4096, 2, 1, 50, false};
  spec.budget_bytes = budget_bytes;
  spec.budget_policy = policy;
  return spec;
}

std::vector<int64_t> some_keys(std::mt19937_64& random) {
  std::vector<int64_t> keys(kBatch);
  for (int64_t& key : keys) key = static_cast<int64_t>(random() % kKeys) - 7;
  return keys;
}

// Rows of kDim equal numbers of some bytes each.
void check_whole(const std::vector<char>& rows, size_t num_rows, size_t bytes) {
  for (size_t i = 0; i < num_rows * kDim * bytes; i += kDim * bytes) {
    const char* row = rows.data() + i;
    for (size_t c = 1; c < kDim; ++c) CHECK(std::memcmp(row, row + c * bytes, bytes) == 0);
  }
}

// kBatch keys in bags of 3, and an empty one.
struct SomeBags {
  static constexpr size_t kBags = kBatch / 3 + 1;
  explicit SomeBags(std::mt19937_64& random)
      : keys(some_keys(random)), splits(kBags + 1), weights(kBatch, 0.5f) {
    for (size_t bag = 1; bag <= kBags; ++bag) splits[bag] = static_cast<int64_t>(bag - 1) * 3;
    const auto mode = static_cast<PoolMode>(random() % 4);
    const bool is_weighted = mode == PoolMode::kSum && random() % 2 == 0;
    bags = {keys.data(), kBatch, splits.data(),
            kBags,       mode,   is_weighted ? weights.data() : nullptr};
  }
  std::vector<int64_t> keys, splits;
  std::vector<float> weights;
  Bags bags;
};

void read_bags(Table& table, std::mt19937_64& random) {
  const SomeBags random_bags(random);
  const auto threads = static_cast<unsigned>(1 + random() % 2);
  std::vector<char> out(SomeBags::kBags * kDim * 4);
  std::vector<int32_t> places(SomeBags::kBags * kDim);
  int32_t* winners = random_bags.bags.mode == PoolMode::kMax ? places.data() : nullptr;
  table.lookup_bags(random_bags.bags, {random() % 2 == 0, nullptr},
                    reinterpret_cast<float*>(out.data()), winners, threads);
  check_whole(out, SomeBags::kBags, 4);
  const std::vector<float> ones(SomeBags::kBags * kDim, 1.0f);
  std::vector<float> dots(kBatch);
  table.bag_weight_gradients(random_bags.bags, {true, nullptr}, ones.data(), dots.data(), threads);
  const BagPiece piece{random_bags.bags, {ones.data(), kDim}, winners};
  CHECK(table.sum_bag_gradients({&piece, 1}, threads).norm() > 0.0);
}

void read(Table& table, std::mt19937_64& random) {
  const bool is_plain = table.layout().is_plain();
  const uint32_t bytes = is_plain ? 4 : 2;  // of a weight
  std::vector<char> out(kBatch * kDim * 4), norm(kBatch * kDim * 4);
  std::vector<int64_t> times(kBatch);
  bool flags[kBatch];
  Table::Columns columns{times.data(), {out.data()}, {bytes * kDim}};
  if (is_plain) {
    columns.data.push_back(norm.data());
    columns.sizes.push_back(4 * kDim);
  }
  const auto keys = some_keys(random);
  table.lookup(keys.data(), kBatch, reinterpret_cast<float*>(out.data()), random() % 2, nullptr,
               1 + random() % 2);
  check_whole(out, kBatch, 4);
  table.entries(keys.data(), kBatch, flags, columns, 1 + random() % 2);
  check_whole(out, kBatch, bytes);
  check_whole(norm, kBatch, 4);
  table.contains(keys.data(), kBatch, flags, 1 + random() % 2);
  std::vector<int64_t> exported(kBatch);
  const size_t n = table.export_rows(random(), UINT64_MAX, kBatch, exported.data(), columns);
  for (size_t i = 1; i < n; ++i) CHECK(key_hash(exported[i - 1]) < key_hash(exported[i]));
  check_whole(out, n, bytes);
  read_bags(table, random);
}

void write(Table& table, std::mt19937_64& random) {
  const auto keys = some_keys(random);
  std::vector<float> values(kBatch * kDim, 0.5f);
  const float rate = 0.5f;
  const auto threads = static_cast<unsigned>(1 + random() % 2);
  bool existed[kBatch];
  std::vector<int32_t> status(kBatch);
  const auto partitions = std::vector<uint32_t>{7, 8, static_cast<uint32_t>(random() % 4096)};
  switch (random() % 9) {
    case 0:
      return table.assign(keys.data(), kBatch, values.data(), 5, threads);
    case 1:
      return table.assign_add(keys.data(), kBatch, values.data(), 6, threads);
    case 2:
      return table.erase(keys.data(), kBatch, existed, threads);
    case 3:
      return table.reinitialize(keys.data(), kBatch, status.data(), 7, threads);
    case 4:
      return table.lookup_or_insert(keys.data(), kBatch, values.data(), nullptr, 8, threads);
    case 7:
      if (random() % 2) table.evict(86400 + static_cast<uint32_t>(random() % 9));
      table.evict_slice(random(), 86400 + static_cast<uint32_t>(random() % 9));
      return;
    case 8: {
      const auto rows = table.export_candidates(partitions);
      const size_t width = std::max(1u, table.num_candidate_columns());
      return table.import_candidates(rows.data(), rows.size() / width);
    }
    case 5:
      if (random() % 8 == 0) return static_cast<void>(table.clear());
      [[fallthrough]];
    case 6: {
      SomeBags random_bags(random);
      random_bags.bags.mode = PoolMode::kSum;  // so that the weights stay multiples of 1/4
      const BagPiece piece{random_bags.bags, {values.data(), kDim}, nullptr};
      const BagPiece both[] = {piece, piece};
      GradientSum sum = table.sum_bag_gradients(both, threads);
      table.apply_bag_gradients(sum, {&rate, nullptr, 0}, 9, threads);
      return;
    }
    default:
      table.apply_gradients(keys.data(), kBatch, values.data(), {&rate, nullptr, 0}, 9, threads);
  }
}

// A cut stays unchanged while other threads write and a reader reads the log.
void follow(Table& table, std::mt19937_64& random) {
  const std::shared_ptr<Cut> cut = table.open_cut();
  const bool is_plain = table.layout().is_plain();
  const uint32_t bytes = is_plain ? 4 : 2;
  const size_t limit = 2 * kKeys;
  std::vector<char> weights(limit * kDim * 4), norm(limit * kDim * 4);
  std::vector<int64_t> keys(limit), times(limit);
  Table::Columns columns{times.data(), {weights.data()}, {bytes * kDim}};
  if (is_plain) {
    columns.data.push_back(norm.data());
    columns.sizes.push_back(4 * kDim);
  }
  const auto partitions = std::vector<uint32_t>{7, 8, static_cast<uint32_t>(random() % 4096)};
  const auto candidates = table.export_candidates(partitions, cut.get());
  const size_t n = table.export_rows(0, UINT64_MAX, limit, keys.data(), columns, cut.get());
  CHECK(n == cut->facts().num_rows);
  check_whole(weights, n, bytes);
  check_whole(norm, n, 4);
  for (size_t i = 0; i < n; ++i) CHECK(times[i] <= cut->facts().latest_time);
  CHECK(table.export_candidates(partitions, cut.get()) == candidates);
  for (uint32_t p = 0; p < 2048; ++p) cut->release(p);
  table.changes(random() % 2 ? "one" : "other", 1 + random() % 2);
  CHECK(table.export_rows(uint64_t{1} << 63, UINT64_MAX, limit, keys.data(), columns, cut.get()) <=
        n);
  if (random() % 4 == 0) table.drop_cursor("one");
  table.close_cut(*cut);
}

void run(const TableSpec& spec) {
  Table table(spec);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 7; ++t) {
    threads.emplace_back([&table, &spec, t] {
      std::mt19937_64 random(t);
      for (int round = 0; round < kRounds; ++round) {
        t < 3 ? read(table, random) : t < 6 ? write(table, random) : follow(table, random);
        const size_t used = table.row_bytes() + table.index_bytes() + table.candidate_bytes();
        CHECK(used + sizeof(Table) <= spec.budget_bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto& c = table.counters();
  CHECK(table.num_rows() == c.inserted - c.erased - c.evicted - c.evicted_for_budget);
  std::printf("stress: %llu rows, %llu retries, %llu refused, %llu evicted, %llu for the budget\n",
              static_cast<unsigned long long>(table.num_rows()),
              static_cast<unsigned long long>(c.reader_retries.load()),
              static_cast<unsigned long long>(c.refused.load()),
              static_cast<unsigned long long>(c.evicted.load()),
              static_cast<unsigned long long>(c.evicted_for_budget.load()));
}

}  // namespace

int main() {
  run(constant_table());
  run(bf16_table());
  run(forgetful_table(AdmissionKind::kMinCount, BudgetPolicy::kEvictOldest, 800'000));
  run(forgetful_table(AdmissionKind::kSlidingFilter, BudgetPolicy::kRefuse, 3'000'000));
  run(forgetful_table(AdmissionKind::kProbabilistic, BudgetPolicy::kEvictLeastFrequent, 300'000));
}
