// Tests cuts and the touched log with concurrent writers, at the end of the generations, and
// without memory.
#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "check.h"
#include "tables.h"

using namespace monolith;

namespace {

constexpr uint32_t kDim = 2;
constexpr size_t kKeys = 3000;

struct TableRows {
  std::vector<int64_t> keys, times;
  std::vector<float> weights, norms;
};

TableRows export_all(Table& table, Cut* cut) {
  TableRows all;
  constexpr size_t kLimit = 700;
  for (uint64_t first = 0;;) {
    std::vector<int64_t> keys(kLimit), times(kLimit);
    std::vector<float> weights(kLimit * kDim), norms(kLimit * kDim);
    const Table::Columns columns{
        times.data(),
        {reinterpret_cast<char*>(weights.data()), reinterpret_cast<char*>(norms.data())},
        {4 * kDim, 4 * kDim}};
    const size_t n = table.export_rows(first, UINT64_MAX, kLimit, keys.data(), columns, cut);
    all.keys.insert(all.keys.end(), keys.begin(), keys.begin() + n);
    all.times.insert(all.times.end(), times.begin(), times.begin() + n);
    all.weights.insert(all.weights.end(), weights.begin(), weights.begin() + n * kDim);
    all.norms.insert(all.norms.end(), norms.begin(), norms.begin() + n * kDim);
    if (n < kLimit) return all;
    first = key_hash(all.keys.back()) + 1;
  }
}

bool same(const TableRows& a, const TableRows& b) {
  return a.keys == b.keys && a.times == b.times && a.weights == b.weights && a.norms == b.norms;
}

// Rows of keys at the cut.
struct Entries {
  std::unique_ptr<bool[]> present;
  TableRows rows;
};

Entries entries_at(Table& table, Cut* cut, const std::vector<int64_t>& keys, unsigned threads) {
  const size_t n = keys.size();
  Entries entries{std::make_unique<bool[]>(n), {keys, {}, {}, {}}};
  TableRows& rows = entries.rows;
  rows.times.assign(n, -1);
  rows.weights.assign(n * kDim, -1.0f);
  rows.norms.assign(n * kDim, -1.0f);
  const Table::Columns columns{
      rows.times.data(),
      {reinterpret_cast<char*>(rows.weights.data()), reinterpret_cast<char*>(rows.norms.data())},
      {4 * kDim, 4 * kDim}};
  table.entries(keys.data(), n, entries.present.get(), columns, threads, cut);
  return entries;
}

using Row = std::array<float, 1 + 2 * kDim>;  // time, weights, norms
using RowMap = std::map<int64_t, Row>;

Row row_of(const TableRows& rows, size_t i) {
  Row row{static_cast<float>(rows.times[i])};
  std::copy_n(&rows.weights[i * kDim], kDim, &row[1]);
  std::copy_n(&rows.norms[i * kDim], kDim, &row[1 + kDim]);
  return row;
}

RowMap map_of(const TableRows& rows) {
  RowMap map;
  for (size_t i = 0; i < rows.keys.size(); ++i) map[rows.keys[i]] = row_of(rows, i);
  return map;
}

// Brings the rows of the previous cut of a cursor to those of this cut.
void apply_changes(Table& table, Cut& cut, unsigned threads, RowMap& rows) {
  const Table::Changes changes = table.changes(cut, threads);
  CHECK(!changes.is_full);
  const Entries present = entries_at(table, &cut, changes.present, threads);
  const Entries gone = entries_at(table, &cut, changes.gone, threads);
  for (size_t i = 0; i < changes.gone.size(); ++i) {
    CHECK(!gone.present[i] && gone.rows.times[i] == 0);
    rows.erase(changes.gone[i]);
  }
  for (size_t i = 0; i < changes.present.size(); ++i) {
    CHECK(present.present[i]);
    CHECK(i == 0 || key_hash(changes.present[i - 1]) < key_hash(changes.present[i]));
    rows[changes.present[i]] = row_of(present.rows, i);
  }
}

void assign_all(Table& table, const std::vector<int64_t>& keys, float value, unsigned threads) {
  const std::vector<float> values(keys.size() * kDim, value);
  table.assign(keys.data(), keys.size(), values.data(), 1, threads);
}

// Writers change all their keys in one call, so a cut sees one value, and all keys or none.
void test_beside_writers() {
  TableSpec spec = adagrad_table(kDim);
  spec.expiry_days = 1;
  Table table(spec);
  const auto fixed = keys_from(0, kKeys), moving = keys_from(1 << 20, kKeys);
  assign_all(table, fixed, 1.0f, 1);
  table.changes("reader", 1);
  std::atomic<bool> stop{false};
  std::thread assigner([&] {
    for (int i = 2; !stop; ++i) assign_all(table, fixed, static_cast<float>(i), 1 + i % 2);
  });
  std::thread mover([&] {
    const auto existed = std::make_unique<bool[]>(kKeys);
    for (int i = 0; !stop; ++i) {
      assign_all(table, moving, 7.0f, 1);
      if (i % 2 == 0) {
        table.erase(moving.data(), kKeys, existed.get(), 2);
      } else {  // expires the moving rows and the fixed ones; the assigner puts those back
        table.evict(86402);
      }
    }
  });
  std::thread reader([&] {
    while (!stop) CHECK(!table.changes("reader", 2).is_full);
  });
  for (int round = 0; round < 40; ++round) {
    const auto first = table.open_cut();
    const auto second = table.open_cut();
    const TableRows once = export_all(table, first.get());
    const TableRows again = export_all(table, second.get());
    CHECK(once.keys.size() == first->facts().num_rows);
    CHECK(again.keys.size() == second->facts().num_rows);
    CHECK(same(once, export_all(table, first.get())));
    std::set<float> values;
    size_t num_moving = 0;
    for (size_t i = 0; i < once.keys.size(); ++i) {
      CHECK(i == 0 || key_hash(once.keys[i - 1]) < key_hash(once.keys[i]));
      num_moving += once.keys[i] >= 1 << 20;
      if (once.keys[i] < 1 << 20) values.insert(once.weights[i * kDim]);
    }
    CHECK(values.size() <= 1);
    CHECK(num_moving <= kKeys);
    table.close_cut(*first);
    table.close_cut(*second);
  }
  stop = true;
  assigner.join();
  mover.join();
  reader.join();
  CHECK(table.cut_bytes() == 0);
}

// Two readers follow the table by changes and rows of their cuts, while writers change, remove and
// add rows, and the index grows.
void test_changes_of_cuts_with_writers() {
  TableSpec spec = adagrad_table(kDim);
  spec.expiry_days = 1;
  spec.log_bytes = size_t{1} << 30;  // keys that come and go are noted each time
  Table table(spec);
  const auto fixed = keys_from(0, kKeys);
  assign_all(table, fixed, 1.0f, 1);
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    std::mt19937_64 random(1);
    const auto existed = std::make_unique<bool[]>(kKeys);
    for (int i = 2; !stop; ++i) {
      std::vector<int64_t> keys(1 + random() % 700);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % (2 * kKeys));
      i % 3 == 0 ? table.erase(keys.data(), keys.size(), existed.get(), 1)
                 : assign_all(table, keys, static_cast<float>(i), 1 + i % 2);
      if (i % 50 == 0) table.evict(86402);  // all rows but the new ones
    }
  });
  std::thread grower([&] {
    for (int64_t i = 0; !stop; ++i) {  // the table has ten times its rows in the end
      const auto keys = keys_from((1 << 20) + i % 60 * 500, 500);
      const std::vector<float> values(keys.size() * kDim, 3.0f);
      table.assign(keys.data(), keys.size(), values.data(), 2, 1);
    }
  });
  const auto follow = [&](const std::string& cursor, unsigned threads) {
    auto cut = table.open_cut(&cursor);
    CHECK(table.changes(*cut, threads).is_full);
    RowMap rows = map_of(export_all(table, cut.get()));
    table.close_cut(*cut, true);
    for (int round = 0; round < 10; ++round) {
      cut = table.open_cut(&cursor);
      apply_changes(table, *cut, threads, rows);
      CHECK(rows.size() == cut->facts().num_rows);
      CHECK(rows == map_of(export_all(table, cut.get())));
      const auto mixed = keys_from(kKeys / 2, 3 * kKeys);
      const Entries first = entries_at(table, cut.get(), mixed, threads);
      for (size_t i = 0; i < mixed.size(); ++i) {
        CHECK(first.present[i] == rows.contains(mixed[i]));
        CHECK(!first.present[i] || row_of(first.rows, i) == rows[mixed[i]]);
      }
      table.close_cut(*cut, true);
    }
  };
  std::thread other([&] { follow("b", 1); });
  follow("a", 2);
  other.join();
  stop = true;
  changer.join();
  grower.join();
  CHECK(table.cut_bytes() == 0);
}

