#include "compat/layout.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "ops/fetch.h"
#include "table/team.h"

namespace monolith {
namespace {

constexpr int64_t kShared = int64_t{1} << 31;
constexpr int64_t kChunk = 64;  // least number of examples that a thread claims at once
constexpr int64_t kAhead = 8;   // examples between a prefetch and its use
constexpr int64_t kBlock = 16;  // examples whose rows are fetched before the first one is used

using Four = float __attribute__((vector_size(16)));

inline Four load(const float* from) {
  Four values;
  std::memcpy(&values, from, sizeof(values));
  return values;
}
inline void store(float* to, Four values) { std::memcpy(to, &values, sizeof(values)); }

// Calls wide(c) for four floats at a time, then narrow(c) for the rest of the columns.
template <typename Wide, typename Narrow>
inline void by_columns(int64_t first, int64_t width, const Wide& wide, const Narrow& narrow) {
  int64_t c = first;
  for (; c + 4 <= width; c += 4) wide(c);
  for (; c < width; ++c) narrow(c);
}

// The cells of one feature.
struct Cells {
  const LayoutRows& rows;
  int64_t first;
  bool is_shared;
  uint64_t unit;  // floats in a step of a place
  uint64_t dim;

  Cells(const LayoutPlan& plan, const LayoutRows& rows, size_t feature)
      : rows(rows),
        first(rows.nfl_offset[feature] & (kShared - 1)),
        is_shared((rows.nfl_offset[feature] & kShared) != 0),
        unit(rows.is_counted_in_rows ? plan.dims[feature] : 1),
        dim(plan.dims[feature]) {}

  size_t begin(int64_t example) const { return rows.feature_offset[cell(example)]; }
  size_t end(int64_t example) const { return rows.feature_offset[cell(example) + 1]; }
  int64_t cell(int64_t example) const { return is_shared ? first : first + example; }

  // Finds the row of an id: its list and its first float. Returns false if the row is outside of
  // the list.
  bool find(size_t id, size_t& list, size_t& at) const {
    const uint64_t code = rows.fid_offset[id];
    list = code >> 32;
    at = (code & 0xffffffffu) * unit;
    return list < rows.sizes.size() && at + dim <= static_cast<uint64_t>(rows.sizes[list]);
  }
};

// Finds the rows of ids and fetches them into the cache. Float is const in the forward pass.
template <typename Float>
class Finder {
 public:
  Finder(std::span<Float* const> lists, uint64_t part, uint64_t num_parts)
      : lists_(lists), part_(part), num_parts_(num_parts) {}

  // The cells of examples [first, last); false if an id has no row.
  bool find(const Cells& cells, int64_t first, int64_t last) {
    begin_ = cells.begin(first);
    const size_t n = cells.end(last - 1) - begin_;
    if (found_.size() < n) found_.resize(n);
    for (size_t i = 0; i < n; ++i) {
      size_t list, at;
      if (!cells.find(begin_ + i, list, at)) return false;
      Float* row = lists_[list] + at;
      fetch_line(row);
      fetch_line(row + cells.dim - 1);
      found_[i] = is_mine(cells.rows.fid_offset[begin_ + i]) ? row : nullptr;
    }
    return true;
  }
  // Returns the rows of an example; rows of another part are null.
  std::span<Float* const> rows(const Cells& cells, int64_t example) const {
    const size_t begin = cells.begin(example);
    return {found_.data() + (begin - begin_), cells.end(example) - begin};
  }

 private:
  bool is_mine(uint64_t code) const {
    if (num_parts_ == 1) return true;
    return ((code * 0x9e3779b97f4a7c15ULL) >> 32) * num_parts_ >> 32 == part_;
  }

