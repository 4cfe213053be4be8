// Declares the loops over floats, which are compiled once per instruction set and chosen when a
// table is created.
//
// No contraction, IEEE divide and square root: every instruction set gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace monolith {

// One sparse optimizer, as its header in rules/ describes it; CMake lists the headers.
struct OptimizerKernel {
  const char* name;
  std::span<const char* const> options;
  // State size of a segment of `dim` weights, in floats; an int64 counts as two floats.
  uint32_t (*state_size)(uint32_t dim);
  void (*initialize)(float* state, uint32_t dim, const float* options);
  // Makes one step of one segment. `grads` must not overlap the row. `rate` is above 0.
  void (*step)(float* weights, float* state, const float* grads, uint32_t dim, const float* options,
               float rate, int64_t global_step);
};

// One rule of dense parameters, as dense_rules.h describes it.
struct DenseKernel {
  const char* name;
  size_t num_states;
  std::span<const char* const> options;
  // Makes one step of `n` weights; the arrays do not overlap.
  void (*step)(float* weights, const float* grads, float* const* states, size_t n,
               const float* options, float rate);
};

// Seeds the stochastic rounding of weights.
struct Rounding {
  uint64_t seed;
  int64_t key;
  uint32_t call;   // number of the updating call; only its low 16 bits matter
  uint32_t first;  // column of the first weight
};

// One way to store weights (codecs.h).
struct CodecKernel {
  const char* name;
  size_t (*bytes)(size_t n);
  // `parameter` is the unit of fixed_r8, or the amplitude of one_bit.
  void (*encode)(void* codes, const float* weights, size_t n, float parameter);
  void (*decode)(float* weights, const void* codes, size_t n, float parameter);
  // Encodes with stochastic rounding; null if the codec has none.
  void (*round)(void* codes, const float* weights, uint32_t n, const Rounding& rounding);
};

// One way to view weights in training (views.h). `parameter` is that of the codec.
struct ViewKernel {
  const char* name;
  bool is_straight;  // gradients pass unchanged
  void (*forward)(float* values, size_t n, float parameter, float scale);
  void (*backward)(float* grads, const float* weights, size_t n, float parameter, float scale);
};

struct Kernels {
  const char* name;
  std::span<const OptimizerKernel> optimizers;
  std::span<const DenseKernel> dense;
  std::span<const CodecKernel> codecs;
  std::span<const ViewKernel> views;
  // Writes the initial values of columns [first, first + n) of a key (contract 3: Philox4x32-10,
  // stream 0).
  void (*uniform)(float* out, uint32_t first, uint32_t n, uint64_t seed, int64_t key, float minval,
                  float maxval);
  // Returns the index of the first NaN or infinity, or n.
  size_t (*find_non_finite)(const float* values, size_t n);
  void (*add)(float* sum, const float* values, size_t n);
  // out = sum + factor * values; each operation rounds. The arrays are equal or do not overlap.
  void (*add_scaled)(float* out, const float* sum, const float* values, float factor, size_t n);
  // out = factor * values. The arrays are equal or do not overlap.
  void (*scale)(float* out, const float* values, float factor, size_t n);
  // Where a value is above the largest value so far, stores the value and its place.
  void (*take_max)(float* largest, int32_t* places, const float* values, int32_t place, size_t n);
  // Writes the values whose place equals `place`, and 0 elsewhere.
  void (*select)(float* out, const float* values, const int32_t* places, int32_t place, size_t n);
  void (*add_selected)(float* sum, const float* values, const int32_t* places, int32_t place,
                       size_t n);
  // Returns the largest magnitude, or NaN if there is a NaN.
  float (*largest)(const float* values, size_t n);
  // Sums in 8 partial sums of double, combined as in contract 3.
  double (*sum_squares)(const float* values, size_t n);
  // Dot product as 8 partial sums (contract 3).
  float (*dot)(const float* a, const float* b, uint32_t n);
};

// Returns the member of a list with the name. Throws std::invalid_argument.
const OptimizerKernel& find_kernel(std::span<const OptimizerKernel> list, const std::string& name);
const CodecKernel& find_kernel(std::span<const CodecKernel> list, const std::string& name);
const ViewKernel& find_kernel(std::span<const ViewKernel> list, const std::string& name);

// Returns the best set for this CPU; every call returns the same set.
const Kernels& kernels() noexcept;
// Returns every set that this CPU can run, baseline first (tests compare them).
std::span<const Kernels* const> all_kernels() noexcept;

}  // namespace monolith