// Keys in any order, and repeated, have the rows of the cut, also where the copies of a partition
// are few, many or none.
void test_entries_in_any_order() {
  Table table(adagrad_table(kDim));
  auto keys = crowded_keys(9000);  // of 64 partitions
  assign_all(table, {keys.begin(), keys.begin() + 6000}, 1.0f, 1);
  const RowMap old_rows = map_of(export_all(table, nullptr));
  const auto cut = table.open_cut();
  assign_all(table, {keys.begin() + 1000, keys.begin() + 7000}, 2.0f, 1);
  const auto existed = std::make_unique<bool[]>(500);
  table.erase(keys.data(), 500, existed.get(), 1);
  keys.insert(keys.end(), keys.begin(), keys.begin() + 3000);
  for (const bool is_sorted : {false, true}) {
    std::mt19937_64 random(2);
    std::shuffle(keys.begin(), keys.end(), random);
    if (is_sorted) {
      std::sort(keys.begin(), keys.end(),
                [](int64_t a, int64_t b) { return key_hash(a) < key_hash(b); });
    }
    for (const size_t n : {size_t{1}, size_t{5}, size_t{100}, keys.size()}) {
      const std::vector<int64_t> some(keys.begin(), keys.begin() + static_cast<int64_t>(n));
      const Entries entries = entries_at(table, cut.get(), some, 1 + n % 2);
      for (size_t i = 0; i < n; ++i) {
        const auto old_row = old_rows.find(some[i]);
        CHECK(entries.present[i] == (old_row != old_rows.end()));
        const Row row = row_of(entries.rows, i);
        CHECK(row == (entries.present[i] ? old_row->second : Row{}));
      }
    }
  }
  table.close_cut(*cut);
}

