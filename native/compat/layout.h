// Pools embedding rows into layouts, and turns gradients of layouts into gradients of rows:
// native_training/ops/layout.py defines the numbers.
//
// Both passes give the same bits for every number of threads: forward, each thread owns some
// examples; backward, each thread owns some rows and adds to each row in the order of the examples.
// Rows of two features never overlap, so features need no locks; offsets from fid_shards.h
// guarantee this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace monolith {

enum class Pooling : int64_t { kSum = 0, kMean = 1, kFirst = 3 };

// Columns [start, start + width) of the rows of a feature, and their destination: ten int64s, as
// Python writes them.
struct LayoutSlice {
  int64_t feature;
  int64_t start, width;
  Pooling pooling;
  int64_t length;          // number of rows that kFirst keeps
  int64_t output;          // number of the output
  int64_t offset;          // in floats, from the start of an example in the output
  int64_t example_stride;  // floats from one example to the next
  int64_t row_stride;      // kFirst: floats from one row of an example to the next
  int64_t is_added;        // an earlier slice writes to the same place
};

// All spans are borrowed.
struct LayoutPlan {
  std::span<const int64_t> dims;        // dim of the rows of each feature
  std::span<const LayoutSlice> slices;  // by feature, ascending
};

// The places of the rows of a batch. All spans are borrowed.
struct LayoutRows {
  std::span<const int64_t> sizes;           // floats in each list of rows
  std::span<const uint64_t> fid_offset;     // list << 32 | place, per id
  std::span<const int32_t> feature_offset;  // first id of each cell, and the number of ids
  std::span<const int64_t> nfl_offset;      // first cell of each feature; bit 31 means shared
  int64_t batch_size;
  bool is_counted_in_rows;  // places count rows, not floats
};

// Pools the rows of `lists`, one float array per list, into `outputs`, which are written in full.
// Throws std::invalid_argument if offsets lead out of their arrays; the outputs are then undefined.
void embeddings_to_layout(const LayoutPlan& plan, const LayoutRows& rows,
                          std::span<const float* const> lists, std::span<float* const> outputs,
                          unsigned threads);

// Adds the gradients of the rows to `lists`, which start as zeros. `gradients` are those of the
// outputs; null for an output without gradient.
void layout_to_gradients(const LayoutPlan& plan, const LayoutRows& rows,
                         std::span<const float* const> gradients, std::span<float* const> lists,
                         unsigned threads);

}  // namespace monolith
