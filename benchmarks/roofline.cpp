// How far lookup and apply are from what memory allows, on one thread and without Python.
//
// The unit is a bare prefetched gather of random 64-byte lines from as many lines as the table has
// rows. A lookup of 16 weights needs two lines per key (index, row); an Adagrad step reads five
// (index, two of the row, metadata, gradient) and writes four of them back. Prints one JSON object,
// ns per key.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "table/memory.h"
#include "table/table.h"

using namespace monolith;

namespace {

constexpr size_t kBatch = 65536;
constexpr size_t kBatches = 16;
constexpr uint32_t kDim = 16;

// Nanoseconds per key: the best of the rounds, since whatever disturbs only adds.
template <typename Work>
double measure(int rounds, const Work& work) {
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (size_t batch = 0; batch < kBatches; ++batch) work(batch);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / (kBatch * kBatches));
  }
  return best;
}

double gather(size_t rows, const std::vector<uint32_t>& drawn, std::vector<float>& out,
              int rounds) {
  Memory memory;
  auto* lines = static_cast<char*>(memory.allocate(rows * 64));
  std::memset(lines, 1, rows * 64);
  const double ns = measure(rounds, [&](size_t batch) {
    const uint32_t* at = drawn.data() + batch * kBatch;
    for (size_t i = 0; i < kBatch; ++i) {
      if (i + 24 < kBatch) __builtin_prefetch(lines + size_t{at[i + 24]} * 64);
      std::memcpy(out.data() + i * kDim, lines + size_t{at[i]} * 64, 64);
    }
  });
  memory.release(lines, rows * 64);
  return ns;
}

TableSpec table_spec(bool with_state) {
  TableSpec spec;
  spec.name = "roofline";
  spec.seed = 1;
  if (with_state) {
    spec.segments = {{kDim,
                      "adagrad",
                      {{"initial_accumulator_value", 0.1f}, {"weight_decay_factor", 0.0f}},
                      -0.05f,
                      0.05f}};
  } else {
    spec.segments = {{kDim, "sgd", {}, -0.05f, 0.05f}};
  }
  return spec;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t rows = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 2'000'000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 20;
  std::mt19937_64 random(1);
  std::vector<int64_t> keys(rows), batches(kBatch * kBatches);
  for (int64_t& key : keys) key = static_cast<int64_t>(random());
  std::vector<uint32_t> drawn(batches.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    drawn[i] = static_cast<uint32_t>(random() % rows);
    batches[i] = keys[drawn[i]];
  }
  std::vector<float> out(kBatch * kDim), grads(kBatch * kDim, 0.01f);
  const double line = gather(rows, drawn, out, rounds);
  double ns[2];
  for (const bool with_state : {false, true}) {
    Table table(table_spec(with_state));
    for (size_t i = 0; i < rows; i += kBatch) {
      table.lookup_or_insert(keys.data() + i, std::min(kBatch, rows - i), out.data(), nullptr, 1,
                             1);
    }
    const float rate = 0.05f;
    ns[with_state] = measure(rounds, [&](size_t batch) {
      const int64_t* at = batches.data() + batch * kBatch;
      if (with_state) {
        table.apply_gradients(at, kBatch, grads.data(), {&rate, nullptr, 0}, 2, 1);
      } else {
        table.lookup(at, kBatch, out.data(), false, nullptr, 1);
      }
    });
    if (table.num_rows() != rows) return 1;
  }
  std::printf("{\"line\": %.2f, \"lookup\": %.2f, \"apply\": %.2f}\n", line, ns[0], ns[1]);
}
