// How far lookup and apply are from what memory allows, without Python.
//
// The unit is a bare prefetched gather of random 64-byte lines from as many lines as the table has
// rows. A lookup of 16 weights needs two lines per key (index, row); an Adagrad step reads five
// (index, two of the row, metadata, gradient) and writes four of them back. A bare step does the
// same to memory of the same sizes, at places that are known: no key is hashed, compared or locked.
// Prints one JSON object, ns per key.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <thread>
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

// work(first, last) of a batch, each thread its share.
template <typename Work>
void share(unsigned threads, const Work& work) {
  std::vector<std::thread> others;
  for (unsigned t = 1; t < threads; ++t) {
    others.emplace_back([&, t] { work(kBatch * t / threads, kBatch * (t + 1) / threads); });
  }
  work(size_t{0}, kBatch / threads);
  for (std::thread& other : others) other.join();
}

// Memory as tables have it, written once.
struct Area {
  explicit Area(size_t bytes) : bytes(bytes), data(static_cast<char*>(memory.allocate(bytes))) {
    std::memset(data, 1, bytes);
  }
  ~Area() { memory.free(data, bytes); }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;

  Memory memory;
  const size_t bytes;
  char* const data;
};

double gather(size_t rows, const std::vector<uint32_t>& drawn, std::vector<float>& out, int rounds,
              unsigned threads) {
  const Area lines(rows * 64);
  return measure(rounds, [&](size_t batch) {
    const uint32_t* at = drawn.data() + batch * kBatch;
    share(threads, [&](size_t first, size_t last) {
      for (size_t i = first; i < last; ++i) {
        if (i + 24 < last) __builtin_prefetch(lines.data + size_t{at[i + 24]} * 64);
        std::memcpy(out.data() + i * kDim, lines.data + size_t{at[i]} * 64, 64);
      }
    });
  });
}

// A key of a call: its row, and the place of its gradient.
struct Drawn {
  uint32_t row, place;
};

// By bursts of three keys or of six, whichever is faster. index_bytes: of a table with so many
// rows. Keys of a call come in the order of its lines.
double bare_step(size_t rows, size_t index_bytes, const std::vector<uint32_t>& rows_drawn,
                 const std::vector<float>& grads, int rounds, unsigned threads) {
  const Area index(index_bytes / 64 * 64), all(rows * 128), marks(rows * 8);
  const size_t num_lines = index.bytes / 64;
  const auto line_of = [&](uint32_t row) {
    return index.data + (row * uint64_t{0x9E3779B1} & UINT32_MAX) * num_lines / (1ull << 32) * 64;
  };
  std::vector<Drawn> drawn;
  for (size_t i = 0; i < rows_drawn.size(); ++i) {
    drawn.push_back({rows_drawn[i], static_cast<uint32_t>(i % kBatch)});
  }
  for (size_t i = 0; i < drawn.size(); i += kBatch) {
    std::sort(drawn.begin() + i, drawn.begin() + i + kBatch,
              [&](Drawn a, Drawn b) { return line_of(a.row) < line_of(b.row); });
  }
  const auto fetch = [&](std::span<const Drawn> burst) {
    for (const Drawn at : burst) {
      __builtin_prefetch(all.data + size_t{at.row} * 128);
      __builtin_prefetch(all.data + size_t{at.row} * 128 + 64);
    }
    for (const Drawn at : burst) {
      __builtin_prefetch(marks.data + size_t{at.row} * 8, 1);
      __builtin_prefetch(line_of(at.row), 1);
    }
    for (const Drawn at : burst) __builtin_prefetch(grads.data() + size_t{at.place} * kDim);
  };
  const auto step = [&](Drawn at) {
    auto* weights = reinterpret_cast<float*>(all.data + size_t{at.row} * 128);
    for (size_t c = 0; c < kDim; ++c) {
      const float grad = grads[size_t{at.place} * kDim + c];
      weights[kDim + c] += grad * grad;
      weights[c] -= 0.05f * grad / std::sqrt(weights[kDim + c]);
    }
    ++*reinterpret_cast<uint32_t*>(marks.data + size_t{at.row} * 8);
    ++*reinterpret_cast<uint32_t*>(line_of(at.row));
  };
  double best = 1e30;
  for (const size_t burst : {3, 6}) {
    const double ns = measure(rounds, [&](size_t batch) {
      share(threads, [&](size_t first, size_t last) {
        const std::span some(drawn.data() + batch * kBatch + first, last - first);
        for (size_t i = 0; i < some.size(); ++i) {
          if (i % burst == 0 && i + burst < some.size()) {
            fetch(some.subspan(i + burst, std::min(burst, some.size() - i - burst)));
          }
          step(some[i]);
        }
      });
    });
    best = std::min(best, ns);
  }
  return best;
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
  const unsigned threads = argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 1;
  std::mt19937_64 random(1);
  std::vector<int64_t> keys(rows), batches(kBatch * kBatches);
  for (int64_t& key : keys) key = static_cast<int64_t>(random());
  std::vector<uint32_t> drawn(batches.size());
  for (size_t i = 0; i < drawn.size(); ++i) {
    drawn[i] = static_cast<uint32_t>(random() % rows);
    batches[i] = keys[drawn[i]];
  }
  std::vector<float> out(kBatch * kDim), grads(kBatch * kDim, 0.01f);
  const double line = gather(rows, drawn, out, rounds, threads);
  double ns[2];
  size_t index_bytes = 0;
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
        table.apply_gradients(at, kBatch, grads.data(), {&rate, nullptr, 0}, 2, threads);
      } else {
        table.lookup(at, kBatch, out.data(), false, nullptr, threads);
      }
    });
    if (table.num_rows() != rows) return 1;
    index_bytes = table.index_bytes();
  }
  const double bare = bare_step(rows, index_bytes, drawn, grads, rounds, threads);
  std::printf("{\"line\": %.2f, \"lookup\": %.2f, \"apply\": %.2f, \"bare_step\": %.2f}\n", line,
              ns[0], ns[1], bare);
}
