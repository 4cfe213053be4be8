// Columns of a record batch made by hand: what is copied, and what is refused. Run under the
// address sanitizer, which sees a read beyond the memory.
#include "io/arrow_block.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"

using namespace monolith;

namespace {

// An array with a schema, and what both point to.
struct Made {
  ArrowArray array{};
  ArrowSchema schema{};
  std::string name, format;
  std::vector<const void*> buffers;
  std::vector<std::unique_ptr<Made>> children;
  std::vector<ArrowArray*> arrays;
  std::vector<ArrowSchema*> schemas;

  Made(std::string own_name, std::string own_format, int64_t length, int64_t offset,
       std::vector<const void*> own_buffers)
      : name(std::move(own_name)), format(std::move(own_format)), buffers(std::move(own_buffers)) {
    array.length = length;
    array.offset = offset;
    array.null_count = -1;
    array.n_buffers = static_cast<int64_t>(buffers.size());
    array.buffers = buffers.data();
    schema.name = name.c_str();
    schema.format = format.c_str();
  }
  Made& with(std::unique_ptr<Made> child) {
    arrays.push_back(&child->array);
    schemas.push_back(&child->schema);
    children.push_back(std::move(child));
    array.n_children = schema.n_children = static_cast<int64_t>(arrays.size());
    array.children = arrays.data();
    schema.children = schemas.data();
    return *this;
  }
};

template <class... Arguments>
std::unique_ptr<Made> make(Arguments... arguments) {
  return std::make_unique<Made>(arguments...);
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

using Buffers = std::vector<const void*>;

void test_columns_are_copied_from_their_place_on() {
  // Rows 1 to 2 of each; the memory ends right behind them.
  const std::vector<int64_t> user{9, 7, 8}, items{9, 9, 1, 2, 3};
  const std::vector<int32_t> offsets{0, 1, 1, 4};  // items begin one later
  const std::vector<float> vectors{9, 9, .5f, 1.5f, 2.5f, 3.5f};
  Made block("", "+s", 2, 0, Buffers{nullptr});
  block.with(make("user", "l", int64_t{2}, int64_t{1}, Buffers{nullptr, user.data()}));
  auto lists = make("items", "+l", int64_t{2}, int64_t{1}, Buffers{nullptr, offsets.data()});
  lists->with(make("item", "l", int64_t{4}, int64_t{1}, Buffers{nullptr, items.data()}));
  block.with(std::move(lists));
  auto rows = make("vector", "+w:2", int64_t{2}, int64_t{1}, Buffers{nullptr});
  rows->with(make("item", "f", int64_t{6}, int64_t{0}, Buffers{nullptr, vectors.data()}));
  block.with(std::move(rows));
  const BlockNames names{{"items", "user"}, {"vector"}, {"user"}};
  const ArrowBlock opened(names, block.array, block.schema);
  CHECK(opened.num_rows() == 2 && opened.num_ids() == 5 && !opened.is_one_each());
  CHECK(opened.widths() == std::vector<size_t>{2});
  std::vector<int64_t> ids(5), splits(6), times(2);
  std::vector<float> floats(4);
  opened.copy(ids.data(), splits.data(), floats.data(), times.data());
  CHECK((ids == std::vector<int64_t>{1, 2, 3, 7, 8}));
  CHECK((splits == std::vector<int64_t>{0, 0, 3, 0, 1, 2}));
  CHECK((floats == std::vector<float>{.5f, 1.5f, 2.5f, 3.5f}));
  CHECK((times == std::vector<int64_t>{7, 8}));
}

void test_missing_values_are_counted_in_the_slice_only() {
  const std::vector<int64_t> user{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<uint8_t> bits{0b11111110, 0b00000001};  // the first and the last are missing
  for (const int64_t length : {8, 9}) {
    Made block("", "+s", length, 0, Buffers{nullptr});
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
    Made block("", "+s", 1, 0, Buffers{nullptr});
    auto lists = make("u", "+l", int64_t{1}, int64_t{0}, Buffers{nullptr, offsets.data()});
    lists->with(make("item", "l", int64_t{3}, int64_t{0}, Buffers{nullptr, items.data()}));
    block.with(std::move(lists));
    const BlockNames names{{"u"}, {}, {}};
    CHECK(!refusal([&] { ArrowBlock(names, block.array, block.schema); }).empty());
  }
  Made block("", "+s", 4, 0, Buffers{nullptr});  // more rows than the column has
  block.with(make("u", "l", int64_t{3}, int64_t{0}, Buffers{nullptr, items.data()}));
  for (const char* wanted : {"u", "v"}) {
    const BlockNames names{{wanted}, {}, {}};
    CHECK(!refusal([&] { ArrowBlock(names, block.array, block.schema); }).empty());
  }
}

}  // namespace

int main() {
  test_columns_are_copied_from_their_place_on();
  test_missing_values_are_counted_in_the_slice_only();
  test_what_does_not_fit_is_refused();
}