// A cut that ends while other threads read it gives them any result, but no freed memory.
void test_reads_during_the_end_of_a_cut() {
  Table table(adagrad_table(kDim));
  const auto keys = keys_from(0, kKeys);
  const std::string cursor = "reader";
  for (int round = 0; round < 20; ++round) {
    assign_all(table, keys, 1.0f, 1);
    const auto cut = table.open_cut(&cursor);
    assign_all(table, keys, 2.0f, 1);
    std::thread reader([&] { entries_at(table, cut.get(), keys, 1); });
    std::thread follower([&] { table.changes(*cut, 1); });
    for (uint32_t p = 0; p < Cut::kPartitions / 2; ++p) cut->release(p);
    table.close_cut(*cut, round % 2 == 0);
    reader.join();
    follower.join();
    CHECK(cut->bytes() == 0 && table.changes(*cut, 1).is_full);
  }
}

// The numbers of generations run out: rows start again from 0, and nothing is missed.
void test_wrap() {
  TableSpec spec = adagrad_table(kDim);
  spec.first_generation = Meta::kLastGeneration - 3;
  spec.admission = {AdmissionKind::kMinCount, 2, {}, size_t{16} << 20, 0, 0, 0, false};
  Table table(spec);
  const auto keys = keys_from(0, 50);
  for (int i = 0; i < 3; ++i) assign_all(table, keys, 0.0f, 1);
  table.changes("reader", 1);
  const std::string cursor = "cuts";
  table.changes(cursor, 1);
  for (int i = 1; i < 20; ++i) {
    const TableRows old_rows = export_all(table, nullptr);
    const auto cut = table.open_cut(&cursor);
    assign_all(table, keys, static_cast<float>(i), 1);
    CHECK(same(old_rows, export_all(table, cut.get())));
    CHECK(same(old_rows, entries_at(table, cut.get(), old_rows.keys, 1).rows));
    const auto before = table.changes(*cut, 1);
    CHECK(!before.is_full && before.present.size() == (i == 1 ? 0 : keys.size()));
    table.close_cut(*cut, true);
    const auto changes = table.changes("reader", 1);
    CHECK(!changes.is_full && changes.present.size() == keys.size() && changes.gone.empty());
    CHECK(table.changes("reader", 1).present.empty());
  }
}