  const std::span<Float* const> lists_;
  const uint64_t part_, num_parts_;
  std::vector<Float*> found_;
  size_t begin_ = 0;  // first id of the rows
};

// Calls use(example, rows) for examples [first, last) of a feature, for the first one alone if all
// share it; false if an id has no row.
template <typename Float, typename Use>
bool by_example(const Cells& cells, Finder<Float>& finder, int64_t first, int64_t last,
                const Use& use) {
  if (cells.is_shared) last = first + 1;
  for (int64_t begin = first; begin < last; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, last);
    if (!finder.find(cells, begin, end)) return false;
    for (int64_t example = begin; example < end; ++example) {
      use(example, finder.rows(cells, example));
    }
  }
  return true;
}

// out (+)= sum of the rows / divisor; a divisor of 1 changes no bit.
void sum_rows(float* out, std::span<const float* const> rows, const LayoutSlice& slice,
              bool is_added, float divisor) {
  const auto sum = [&](int64_t c, auto value, const auto& read) {
    value = read(rows[0] + slice.start + c);
    for (size_t i = 1; i < rows.size(); ++i) value += read(rows[i] + slice.start + c);
    if (divisor != 1.0f) value /= divisor;
    if (is_added) value += read(out + c);
    return value;
  };
  int64_t c = 0;
  for (; c + 16 <= slice.width; c += 16) {
    const float* row = rows[0] + slice.start + c;
    Four a = load(row), b = load(row + 4), d = load(row + 8), e = load(row + 12);
    for (size_t i = 1; i < rows.size(); ++i) {
      row = rows[i] + slice.start + c;
      a += load(row), b += load(row + 4), d += load(row + 8), e += load(row + 12);
    }
    if (divisor != 1.0f) a /= divisor, b /= divisor, d /= divisor, e /= divisor;
    float* to = out + c;
    if (is_added) a += load(to), b += load(to + 4), d += load(to + 8), e += load(to + 12);
    store(to, a), store(to + 4, b), store(to + 8, d), store(to + 12, e);
  }
  by_columns(
      c, slice.width, [&](int64_t at) { store(out + at, sum(at, Four{}, load)); },
      [&](int64_t at) { out[at] = sum(at, 0.0f, [](const float* from) { return *from; }); });
}

// One slice of one example.
void pool(float* out, std::span<const float* const> rows, const LayoutSlice& slice, bool is_added) {
  const auto bytes = static_cast<size_t>(slice.width) * sizeof(float);
  if (slice.pooling == Pooling::kFirst) {
    for (int64_t i = 0; i < slice.length; ++i, out += slice.row_stride) {
      if (i < static_cast<int64_t>(rows.size())) {
        std::memcpy(out, rows[i] + slice.start, bytes);
      } else {
        std::memset(out, 0, bytes);
      }
    }
  } else if (!rows.empty()) {
    const float divisor = slice.pooling == Pooling::kMean ? static_cast<float>(rows.size()) : 1.0f;
    sum_rows(out, rows, slice, is_added, divisor);
  } else if (!is_added) {
    std::memset(out, 0, bytes);
  }
}

// A slice of a feature that all examples share: pooled once.
void pool_shared(float* output, int64_t first, int64_t last, std::span<const float* const> rows,
                 const LayoutSlice& slice, std::vector<float>& scratch) {
  const bool is_first = slice.pooling == Pooling::kFirst;
  LayoutSlice dense = slice;
  dense.row_stride = slice.width;
  const int64_t num_rows = is_first ? slice.length : 1;
  scratch.resize(static_cast<size_t>(num_rows * slice.width));
  pool(scratch.data(), rows, dense, false);
  for (int64_t example = first; example < last; ++example) {
    for (int64_t i = 0; i < num_rows; ++i) {
      float* out = output + example * slice.example_stride + slice.offset + i * slice.row_stride;
      const float* row = scratch.data() + i * slice.width;
      if (slice.is_added != 0) {
        for (int64_t c = 0; c < slice.width; ++c) out[c] += row[c];
      } else {
        std::memcpy(out, row, static_cast<size_t>(slice.width) * sizeof(float));
      }
    }
  }
}

// The slices of the feature at which `at` is; moves on to the next one.
std::span<const LayoutSlice> next_feature(const LayoutPlan& plan, size_t& at) {
  const size_t first = at;
  while (at < plan.slices.size() && plan.slices[at].feature == plan.slices[first].feature) ++at;
  return plan.slices.subspan(first, at - first);
}

// Examples [first, last) of all outputs; false if an id has no row.
bool forward(const LayoutPlan& plan, const LayoutRows& rows, std::span<const float* const> lists,
             std::span<float* const> outputs, int64_t first, int64_t last) {
  Finder<const float> finder(lists, 0, 1);
  std::vector<float> scratch;
  for (size_t at = 0; at < plan.slices.size();) {
    const auto slices = next_feature(plan, at);
    const Cells cells(plan, rows, slices[0].feature);
    const auto use = [&](int64_t example, std::span<const float* const> id_rows) {
      for (const LayoutSlice& slice : slices) {
        if (cells.is_shared) {
          pool_shared(outputs[slice.output], first, last, id_rows, slice, scratch);
        } else {
          float* out = outputs[slice.output] + example * slice.example_stride + slice.offset;
          if (example + kAhead < last) fetch_line(out + kAhead * slice.example_stride);
          pool(out, id_rows, slice, slice.is_added != 0);
        }
      }
    };
    if (!by_example(cells, finder, first, last, use)) return false;
  }
  return true;
}

// row += gradient / divisor for every row.
void add_to_rows(std::span<float* const> rows, const LayoutSlice& slice, const float* gradient,
                 float divisor) {
  int64_t c = 0;
  for (; c + 16 <= slice.width; c += 16) {
    const float* from = gradient + c;
    Four a = load(from), b = load(from + 4), d = load(from + 8), e = load(from + 12);
    if (divisor != 1.0f) a /= divisor, b /= divisor, d /= divisor, e /= divisor;
    for (float* row : rows) {
      if (row == nullptr) continue;
      float* to = row + slice.start + c;
      store(to, load(to) + a), store(to + 4, load(to + 4) + b);
      store(to + 8, load(to + 8) + d), store(to + 12, load(to + 12) + e);
    }
  }
  const auto add = [&](int64_t at, auto value, const auto& write) {
    if (divisor != 1.0f) value /= divisor;
    for (float* row : rows) {
      if (row != nullptr) write(row + slice.start + at, value);
    }
  };
  by_columns(
      c, slice.width,
      [&](int64_t at) {
        add(at, load(gradient + at), [](float* to, Four value) { store(to, load(to) + value); });
      },
      [&](int64_t at) { add(at, gradient[at], [](float* to, float value) { *to += value; }); });
}

// One slice of one example.
void spread(const float* gradient, std::span<float* const> rows, const LayoutSlice& slice) {
  if (slice.pooling != Pooling::kFirst) {
    const float divisor = slice.pooling == Pooling::kMean ? static_cast<float>(rows.size()) : 1.0f;
    return add_to_rows(rows, slice, gradient, divisor);
  }
  const size_t num_rows = std::min(rows.size(), static_cast<size_t>(slice.length));
  for (size_t i = 0; i < num_rows; ++i, gradient += slice.row_stride) {
    add_to_rows(rows.subspan(i, 1), slice, gradient, 1.0f);
  }
}

// A slice of a feature that all examples share: their gradients are summed first.
void spread_shared(const float* gradient, int64_t batch_size, std::span<float* const> rows,
                   const LayoutSlice& slice, std::vector<float>& scratch) {
  LayoutSlice dense = slice;
  dense.row_stride = slice.width;
  const int64_t num_rows = slice.pooling == Pooling::kFirst ? slice.length : 1;
  scratch.assign(static_cast<size_t>(num_rows * slice.width), 0.0f);
  for (int64_t example = 0; example < batch_size; ++example) {
    for (int64_t i = 0; i < num_rows; ++i) {
      const float* from = gradient + example * slice.example_stride + i * slice.row_stride;
      float* sum = scratch.data() + i * slice.width;
      for (int64_t c = 0; c < slice.width; ++c) sum[c] += from[c];
    }
  }
  spread(scratch.data(), rows, dense);
}

// One part of the rows of the feature of these slices; false if an id has no row.
bool backward(const LayoutPlan& plan, const LayoutRows& rows, std::span<const LayoutSlice> slices,
              std::span<const float* const> gradients, Finder<float>& finder,
              std::vector<float>& scratch) {
  const Cells cells(plan, rows, slices[0].feature);
  return by_example(cells, finder, 0, rows.batch_size, [&](int64_t example, const auto& id_rows) {
    for (const LayoutSlice& slice : slices) {
      const float* gradient = gradients[slice.output];
      if (gradient == nullptr) continue;
      gradient += example * slice.example_stride + slice.offset;
      if (cells.is_shared) {
        spread_shared(gradient, rows.batch_size, id_rows, slice, scratch);
        continue;
      }
      if (example + kAhead < rows.batch_size) {
        fetch_line(gradient + kAhead * slice.example_stride);
      }
      spread(gradient, id_rows, slice);
    }
  });
}

[[noreturn]] void refuse(const std::string& expected, const std::string& got) {
  throw std::invalid_argument("[fused_embedding_to_layout] expected " + expected + ", got " + got);
}

// Refuses cells that leave their arrays. Ids are checked during their use.
void check(const LayoutPlan& plan, const LayoutRows& rows) {
  const size_t num_features = plan.dims.size();
  const auto num_cells = static_cast<int64_t>(rows.feature_offset.size()) - 1;
  for (size_t feature = 0; feature <= num_features; ++feature) {
    const bool is_last = feature == num_features;
    const int64_t code = rows.nfl_offset[feature];
    const int64_t first = code & (kShared - 1);
    const int64_t needed = is_last ? 0 : (code & kShared) != 0 ? 1 : rows.batch_size;
    if (code < 0 || code >= 2 * kShared || first + needed > num_cells + (is_last ? 1 : 0)) {
      refuse("nfl_offset of feature " + std::to_string(feature) + " with " +
                 std::to_string(needed) + " of " + std::to_string(num_cells) + " cells behind it",
             std::to_string(first));
    }
  }
  int32_t previous = 0;
  for (const int32_t begin : rows.feature_offset) {
    if (begin < previous) {
      refuse("feature_offset that never decreases",
             std::to_string(begin) + " after " + std::to_string(previous));
    }
    previous = begin;
  }
  if (static_cast<size_t>(previous) != rows.fid_offset.size() || rows.feature_offset[0] != 0) {
    refuse("feature_offset from 0 to " + std::to_string(rows.fid_offset.size()) +
               ", the number of ids",
           std::to_string(rows.feature_offset[0]) + " to " + std::to_string(previous));
  }
}

[[noreturn]] void refuse_ids(const LayoutPlan& plan, const LayoutRows& rows) {
  for (size_t feature = 0; feature < plan.dims.size(); ++feature) {
    const Cells cells(plan, rows, feature);
    size_t list = 0, at = 0;
    for (size_t id = cells.begin(0); id < cells.end(rows.batch_size - 1); ++id) {
      if (cells.find(id, list, at)) continue;
      const std::string size =
          list < rows.sizes.size() ? std::to_string(rows.sizes[list]) + " floats" : "no such list";
      refuse("fid_offset of a row of " + std::to_string(cells.dim) + " floats (feature " +
                 std::to_string(feature) + ")",
             "list " + std::to_string(list) + " at float " + std::to_string(at) + ": " + size);
    }
  }
  refuse("rows of all ids", "offsets that changed during the call");
}

}  // namespace

