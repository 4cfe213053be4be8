// Describes the bytes of a row: the weights of all segments, then their optimizer state.
//
// The weights of a segment are codes of its codec, padded to 4 bytes. A row is plain if all weights
// are floats; verbs then work on the row in place. Otherwise verbs work on decoded weights.
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
  float minval;  // initial values are uniform in [minval, maxval), or constant if both are equal
  float maxval;
  bool is_normal = false;  // initial values are normal instead: minval is the mean, maxval stddev
  std::string codec = "fp32";
  float codec_parameter = 0;
  std::string view = "";  // none
  float view_parameter = 0;
};

struct Segment {
  uint32_t dim;
  uint32_t first_column;
  uint32_t weight_offset;  // bytes from the start of the row
  uint32_t state_offset;   // floats from the start of the row
  const OptimizerKernel* optimizer;
  std::vector<float> options;
  float minval;
  float maxval;
  bool is_normal;
  const CodecKernel* codec;
  float codec_parameter;
  const ViewKernel* view;  // or null
  float view_parameter;
};

// Immutable, hence thread-safe. `scales` has one number per segment.
class Layout {
 public:
  // If `rounds`, weights are rounded stochastically where the codec supports it, as in training;
  // otherwise they are encoded. Throws std::invalid_argument for an unknown optimizer, option,
  // codec or view.
  Layout(const std::vector<SegmentSpec>& specs, uint64_t seed, bool rounds);

  uint32_t dim() const noexcept { return dim_; }
  uint32_t num_words() const noexcept { return num_words_; }  // of 4 bytes: weights and state
  size_t row_bytes() const noexcept { return (size_t{num_words_} * 4 + 7) / 8 * 8; }
  size_t weight_bytes() const noexcept { return weight_bytes_; }
  const std::vector<Segment>& segments() const noexcept { return segments_; }
  const Kernels& kernels() const noexcept { return kernels_; }

  bool is_plain() const noexcept { return is_plain_; }
  bool has_views() const noexcept { return has_views_; }
  bool changes_gradients() const noexcept { return changes_gradients_; }

  // Convert weights, (dim,), between floats and the codes of a row.
  void decode(float* weights, const char* row) const noexcept;
  void encode(char* row, const float* weights, int64_t key, uint64_t call) const noexcept;
  // Turns stored weights into the weights that a lookup returns.
  void see(float* weights, const float* scales) const noexcept;
  // Turns gradients of the looked-up weights into gradients of the stored weights.
  void see_gradients(float* grads, const float* weights, const float* scales) const noexcept;

  // Writes the decoded weights of a new row, (dim,).
  void initial_weights(float* weights, int64_t key) const noexcept;
  // Writes a new row. `scratch`, (dim,), is used where the row is not plain.
  void initial_row(char* row, float* scratch, int64_t key) const noexcept;
  // Makes one optimizer step with one rate per segment; a rate of 0 leaves its segment unchanged.
  // `weights` are the decoded weights, or the row itself where it is plain.
  void step(float* weights, char* row, const float* grads, const float* rates,
            int64_t step) const noexcept {
    for (const Segment& s : segments_) {
      const float rate = *rates++;
      if (rate == 0.0f) continue;
      s.optimizer->step(weights + s.first_column, reinterpret_cast<float*>(row) + s.state_offset,
                        grads + s.first_column, s.dim, s.options.data(), rate, step);
    }
  }

 private:
  void place();
  void draw_weights(float* weights, int64_t key) const noexcept;
  void round_weights(float* weights, int64_t key) const noexcept;

  std::vector<Segment> segments_;
  uint32_t dim_ = 0;
  uint32_t num_words_ = 0;
  size_t weight_bytes_ = 0;
  bool is_plain_ = true;
  bool has_views_ = false;
  bool changes_gradients_ = false;
  uint64_t seed_;
  bool rounds_;
  const Kernels& kernels_;
};

}  // namespace monolith