// With a cut open the numbers cannot start again: no further cut opens, and cursors stay full.
void test_last_generation() {
  TableSpec spec = adagrad_table(kDim);
  spec.first_generation = Meta::kLastGeneration - 1;
  Table table(spec);
  const auto keys = keys_from(0, 50);
  const std::string cursor = "reader";
  const auto cut = table.open_cut(&cursor);
  bool is_refused = false;
  try {
    table.open_cut(&cursor);
  } catch (const std::overflow_error&) {
    is_refused = true;
  }
  CHECK(is_refused);
  for (int i = 0; i < 3; ++i) {
    assign_all(table, keys, 1.0f, 1);
    CHECK(table.changes("reader", 1).is_full);
  }
  table.close_cut(*cut, true);
  CHECK(table.changes("reader", 1).is_full);
  assign_all(table, keys, 2.0f, 1);
  const auto changes = table.changes("reader", 1);
  CHECK(!changes.is_full && changes.present.size() == keys.size());
  CHECK(table.open_cut() != nullptr);
}

// Without memory for the copies a call fails before it changes anything, and rows do not expire.
void test_out_of_memory() {
  TableSpec spec = adagrad_table(kDim);
  spec.expiry_days = 1;
  Table table(spec);
  const auto keys = keys_from(0, kKeys);
  assign_all(table, keys, 1.0f, 1);
  table.changes("reader", 1);
  const TableRows old_rows = export_all(table, nullptr);
  const auto cut = table.open_cut();
  table.set_memory_limit(table.held_bytes() + 50000);
  bool is_refused = false;
  try {
    assign_all(table, keys, 2.0f, 2);
  } catch (const std::bad_alloc&) {
    is_refused = true;
  }
  CHECK(is_refused);
  CHECK(same(old_rows, export_all(table, nullptr)));
  CHECK(same(old_rows, export_all(table, cut.get())));
  CHECK(same(old_rows, entries_at(table, cut.get(), old_rows.keys, 1).rows));
  const uint64_t num_evicted = table.evict(86402);
  CHECK(num_evicted > 0 && num_evicted < kKeys);  // those that the failed call had kept
  CHECK(same(old_rows, export_all(table, cut.get())));
  table.set_memory_limit(SIZE_MAX);
  CHECK(table.evict(86402) == kKeys - num_evicted);
  CHECK(same(old_rows, export_all(table, cut.get())));
  CHECK(same(old_rows, entries_at(table, cut.get(), old_rows.keys, 2).rows));
  table.close_cut(*cut);
  const auto changes = table.changes("reader", 1);
  CHECK(changes.gone.size() == kKeys && changes.present.empty());
}

TableSpec asking_table(const AdmissionSpec& admission) {
  TableSpec spec = adagrad_table(kDim);
  spec.admission = admission;
  return spec;
}

const AdmissionSpec kMinCountSpec{AdmissionKind::kMinCount, 3, {}, 4096 * 16 * 40, 9, 0, 0, false};
const AdmissionSpec kFilterSpec{AdmissionKind::kSlidingFilter, 3, {}, 0, 0, 1, 7, false};

// A cut has the candidates of its moment, in their order, whatever is counted, admitted, dropped,
// imported and undone since.
void test_candidates_of_cuts(const AdmissionSpec& admission) {
  Table table(asking_table(admission));
  const auto keys = crowded_keys(12000);
  auto partitions = all_partitions();
  partitions.resize(64);  // where these keys are
  std::mt19937_64 random(7);
  std::vector<std::pair<std::shared_ptr<Cut>, std::vector<int64_t>>> open;
  int num_failed = 0, num_changed = 0;
  for (uint32_t round = 0; round < 250; ++round) {
    if (round % 7 == 0 && open.size() < Cuts::kMost) {
      open.emplace_back(table.open_cut(), table.export_candidates(partitions));
    }
    std::vector<int64_t> batch(1 + random() % 900);
    for (int64_t& key : batch) key = keys[random() % (random() % 2 ? keys.size() : 3000)];
    const std::vector<float> values(batch.size() * kDim);
    if (round % 5 == 0) table.set_memory_limit(table.held_bytes() + random() % 40000);
    try {
      if (round % 11 == 0) {
        const auto rows = table.export_candidates({partitions.data() + random() % 32, 32});
        table.import_candidates(rows.data(), rows.size() / table.num_candidate_columns());
      }
      table.assign(batch.data(), batch.size(), values.data(), round / 40, 1 + round % 2);
    } catch (const std::bad_alloc&) {
      ++num_failed;
    }
    table.set_memory_limit(SIZE_MAX);
    const auto existed = std::make_unique<bool[]>(batch.size());
    table.erase(batch.data(), batch.size(), existed.get(), 1);  // so that they ask again
    if (round % 3 == 0) continue;
    for (const auto& [cut, then] : open)
      CHECK(table.export_candidates(partitions, cut.get()) == then);
    if (!open.empty()) num_changed += table.export_candidates(partitions) != open.back().second;
    if (round % 13 == 0 && !open.empty()) {
      const auto closed = open.begin() + static_cast<int64_t>(random() % open.size());
      table.close_cut(*closed->first);
      open.erase(closed);
    }
  }
  CHECK(num_failed > 5 && num_changed > 50 && table.admission_facts().dropped > 0);
  for (const auto& [cut, then] : open) table.close_cut(*cut);
  CHECK(table.cut_bytes() == 0);
}

