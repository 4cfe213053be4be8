// Copies columns of a hand-made record batch, also on another thread, and checks the refusals. Run
// under the address sanitizer, which sees a read beyond the memory, and the thread sanitizer.
#include "io/arrow_block.h"

#include <algorithm>
#include <future>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "io/block_copy.h"

using namespace monolith;

namespace {

// Owns an array, its schema, and the memory of both.
struct TestArray {
  ArrowArray array{};
  ArrowSchema schema{};
  std::string name, format;
  std::vector<const void*> buffers;
  std::vector<std::unique_ptr<TestArray>> children;
  std::vector<ArrowArray*> arrays;
  std::vector<ArrowSchema*> schemas;

  TestArray(std::string new_name, std::string new_format, int64_t length, int64_t offset,
            std::vector<const void*> new_buffers)
      : name(std::move(new_name)), format(std::move(new_format)), buffers(std::move(new_buffers)) {
    array.length = length;
    array.offset = offset;
    array.null_count = -1;
    array.n_buffers = static_cast<int64_t>(buffers.size());
    array.buffers = buffers.data();
    schema.name = name.c_str();
    schema.format = format.c_str();
  }
  TestArray& with(std::unique_ptr<TestArray> child) {
    arrays.push_back(&child->array);
    schemas.push_back(&child->schema);
    children.push_back(std::move(child));
    array.n_children = schema.n_children = static_cast<int64_t>(arrays.size());
    array.children = arrays.data();
    schema.children = schemas.data();
    return *this;
  }
};

using Buffers = std::vector<const void*>;

template <class... Arguments>
std::unique_ptr<TestArray> make(Arguments... arguments) {
  return std::make_unique<TestArray>(arguments...);
}

template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

template <typename T>
bool has(const Lines<T>& lines, std::initializer_list<T> expected) {
  return std::equal(lines.data(), lines.data() + lines.size(), expected.begin(), expected.end());
}

// Rows 1 to 2 of each column; the memory ends right after these rows.
struct SlicedBlock {
  const std::vector<int64_t> user{9, 7, 8}, items{9, 9, 1, 2, 3};
  const std::vector<int32_t> offsets{0, 1, 1, 4};  // items begin one later
  const std::vector<float> vectors{9, 9, .5f, 1.5f, 2.5f, 3.5f};
  const BlockNames names{{"items", "user"}, {"vector"}, {"user"}};
  TestArray block{"", "+s", 2, 0, Buffers{nullptr}};

  SlicedBlock() {
    block.with(make("user", "l", int64_t{2}, int64_t{1}, Buffers{nullptr, user.data()}));
    auto lists = make("items", "+l", int64_t{2}, int64_t{1}, Buffers{nullptr, offsets.data()});
    lists->with(make("item", "l", int64_t{4}, int64_t{1}, Buffers{nullptr, items.data()}));
    block.with(std::move(lists));
    auto rows = make("vector", "+w:2", int64_t{2}, int64_t{1}, Buffers{nullptr});
    rows->with(make("item", "f", int64_t{6}, int64_t{0}, Buffers{nullptr, vectors.data()}));
    block.with(std::move(rows));
  }
};

void test_columns_are_copied_from_their_place_on() {
  const SlicedBlock sliced;
  const ArrowBlock opened(sliced.names, sliced.block.array, sliced.block.schema);
  const BlockCopy all = copy_rows({{&opened, 0, 2}});
  CHECK(all.num_rows == 2 && !all.is_one_each && all.widths == std::vector<size_t>{2});
  CHECK(has<int64_t>(all.ids, {1, 2, 3, 7, 8}));
  CHECK(has<int64_t>(all.splits, {0, 0, 3, 0, 1, 2}));
  CHECK(has<float>(all.floats, {.5f, 1.5f, 2.5f, 3.5f}));
  CHECK(has<int64_t>(all.times, {7, 8}));
  const BlockCopy parts = copy_rows({{&opened, 1, 1}, {&opened, 0, 0}, {&opened, 0, 2}});
  CHECK(has<int64_t>(parts.ids, {1, 2, 3, 1, 2, 3, 8, 7, 8}));
  CHECK(has<int64_t>(parts.splits, {0, 3, 3, 6, 0, 1, 2, 3}));
  CHECK(has<int64_t>(parts.times, {8, 7, 8}));
}

void test_copies_ahead_come_in_order_and_outlive_their_thread() {
  const SlicedBlock sliced;
  const ArrowBlock opened(sliced.names, sliced.block.array, sliced.block.schema);
  for (int i = 0; i < 100; ++i) {
    std::vector<std::future<BlockCopy>> copies;
    {
      CopyAhead ahead;
      for (size_t count = 0; count <= 2; ++count)
        copies.push_back(ahead.start({{&opened, 0, count}}));
      if (i % 2 == 0) CHECK(copies[1].get().num_rows == 1);
    }
    CHECK(copies[2].get().num_rows == 2);
  }
}

void test_missing_values_are_counted_in_the_slice_only() {
  const std::vector<int64_t> user{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<uint8_t> bits{0b11111110, 0b00000001};  // the first and the last are missing
  for (const int64_t length : {8, 9}) {
    TestArray block("", "+s", length, 0, Buffers{nullptr});
    block.with(make("u", "l", length, int64_t{1}, Buffers{bits.data(), user.data()}));
    const BlockNames names{{"u"}, {}, {}};
    const std::string text = refusal([&] { ArrowBlock(names, block.array, block.schema); });
    CHECK(text.empty() == (length == 8));
  }
}

void test_what_does_not_fit_is_refused() {
  const std::vector<int64_t> items{1, 2, 3};
  const std::vector<std::vector<int32_t>> bad{{-1, 2}, {2, 1}, {0, 4}};
  for (const std::vector<int32_t>& offsets : bad) {
    TestArray block("", "+s", 1, 0, Buffers{nullptr});
    auto lists = make("u", "+l", int64_t{1}, int64_t{0}, Buffers{nullptr, offsets.data()});
    lists->with(make("item", "l", int64_t{3}, int64_t{0}, Buffers{nullptr, items.data()}));
    block.with(std::move(lists));
    const BlockNames names{{"u"}, {}, {}};
    CHECK(!refusal([&] { ArrowBlock(names, block.array, block.schema); }).empty());
  }
  TestArray block("", "+s", 4, 0, Buffers{nullptr});  // more rows than the column has
  block.with(make("u", "l", int64_t{3}, int64_t{0}, Buffers{nullptr, items.data()}));
  for (const char* wanted : {"u", "v"}) {
    const BlockNames names{{wanted}, {}, {}};
    CHECK(!refusal([&] { ArrowBlock(names, block.array, block.schema); }).empty());
  }
}

}  // namespace

int main() {
  test_columns_are_copied_from_their_place_on();
  test_copies_ahead_come_in_order_and_outlive_their_thread();
  test_missing_values_are_counted_in_the_slice_only();
  test_what_does_not_fit_is_refused();
}
