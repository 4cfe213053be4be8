#include "table/layout.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>

namespace monolith {
namespace {

std::vector<float> order_options(const OptimizerKernel& optimizer, const SegmentSpec& spec) {
  std::vector<float> values;
  for (const char* name : optimizer.options) {
    const auto at = std::find_if(spec.options.begin(), spec.options.end(),
                                 [&](const auto& option) { return option.first == name; });
    if (at == spec.options.end()) {
      throw std::invalid_argument("[Layout] expected option '" + std::string(name) + "' of " +
                                  spec.optimizer);
    }
    values.push_back(at->second);
  }
  if (values.size() != spec.options.size()) {
    throw std::invalid_argument("[Layout] expected " + std::to_string(values.size()) +
                                " option(s) of " + spec.optimizer + ", got " +
                                std::to_string(spec.options.size()));
  }
  return values;
}

// Box-Muller: columns 2k and 2k + 1 are the cosine and the sine of one pair of numbers.
void draw_normal(const Kernels& kernels, float* out, const Segment& s, uint64_t seed, int64_t key) {
  constexpr uint32_t kPiece = 64;
  float u[kPiece];
  const uint32_t last = s.first_column + s.dim;
  for (uint32_t start = s.first_column / 2 * 2; start < last; start += kPiece) {
    kernels.uniform(u, start, kPiece, seed, key, 0.0f, 1.0f);
    for (uint32_t i = 0; i < kPiece; ++i) {
      const uint32_t column = start + i;
      if (column < s.first_column || column >= last) continue;
      const double size = std::sqrt(-2.0 * std::log(double{u[i & ~1u]} + 0x1p-24));
      const double turn = 2 * std::numbers::pi * double{u[i | 1u]};
      const double z = size * (i % 2 == 0 ? std::cos(turn) : std::sin(turn));
      out[column - s.first_column] = static_cast<float>(double{s.minval} + double{s.maxval} * z);
    }
  }
}

}  // namespace

Layout::Layout(const std::vector<SegmentSpec>& specs, uint64_t seed, bool rounds)
    : seed_(seed), rounds_(rounds), kernels_(monolith::kernels()) {
  for (const SegmentSpec& spec : specs) {
    Segment s{};
    s.dim = spec.dim;
    s.optimizer = &find_kernel(kernels_.optimizers, spec.optimizer);
    s.options = order_options(*s.optimizer, spec);
    s.minval = spec.minval;
    s.maxval = spec.maxval;
    s.is_normal = spec.is_normal;
    s.codec = &find_kernel(kernels_.codecs, spec.codec);
    s.codec_parameter = spec.codec_parameter;
    s.view = spec.view.empty() ? nullptr : &find_kernel(kernels_.views, spec.view);
    s.view_parameter = spec.view_parameter;
    is_plain_ = is_plain_ && spec.codec == "fp32";
    has_views_ = has_views_ || s.view != nullptr;
    changes_gradients_ = changes_gradients_ || (s.view != nullptr && !s.view->is_straight);
    segments_.push_back(std::move(s));
  }
  place();
}

void Layout::place() {
  for (Segment& s : segments_) {
    s.first_column = dim_;
    s.weight_offset = static_cast<uint32_t>(weight_bytes_);
    dim_ += s.dim;
    weight_bytes_ += (s.codec->bytes(s.dim) + 3) / 4 * 4;
  }
  num_words_ = static_cast<uint32_t>(weight_bytes_ / 4);
  for (Segment& s : segments_) {
    s.state_offset = num_words_;
    num_words_ += s.optimizer->state_size(s.dim);
  }
}

void Layout::decode(float* weights, const char* row) const noexcept {
  for (const Segment& s : segments_) {
    s.codec->decode(weights + s.first_column, row + s.weight_offset, s.dim, s.codec_parameter);
  }
}

void Layout::encode(char* row, const float* weights, int64_t key, uint64_t call) const noexcept {
  for (const Segment& s : segments_) {
    const float* from = weights + s.first_column;
    if (rounds_ && s.codec->round != nullptr) {
      s.codec->round(row + s.weight_offset, from, s.dim,
                     {seed_, key, static_cast<uint32_t>(call & 0xFFFF), s.first_column});
    } else {
      s.codec->encode(row + s.weight_offset, from, s.dim, s.codec_parameter);
    }
  }
}

void Layout::see(float* weights, const float* scales) const noexcept {
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& s = segments_[i];
    if (s.view == nullptr) continue;
    s.view->forward(weights + s.first_column, s.dim, s.view_parameter, scales[i]);
  }
}

void Layout::see_gradients(float* grads, const float* weights, const float* scales) const noexcept {
  for (size_t i = 0; i < segments_.size(); ++i) {
    const Segment& s = segments_[i];
    if (s.view == nullptr || s.view->is_straight) continue;
    s.view->backward(grads + s.first_column, weights + s.first_column, s.dim, s.view_parameter,
                     scales[i]);
  }
}

void Layout::draw_weights(float* weights, int64_t key) const noexcept {
  for (const Segment& s : segments_) {
    float* out = weights + s.first_column;
    if (s.is_normal) {
      draw_normal(kernels_, out, s, seed_, key);
    } else if (s.minval == s.maxval) {
      std::fill_n(out, s.dim, s.minval);
    } else {
      kernels_.uniform(out, s.first_column, s.dim, seed_, key, s.minval, s.maxval);
    }
  }
}

// In place, in pieces; as call 0, so that initial values are a function of seed, key and column.
void Layout::round_weights(float* weights, int64_t key) const noexcept {
  constexpr uint32_t kPiece = 256;
  uint16_t codes[kPiece];
  for (const Segment& s : segments_) {
    if (s.codec->round == nullptr) continue;
    for (uint32_t done = 0; done < s.dim; done += kPiece) {
      const uint32_t first = s.first_column + done, n = std::min(kPiece, s.dim - done);
      s.codec->round(codes, weights + first, n, {seed_, key, 0, first});
      s.codec->decode(weights + first, codes, n, s.codec_parameter);
    }
  }
}

void Layout::initial_weights(float* weights, int64_t key) const noexcept {
  draw_weights(weights, key);
  if (!is_plain_ && rounds_) round_weights(weights, key);
}

void Layout::initial_row(char* row, float* scratch, int64_t key) const noexcept {
  if (is_plain_) {
    draw_weights(reinterpret_cast<float*>(row), key);
  } else {
    draw_weights(scratch, key);
    encode(row, scratch, key, 0);
  }
  for (const Segment& s : segments_) {
    s.optimizer->initialize(reinterpret_cast<float*>(row) + s.state_offset, s.dim,
                            s.options.data());
  }
}

}  // namespace monolith