// The first call after a cut copies only rows that it changes.
void test_few_candidates_are_kept() {
  TableSpec spec = asking_table(kMinCountSpec);
  spec.admission.max_bytes = size_t{1} << 28;
  Table table(spec);
  const auto keys = keys_from(0, 100000);
  assign_all(table, keys, 0.0f, 1);
  const auto cut = table.open_cut();
  CHECK(cut->bytes() == 0);
  assign_all(table, keys_from(0, 100), 0.0f, 1);
  CHECK(cut->bytes() > 0 && cut->bytes() <= 100 * 4 * sizeof(AdmissionStep));
  for (uint32_t p = 0; p < Cut::kPartitions; ++p) cut->release(p);
  CHECK(cut->bytes() == 0);
  table.close_cut(*cut);
}

// Released partitions are neither kept nor copied.
void test_release() {
  Table table(adagrad_table(kDim));
  const auto keys = keys_from(0, kKeys);
  assign_all(table, keys, 1.0f, 1);
  const auto cut = table.open_cut();
  for (uint32_t p = 0; p < Cut::kPartitions / 2; ++p) cut->release(p);
  assign_all(table, keys, 2.0f, 1);
  const size_t half = cut->bytes();
  for (uint32_t p = 0; p < Cut::kPartitions; ++p) cut->release(p);
  CHECK(half > 0 && cut->bytes() == 0);
  table.close_cut(*cut);
}

// Rows are kept in blocks of keys, each row before its change.
void test_calls_of_every_size() {
  constexpr size_t kMost = 61;
  for (size_t n = 0; n <= kMost; ++n) {
    Table table(adagrad_table(kDim));
    assign_all(table, keys_from(0, kMost), 1.0f, 1);
    const TableRows old_rows = export_all(table, nullptr);
    const auto cut = table.open_cut();
    assign_all(table, keys_from(0, n), 2.0f, 1);
    CHECK(same(old_rows, export_all(table, cut.get())));
    const TableRows after = export_all(table, nullptr);
    CHECK(static_cast<size_t>(std::count(after.weights.begin(), after.weights.end(), 2.0f)) ==
          n * kDim);
    table.close_cut(*cut);
  }
}

// Neighbouring partitions share memory, which stays until the last one is released.
void test_release_of_some_neighbours() {
  Table table(adagrad_table(kDim));
  assign_all(table, keys_from(0, kKeys), 1.0f, 1);
  const auto cut = table.open_cut();
  assign_all(table, keys_from(0, kKeys), 2.0f, 1);
  const auto is_last = [](uint32_t partition) { return partition % 16 == 15; };
  for (uint32_t p = 0; p < Cut::kPartitions; ++p) {
    if (!is_last(p)) cut->release(p);
  }
  const TableRows rest = export_all(table, cut.get());
  size_t num_checked = 0;
  for (size_t i = 0; i < rest.keys.size(); ++i) {
    if (!is_last(Cut::partition_of(key_hash(rest.keys[i])))) continue;
    CHECK(rest.weights[i * kDim] == 1.0f);
    ++num_checked;
  }
  CHECK(num_checked > kKeys / 32 && cut->bytes() > 0);
  for (uint32_t p = 15; p < Cut::kPartitions; p += 16) cut->release(p);
  CHECK(cut->bytes() == 0);
  table.close_cut(*cut);
}

