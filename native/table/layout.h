// What a row looks like: weights of all segments, then their optimizer state.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/kernels.h"

namespace monolith {

struct SegmentSpec {
  uint32_t dim;
  std::string optimizer;
  std::vector<std::pair<std::string, float>> options;
  float minval;  // initial values are uniform in [minval, maxval); equal: constant
  float maxval;
};

struct Segment {
  uint32_t dim;
  uint32_t first_column;
  uint32_t state_size;
  uint32_t state_offset;  // floats from the start of the row
  const OptimizerKernel* optimizer;
  std::vector<float> options;
  float minval;
  float maxval;
};

// Immutable. Shared by everything that touches rows.
class Layout {
 public:
  // Throws std::invalid_argument for an unknown optimizer or option.
  Layout(const std::vector<SegmentSpec>& specs, uint64_t seed);

  uint32_t dim() const noexcept { return dim_; }
  uint32_t num_floats() const noexcept { return num_floats_; }  // weights and state
  size_t row_bytes() const noexcept { return (size_t{num_floats_} * 4 + 7) / 8 * 8; }
  const std::vector<Segment>& segments() const noexcept { return segments_; }
  const Kernels& kernels() const noexcept { return kernels_; }

  void initial_weights(float* weights, int64_t key) const noexcept;
  void initial_row(float* row, int64_t key) const noexcept;
  // One optimizer step with one rate per segment; a rate of 0 leaves its segment alone.
  void step(float* row, const float* grads, const float* rates, int64_t step) const noexcept;

 private:
  std::vector<Segment> segments_;
  uint32_t dim_ = 0;
  uint32_t num_floats_ = 0;
  uint64_t seed_;
  const Kernels& kernels_;
};

}  // namespace monolith
