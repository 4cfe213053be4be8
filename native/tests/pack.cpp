// Buffers in one, and rows of ragged values; wrong splits are refused within the output.
#include "compat/pack.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

using namespace monolith;

namespace {

void check_pack() {
  const std::string first = "abc", last = "de";
  const std::vector<uintptr_t> buffers = {reinterpret_cast<uintptr_t>(first.data()), 0,
                                          reinterpret_cast<uintptr_t>(last.data())};
  const std::vector<size_t> sizes = {3, 0, 2};
  std::string out(6, '.');
  pack_buffers(buffers, sizes, out.data());
  CHECK(out == "abcde.");
}

void check_rowids() {
  const std::vector<int64_t> splits = {0, 0, 1, 3, 3};
  std::vector<int64_t> out(3, -1);
  value_rowids(splits.data(), splits.size(), out.data(), out.size());
  CHECK((out == std::vector<int64_t>{1, 2, 2}));
}

void check_wrong_splits(const std::vector<int64_t>& splits) {
  std::vector<int64_t> out(4, -1);
  bool is_refused = false;
  try {
    value_rowids(splits.data(), splits.size(), out.data(), 3);
  } catch (const std::invalid_argument&) {
    is_refused = true;
  }
  CHECK(is_refused);
  CHECK(out[3] == -1);
}

}  // namespace

int main() {
  check_pack();
  check_rowids();
  for (const auto& splits : std::vector<std::vector<int64_t>>{
           {}, {1, 3}, {0, 2}, {0, 4}, {0, 2, 1, 3}, {0, int64_t{1} << 62, 3}, {-1, 3}}) {
    check_wrong_splits(splits);
  }
}