// Keeps rows that are longer than a block of many short rows.
void test_long_rows(uint32_t dim) {
  Table table(adagrad_table(dim));
  const auto keys = keys_from(0, 30);
  const std::vector<float> ones(keys.size() * dim, 1.0f), twos(keys.size() * dim, 2.0f);
  table.assign(keys.data(), keys.size(), ones.data(), 1, 1);
  const auto cut = table.open_cut();
  table.assign(keys.data(), keys.size(), twos.data(), 1, 1);
  std::vector<int64_t> exported_keys(keys.size()), times(keys.size());
  std::vector<float> weights(ones.size()), norms(ones.size());
  const Table::Columns columns{
      times.data(),
      {reinterpret_cast<char*>(weights.data()), reinterpret_cast<char*>(norms.data())},
      {4 * dim, 4 * dim}};
  CHECK(table.export_rows(0, UINT64_MAX, keys.size(), exported_keys.data(), columns, cut.get()) ==
        keys.size());
  CHECK(weights == ones);
  table.close_cut(*cut);
  CHECK(table.cut_bytes() == 0);
}

// An export without a cut has each row as some call left it, not half of two calls.
void test_exported_rows_are_whole() {
  constexpr uint32_t kLongDim = 256;
  constexpr size_t kRows = 50;
  Table table(adagrad_table(kLongDim));
  const auto keys = keys_from(0, kRows);
  const auto assign = [&](float value) {
    const std::vector<float> values(kRows * kLongDim, value);
    table.assign(keys.data(), kRows, values.data(), 1, 1);
  };
  assign(0.0f);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (float value = 1.0f; !stop; value += 1.0f) assign(value);
  });
  std::vector<int64_t> exported_keys(kRows), times(kRows);
  std::vector<float> weights(kRows * kLongDim), norms(weights.size());
  const Table::Columns columns{
      times.data(),
      {reinterpret_cast<char*>(weights.data()), reinterpret_cast<char*>(norms.data())},
      {4 * kLongDim, 4 * kLongDim}};
  for (int round = 0; round < 2000; ++round) {
    CHECK(table.export_rows(0, UINT64_MAX, kRows, exported_keys.data(), columns) == kRows);
    for (size_t i = 0; i < weights.size(); ++i) {
      CHECK(weights[i] == weights[i / kLongDim * kLongDim]);
    }
  }
  stop = true;
  writer.join();
}

void test_at_most_four_are_open() {
  Table table(adagrad_table(kDim));
  std::vector<std::shared_ptr<Cut>> cuts;
  for (size_t i = 0; i < Cuts::kMost; ++i) {
    cuts.push_back(table.open_cut());
    CHECK(cuts.back() != nullptr);
  }
  CHECK(table.open_cut() == nullptr);
  table.close_cut(*cuts.front());
  CHECK(table.open_cut() != nullptr);
}

// Its rows could not be kept.
void test_no_clear_while_one_is_open() {
  Table table(adagrad_table(kDim));
  assign_all(table, keys_from(0, kKeys), 1.0f, 1);
  const TableRows old_rows = export_all(table, nullptr);
  const auto cut = table.open_cut();
  CHECK(!table.clear());
  CHECK(same(old_rows, export_all(table, nullptr)) && same(old_rows, export_all(table, cut.get())));
  table.close_cut(*cut);
  CHECK(table.clear() && table.num_rows() == 0);
}

}  // namespace

int main() {
  test_beside_writers();
  test_changes_of_cuts_with_writers();
  test_entries_in_any_order();
  test_reads_during_the_end_of_a_cut();
  test_wrap();
  test_last_generation();
  test_out_of_memory();
  for (const auto& admission : {kMinCountSpec, kFilterSpec}) test_candidates_of_cuts(admission);
  test_few_candidates_are_kept();
  test_release();
  test_calls_of_every_size();
  test_exported_rows_are_whole();
  test_release_of_some_neighbours();
  for (const uint32_t dim : {64u, 4096u, 20000u}) test_long_rows(dim);
  test_at_most_four_are_open();
  test_no_clear_while_one_is_open();
  std::printf("cuts: ok\n");
}
