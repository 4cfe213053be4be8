// Embedding rows to pooled layouts, and gradients of layouts to gradients of rows:
// native_training/ops/layout.py says what the numbers mean.
//
// Both passes are bit for bit the same for every number of threads: forward, a thread owns some
// examples; backward, it owns some rows and adds to each in the order of the examples. Rows of two
// features never overlap, so that features need no locks; offsets made by fid_shards.h keep to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace monolith {

enum class Pooling : int64_t { kSum = 0, kMean = 1, kFirst = 3 };

// Columns [start, start + width) of the rows of a feature, and where they go. Ten int64s, as Python
// writes them.
struct LayoutSlice {
  int64_t feature;
  int64_t start, width;
  Pooling pooling;
  int64_t length;          // rows that kFirst keeps
  int64_t output;          // number of the output
  int64_t offset;          // in floats, from the begin of an example in the output
  int64_t example_stride;  // floats from one example to the next
  int64_t row_stride;      // kFirst: floats from one row of an example to the next
  int64_t is_added;        // another slice wrote there before
};

// Borrowed, all of it.
struct LayoutPlan {
  std::span<const int64_t> dims;        // of the rows of each feature
  std::span<const LayoutSlice> slices;  // by feature, ascending
};

// Where the rows of a batch lie. Borrowed, all of it.
struct LayoutRows {
  std::span<const int64_t> sizes;           // floats in each list of rows
  std::span<const uint64_t> fid_offset;     // list << 32 | place, per id
  std::span<const int32_t> feature_offset;  // first id of each cell, and their number
  std::span<const int64_t> nfl_offset;      // first cell of each feature; bit 31: shared
  int64_t batch_size;
  bool is_counted_in_rows;  // places are numbers of rows, not of floats
};

// lists: rows, one float array per list; outputs: written in full.
// Throws std::invalid_argument if offsets lead out of their arrays; then outputs mean nothing.
void embeddings_to_layout(const LayoutPlan& plan, const LayoutRows& rows,
                          std::span<const float* const> lists, std::span<float* const> outputs,
                          unsigned threads);

// gradients: of the outputs; null where there is none. lists: zeros, to which is added.
void layout_to_gradients(const LayoutPlan& plan, const LayoutRows& rows,
                         std::span<const float* const> gradients, std::span<float* const> lists,
                         unsigned threads);

}  // namespace monolith