void embeddings_to_layout(const LayoutPlan& plan, const LayoutRows& rows,
                          std::span<const float* const> lists, std::span<float* const> outputs,
                          unsigned threads) {
  check(plan, rows);
  if (rows.batch_size == 0) return;
  const int64_t pieces = threads == 1 ? 1 : 4 * int64_t{threads};
  const int64_t chunk = std::max(kChunk, (rows.batch_size + pieces - 1) / pieces);
  std::atomic<int64_t> next{0};
  std::atomic<bool> has_failed{false};
  Team::run(threads, [&](Team& team, unsigned) {
    team.attempt([&] {
      for (int64_t first; (first = next.fetch_add(chunk)) < rows.batch_size;) {
        const int64_t last = std::min(first + chunk, rows.batch_size);
        if (!forward(plan, rows, lists, outputs, first, last)) has_failed = true;
      }
    });
  });
  if (has_failed) refuse_ids(plan, rows);
}

void layout_to_gradients(const LayoutPlan& plan, const LayoutRows& rows,
                         std::span<const float* const> gradients, std::span<float* const> lists,
                         unsigned threads) {
  check(plan, rows);
  if (rows.batch_size == 0) return;
  std::vector<std::span<const LayoutSlice>> features;
  for (size_t at = 0; at < plan.slices.size();) features.push_back(next_feature(plan, at));
  // With few features, several threads visit all ids of one feature, and each thread updates its
  // part of the rows.
  const size_t wanted = threads == 1 ? 1 : 4 * size_t{threads};
  const size_t parts = features.empty() ? 1 : (wanted + features.size() - 1) / features.size();
  std::atomic<size_t> next{0};
  std::atomic<bool> has_failed{false};
  Team::run(threads, [&](Team& team, unsigned) {
    team.attempt([&] {
      std::vector<float> scratch;
      for (size_t task; (task = next.fetch_add(1)) < features.size() * parts;) {
        Finder<float> finder(lists, task % parts, parts);
        const auto& slices = features[task / parts];
        if (!backward(plan, rows, slices, gradients, finder, scratch)) has_failed = true;
      }
    });
  });
  if (has_failed) refuse_ids(plan, rows);
}

}  // namespace monolith
