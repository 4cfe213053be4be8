// Steps of dense optimizers: the same bits with every instruction set and any number of threads.
#include "ops/dense_step.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

using namespace monolith;

namespace {

using Tensor = std::vector<float>;
const std::vector<float> kOptions{0.9f, 0.8f, 0.01f, 0.1f};

// Tensors of many sizes, an empty one among them, after a few steps.
struct Run {
  std::vector<int64_t> sizes{1, 0, 7, 16, 1000, 3, 40000};
  std::vector<Tensor> parameters, gradients, states;

  Run(const DenseKernel& rule, const Kernels& kernels, unsigned threads, int num_steps = 5) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (const int64_t size : sizes) {
      parameters.emplace_back(size);
      gradients.emplace_back(size);
      for (float& w : parameters.back()) w = normal(random);
    }
    for (size_t s = 0; s < rule.num_states; ++s) {
      for (const int64_t size : sizes) states.emplace_back(size);
    }
    for (int step = 0; step < num_steps; ++step) {
      for (Tensor& gradient : gradients) {
        for (float& g : gradient) g = normal(random);
      }
      const std::vector<float*> w = pointers(parameters), g = pointers(gradients);
      const std::vector<float*> s = pointers(states);
      const std::vector<const float*> g_const(g.begin(), g.end());
      dense_step(rule.name, {w, g_const, s, sizes}, kOptions, 0.1f, threads, kernels);
    }
  }

  static std::vector<float*> pointers(std::vector<Tensor>& tensors) {
    std::vector<float*> pointers;
    for (Tensor& tensor : tensors) pointers.push_back(tensor.data());
    return pointers;
  }

  bool operator==(const Run& other) const {
    return parameters == other.parameters && states == other.states;
  }
};

void test_every_way_gives_the_same_bits() {
  const Kernels& baseline = *all_kernels().front();
  for (const DenseKernel& rule : baseline.dense) {
    const Run expected(rule, baseline, 1);
    for (const Kernels* kernels : all_kernels()) {
      for (const unsigned threads : {1u, 2u, 3u, 7u})
        CHECK(Run(rule, *kernels, threads) == expected);
    }
  }
}

void test_a_step_is_the_formula() {
  const Kernels& kernels = monolith::kernels();
  for (const DenseKernel& rule : kernels.dense) {
    const Run before(rule, kernels, 1, 0), after(rule, kernels, 2, 1);
    for (size_t t = 0; t < before.sizes.size(); ++t) {
      for (int64_t i = 0; i < before.sizes[t]; ++i) {
        const double w = before.parameters[t][i], h = after.gradients[t][i] + 0.1 * w;
        const std::string name = rule.name;
        const double change = name == "adamom"    ? 0.1 * 0.2 * h / std::sqrt(h * h + 0.01)
                              : name == "rmsprop" ? 0.1 * h / std::sqrt(0.2 * h * h + 0.01)
                                                  : 0.1 * h / (std::sqrt(h * h) + 0.01);
        CHECK(std::abs(after.parameters[t][i] - (w - change)) < 1e-6);
      }
    }
  }
}

template <typename Call>
void check_refused(const std::string& text, const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    CHECK(text == error.what());
    return;
  }
  CHECK(false);
}

void test_what_does_not_fit_is_refused() {
  Tensor w{1.0f}, g{1.0f}, s{0.0f};
  float* const one[] = {w.data()};
  const float* const gradient[] = {g.data()};
  float* const states[] = {s.data(), s.data()};
  const int64_t size[] = {1};
  check_refused("[dense_step] expected a known rule, got 'sgd'",
                [&] { dense_step("sgd", {one, gradient, states, size}, kOptions, 1.0f, 1); });
  check_refused("[dense_step] expected 4 options, got 0",
                [&] { dense_step("rmsprop", {one, gradient, states, size}, {}, 1.0f, 1); });
  check_refused("[dense_step] expected 1 gradients, got 0",
                [&] { dense_step("rmsprop", {one, {}, states, size}, kOptions, 1.0f, 1); });
  check_refused("[dense_step] expected 3 states, got 2",
                [&] { dense_step("adamom", {one, gradient, states, size}, kOptions, 1.0f, 1); });
  check_refused("[dense_step] expected 1 sizes, got 0",
                [&] { dense_step("rmsprop", {one, gradient, states, {}}, kOptions, 1.0f, 1); });
  CHECK(w[0] == 1.0f);
}

}  // namespace

int main() {
  test_every_way_gives_the_same_bits();
  test_a_step_is_the_formula();
  test_what_does_not_fit_is_refused();
  std::puts("dense_step: ok");
}
