// The distinct keys of a short list.
#include "ops/distinct.h"

#include <algorithm>
#include <vector>

#include "table/hash.h"
#include "tests/check.h"

using namespace monolith;

namespace {

// n keys, the first `distinct` of them different, then the same again.
std::vector<int64_t> repeated(size_t n, size_t distinct) {
  std::vector<int64_t> keys;
  for (size_t i = 0; i < n; ++i) {
    keys.push_back(static_cast<int64_t>(key_hash(static_cast<int64_t>(i % distinct))));
  }
  return keys;
}

void test_every_occurrence_has_the_number_of_its_key(size_t n, size_t distinct, uint32_t depth) {
  const std::vector<int64_t> keys = repeated(n, distinct);
  DistinctKeys::Scratch scratch;
  DistinctKeys(keys.data(), n / 2, 3, depth, scratch);  // leaves values in the scratch
  const DistinctKeys distinct_keys(keys.data(), n, 5, depth, scratch);
  CHECK(distinct_keys.size() == std::min(n, distinct) &&
        distinct_keys.keys().size() == distinct_keys.size());
  CHECK(distinct_keys.numbers().size() == n);
  for (size_t i = 0; i < n; ++i) CHECK(distinct_keys.keys()[distinct_keys.numbers()[i]] == keys[i]);
}

// Keys are new and known in no order, and one scratch is used for many lists.
void test_numbers_are_by_bits_and_first_occurrence() {
  constexpr size_t kNum = 200;
  constexpr uint32_t kBits = 3;
  DistinctKeys::Scratch scratch;
  for (uint64_t list = 0; list < 200; ++list) {
    std::vector<int64_t> keys, met;
    for (size_t i = 0; i < kNum; ++i) {
      keys.push_back(static_cast<int64_t>(key_hash(static_cast<int64_t>(list * kNum + i)) % 90));
      if (std::find(met.begin(), met.end(), keys[i]) == met.end()) met.push_back(keys[i]);
    }
    const DistinctKeys distinct_keys(keys.data(), kNum, key_hash(static_cast<int64_t>(list)), kBits,
                                     scratch);
    CHECK(distinct_keys.as_met().size() == met.size());
    for (size_t u = 0; u < met.size(); ++u)
      CHECK(distinct_keys.keys()[distinct_keys.as_met()[u]] == met[u]);
    for (size_t i = 0; i < kNum; ++i)
      CHECK(distinct_keys.keys()[distinct_keys.numbers()[i]] == keys[i]);
    const auto bits_of = [](int64_t key) { return key_hash(key) >> (64 - kBits); };
    std::stable_sort(met.begin(), met.end(),
                     [&](int64_t a, int64_t b) { return bits_of(a) < bits_of(b); });
    CHECK(std::equal(met.begin(), met.end(), distinct_keys.keys().begin()));
  }
}

void test_keys_that_meet_in_one_place_are_told_apart() {
  constexpr uint64_t kSamePlace = 0;  // a salt that puts every key there
  const std::vector<int64_t> keys = repeated(300, 100);
  DistinctKeys::Scratch scratch;
  const DistinctKeys distinct_keys(keys.data(), keys.size(), kSamePlace, 0, scratch);
  CHECK(distinct_keys.size() == 100);
  for (size_t i = 0; i < keys.size(); ++i) CHECK(distinct_keys.numbers()[i] == i % 100);
}

void test_keys_lie_by_the_first_bits_of_their_hashes(uint32_t depth, uint32_t bits) {
  const std::vector<int64_t> keys = repeated(4000, 3000);
  DistinctKeys::Scratch scratch;
  const DistinctKeys distinct_keys(keys.data(), keys.size(), 1, depth, scratch);
  const auto bits_of = [=](int64_t key) { return bits == 0 ? 0 : key_hash(key) >> (64 - bits); };
  for (size_t k = 1; k < distinct_keys.size(); ++k) {
    CHECK(bits_of(distinct_keys.keys()[k - 1]) <= bits_of(distinct_keys.keys()[k]));
  }
}

void test_as_met_is_the_order_of_first_occurrences() {
  const std::vector<int64_t> keys = repeated(900, 300);
  DistinctKeys::Scratch scratch;
  const DistinctKeys distinct_keys(keys.data(), keys.size(), 1, 8, scratch);
  CHECK(distinct_keys.as_met().size() == 300);
  for (size_t u = 0; u < 300; ++u)
    CHECK(distinct_keys.keys()[distinct_keys.as_met()[u]] == keys[u]);
}

}  // namespace

int main() {
  for (const uint32_t depth : {0, 1, 9, 28}) {
    test_every_occurrence_has_the_number_of_its_key(1, 1, depth);
    test_every_occurrence_has_the_number_of_its_key(2, 1, depth);
    test_every_occurrence_has_the_number_of_its_key(5000, 1, depth);
    test_every_occurrence_has_the_number_of_its_key(5000, 2100, depth);
    test_every_occurrence_has_the_number_of_its_key(DistinctKeys::kMost, DistinctKeys::kMost,
                                                    depth);
  }
  test_numbers_are_by_bits_and_first_occurrence();
  test_keys_that_meet_in_one_place_are_told_apart();
  test_keys_lie_by_the_first_bits_of_their_hashes(0, 0);
  test_keys_lie_by_the_first_bits_of_their_hashes(6, 6);
  test_keys_lie_by_the_first_bits_of_their_hashes(28, 10);
  test_as_met_is_the_order_of_first_occurrences();
  std::printf("distinct: ok\n");
}
