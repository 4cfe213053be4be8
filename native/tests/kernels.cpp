// Every instruction set gives the same bits.
#include "optimizer/kernels.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.h"

using namespace monolith;

namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

void test_steps_agree(const Kernels& kernels, const Kernels& baseline) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const float options[8] = {0.1f, 0.01f, 0.9f, 0.5f, 0.2f, 0.3f, 0.4f, 0.6f};
  for (size_t o = 0; o < baseline.optimizers.size(); ++o) {
    for (const uint32_t dim : {1u, 3u, 7u, 8u, 15u, 16u, 17u, 64u, 100u}) {
      const OptimizerKernel& expected = baseline.optimizers[o];
      const OptimizerKernel& got = kernels.optimizers[o];
      std::vector<float> w(dim, 0.5f), s(expected.state_size(dim) + 1), g(dim);
      expected.initialize(s.data(), dim, options);
      std::vector<float> w2 = w, s2 = s;
      for (int step = 0; step < 20; ++step) {
        const float scale = step % 4 == 3 ? 1e25f : 1.0f;  // too large to be squared
        for (float& x : g) x = scale * normal(random);
        expected.step(w.data(), s.data(), g.data(), dim, options, 0.1f, step);
        got.step(w2.data(), s2.data(), g.data(), dim, options, 0.1f, step);
      }
      CHECK(same_bits(w, w2) && same_bits(s, s2));
    }
  }
}

void test_initial_values_agree(const Kernels& kernels, const Kernels& baseline) {
  for (uint32_t first = 0; first < 9; ++first) {
    for (const uint32_t n : {1u, 4u, 15u, 16u, 17u, 63u, 64u, 65u, 200u}) {
      std::vector<float> a(n), b(n), one(1);
      baseline.uniform(a.data(), first, n, 0x123456789abcdef0u, -77, -0.05f, 0.05f);
      kernels.uniform(b.data(), first, n, 0x123456789abcdef0u, -77, -0.05f, 0.05f);
      CHECK(same_bits(a, b));
      baseline.uniform(one.data(), first + n - 1, 1, 0x123456789abcdef0u, -77, -0.05f, 0.05f);
      CHECK(one[0] == a[n - 1]);
    }
  }
}

// Ordinary, tiny, huge and special numbers of both signs.
std::vector<float> many_weights(size_t n) {
  std::mt19937 random(2);
  std::vector<float> weights(n);
  for (float& x : weights) {
    const auto bits = static_cast<uint32_t>(random());
    std::memcpy(&x, &bits, 4);
    if (random() % 2 == 0 || std::isnan(x)) x = std::ldexp(static_cast<float>(bits), -32);
  }
  return weights;
}

void test_codecs_agree(const Kernels& kernels, const Kernels& baseline) {
  for (size_t c = 0; c < baseline.codecs.size(); ++c) {
    const CodecKernel& expected = baseline.codecs[c];
    const CodecKernel& got = kernels.codecs[c];
    for (const uint32_t n : {1u, 5u, 8u, 16u, 23u, 64u, 1000u}) {
      const std::vector<float> weights = many_weights(n);
      std::vector<char> a(expected.bytes(n)), b = a;
      std::vector<float> from_a(n), from_b(n);
      const auto same = [&] {
        expected.decode(from_a.data(), a.data(), n, 0.01f);
        got.decode(from_b.data(), b.data(), n, 0.01f);
        return a == b && same_bits(from_a, from_b);
      };
      expected.encode(a.data(), weights.data(), n, 0.01f);
      got.encode(b.data(), weights.data(), n, 0.01f);
      CHECK(same());
      for (uint32_t first = 0; expected.round != nullptr && first < 6; ++first) {
        const Rounding rounding{0x123456789abcdef0u, -77, 0x1234, first};
        expected.round(a.data(), weights.data(), n, rounding);
        got.round(b.data(), weights.data(), n, rounding);
        CHECK(same());
      }
    }
  }
}

