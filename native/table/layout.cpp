#include "table/layout.h"

#include <algorithm>
#include <stdexcept>

namespace monolith {
namespace {

const OptimizerKernel& find_optimizer(const Kernels& kernels, const std::string& name) {
  for (const OptimizerKernel& optimizer : kernels.optimizers) {
    if (name == optimizer.name) return optimizer;
  }
  throw std::invalid_argument("[Layout] expected a known optimizer, got '" + name + "'");
}

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

}  // namespace

Layout::Layout(const std::vector<SegmentSpec>& specs, uint64_t seed)
    : seed_(seed), kernels_(monolith::kernels()) {
  for (const SegmentSpec& spec : specs) dim_ += spec.dim;
  uint32_t column = 0;
  num_floats_ = dim_;
  for (const SegmentSpec& spec : specs) {
    const OptimizerKernel& optimizer = find_optimizer(kernels_, spec.optimizer);
    const uint32_t state_size = optimizer.state_size(spec.dim);
    segments_.push_back({spec.dim, column, state_size, num_floats_, &optimizer,
                         order_options(optimizer, spec), spec.minval, spec.maxval});
    column += spec.dim;
    num_floats_ += state_size;
  }
}

void Layout::initial_weights(float* weights, int64_t key) const noexcept {
  for (const Segment& s : segments_) {
    float* out = weights + s.first_column;
    if (s.minval == s.maxval) {
      std::fill_n(out, s.dim, s.minval);
    } else {
      kernels_.uniform(out, s.first_column, s.dim, seed_, key, s.minval, s.maxval);
    }
  }
}

void Layout::initial_row(float* row, int64_t key) const noexcept {
  initial_weights(row, key);
  for (const Segment& s : segments_) {
    s.optimizer->initialize(row + s.state_offset, s.dim, s.options.data());
  }
}

void Layout::step(float* row, const float* grads, const float* rates, int64_t step) const noexcept {
  for (size_t i = 0; i < segments_.size(); ++i) {
    if (rates[i] == 0.0f) continue;
    const Segment& s = segments_[i];
    s.optimizer->step(row + s.first_column, row + s.state_offset, grads + s.first_column, s.dim,
                      s.options.data(), rates[i], step);
  }
}

}  // namespace monolith