void test_views_agree(const Kernels& kernels, const Kernels& baseline) {
  for (size_t v = 0; v < baseline.views.size(); ++v) {
    const std::vector<float> weights = many_weights(1001);
    std::vector<float> a = weights, b = weights;
    baseline.views[v].forward(a.data(), a.size(), 0.01f, 3.0f);
    kernels.views[v].forward(b.data(), b.size(), 0.01f, 3.0f);
    CHECK(same_bits(a, b));
    baseline.views[v].backward(a.data(), weights.data(), a.size(), 0.01f, 3.0f);
    kernels.views[v].backward(b.data(), weights.data(), b.size(), 0.01f, 3.0f);
    CHECK(same_bits(a, b));
  }
}

void test_pooling_agrees(const Kernels& kernels, const Kernels& baseline) {
  for (const uint32_t n : {1u, 5u, 8u, 16u, 23u, 100u}) {
    const std::vector<float> weights = many_weights(2 * n);
    const float* values = weights.data() + n;
    std::vector<int32_t> places_a(n), places_b(n);
    std::vector<float> a(weights.begin(), weights.begin() + n), b = a;
    const auto run = [&](const Kernels& k, std::vector<float>& out, std::vector<int32_t>& places) {
      k.take_max(out.data(), places.data(), values, 7, n);
      k.add_selected(out.data(), values, places.data(), 7, n);
      k.add_scaled(out.data(), out.data(), values, 0.3f, n);
      k.scale(out.data(), out.data(), 0.7f, n);
      std::vector<float> selected(n);
      k.select(selected.data(), values, places.data(), 7, n);
      k.add(out.data(), selected.data(), n);
      out.push_back(k.dot(values, selected.data(), n));
      out.push_back(k.largest(values, n));
      return k.sum_squares(values, n);
    };
    const double squares_a = run(baseline, a, places_a), squares_b = run(kernels, b, places_b);
    CHECK(std::memcmp(&squares_a, &squares_b, 8) == 0);
    CHECK(same_bits(a, b) && places_a == places_b);
  }
}

// Of any length: 1 + 4 + ... + n * n.
void test_squares_are_those_of_every_value(const Kernels& kernels) {
  std::vector<float> values;
  double expected = 0;
  for (size_t n = 1; n <= 20; ++n) {
    values.push_back(static_cast<float>(n));
    expected += static_cast<double>(n * n);
    CHECK(kernels.sum_squares(values.data(), n) == expected);
  }
}

void test_largest_sees_nan(const Kernels& kernels) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values(100, -3.0f);
  CHECK(kernels.largest(values.data(), values.size()) == 3.0f);
  values[40] = -inf;
  CHECK(kernels.largest(values.data(), values.size()) == inf);
  values[70] = std::nanf("");
  CHECK(std::isnan(kernels.largest(values.data(), values.size())));
  CHECK(kernels.largest(values.data(), 0) == 0.0f);
}

void test_finds_every_non_finite(const Kernels& kernels) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> values(3000, std::numeric_limits<float>::max());
  CHECK(kernels.find_non_finite(values.data(), values.size()) == values.size());
  for (const size_t at : {size_t{0}, size_t{1}, size_t{1023}, size_t{1024}, size_t{2999}}) {
    for (const float bad : {inf, -inf, std::nanf("")}) {
      values[at] = bad;
      CHECK(kernels.find_non_finite(values.data(), values.size()) == at);
      values[at] = 0.0f;
    }
  }
}

}  // namespace

int main() {
  const Kernels& baseline = *all_kernels().front();
  for (const Kernels* kernels : all_kernels()) {
    test_steps_agree(*kernels, baseline);
    test_initial_values_agree(*kernels, baseline);
    test_codecs_agree(*kernels, baseline);
    test_views_agree(*kernels, baseline);
    test_pooling_agrees(*kernels, baseline);
    test_squares_are_those_of_every_value(*kernels);
    test_largest_sees_nan(*kernels);
    test_finds_every_non_finite(*kernels);
    std::printf("kernels: %s ok\n", kernels->name);
  }
}
