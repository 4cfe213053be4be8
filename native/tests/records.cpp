// The decoder of records on seeded mutations of good ones: rows that add up, or an error; run under
// the address sanitizer it also shows that nothing is read or written beyond its place.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "io/record_decoder.h"

using namespace monolith;

namespace {

using Bytes = std::vector<uint8_t>;

Bytes varint(uint64_t number) {
  Bytes out;
  for (; number > 0x7f; number >>= 7) out.push_back(static_cast<uint8_t>(number | 0x80));
  out.push_back(static_cast<uint8_t>(number));
  return out;
}

Bytes join(std::initializer_list<Bytes> parts) {
  Bytes out;
  for (const Bytes& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

Bytes put(uint32_t field, const Bytes& data) {
  return join({varint(field << 3 | kBytesType), varint(data.size()), data});
}
Bytes put(uint32_t field, const char* text) {
  const std::string_view view(text);
  return put(field, Bytes(view.begin(), view.end()));
}
Bytes put_number(uint32_t field, uint64_t number) {
  return join({varint(field << 3), varint(number)});
}

Bytes words(std::initializer_list<uint64_t> values) {
  Bytes out;
  for (const uint64_t value : values) {
    for (int i = 0; i < 8; ++i) out.push_back(static_cast<uint8_t>(value >> 8 * i));
  }
  return out;
}

Bytes named(const char* name, const Bytes& feature) {
  return put(1, join({put(1, name), put(2, feature)}));
}

Bytes good(RecordType type) {
  const Bytes ids = put(2, put(1, words({7, 8}))), text = put(6, put(1, "text"));
  const Bytes one = put(2, put(1, words({9})));
  const Bytes line = join({put_number(3, 5), put(6, Bytes{1, 2})});
  const Bytes floats = put(3, put(1, Bytes(8, 0)));
  switch (type) {
    case RecordType::kExample:
      return join({named("a", ids), named("s", text), named("o", one), named("d", floats),
                   put(100, line), put(101, Bytes(4, 0))});
    case RecordType::kTfExample:
      return put(1, join({named("a", put(3, put(1, Bytes{1, 0xff, 1}))),
                          named("o", put(3, put(1, Bytes{0xff, 1}))),
                          named("d", put(2, put(1, Bytes(8, 0))))}));
    case RecordType::kInstance:
      return join({put(1, words({uint64_t{1} << 54})), put(3, Bytes(4, 0)), put(5, line),
                   put(9, join({put(1, "a"), put(2, words({1}))})),
                   put(9, join({put(1, "d"), put(5, "UE_QTZ1234")}))});
    default:
      return join(
          {put(1, join({put(1, "a"), put(2, ids), put(2, ids)})),
           put(1, join({put(1, "o"), put(2, one), put(2, one)})),
           put(1, join({put(1, "d"), put(2, floats), put_number(3, 1)})),
           put(1, join({put(1, "__LINE_ID__"), put(2, put(6, put(1, line))), put(2, Bytes())})),
           put_number(3, 2)});
  }
}

std::vector<ColumnSpec> specs() {
  std::vector<ColumnSpec> columns;
  for (const char* name : {"a", "s", "o", "slot_1", "line_id.actions", "data_source_key"}) {
    columns.push_back({name, true, 1, false, 0, false, false});
  }
  columns.push_back({"d", false, 2, true, 0, false, false});
  columns.push_back({"label", false, 1, true, 0, true, false});
  return columns;
}

void mutate(Bytes& bytes, std::mt19937_64& random) {
  for (uint64_t n = random() % 5 + 1; n > 0; --n) {
    const size_t at = random() % (bytes.size() + 1);
    const auto place = bytes.begin() + static_cast<ptrdiff_t>(at);
    const size_t until = std::min(bytes.size(), at + random() % 128);
    const Bytes span(place, bytes.begin() + static_cast<ptrdiff_t>(until));
    switch (random() % 4) {
      case 0:
        if (at < bytes.size()) *place = static_cast<uint8_t>(random());
        break;
      case 1:
        bytes.erase(place, bytes.begin() +
                               static_cast<ptrdiff_t>(std::min(bytes.size(), at + random() % 8)));
        break;
      case 2:
        bytes.insert(place, span.begin(), span.end());
        break;
      default:
        bytes.insert(place, static_cast<uint8_t>(random()));
    }
  }
}

void check_block(const RecordBlock& block) {
  const size_t rows = block.columns.num_rows;
  for (const Column& column : block.columns.columns) {
    if (!column.spec.is_ids) continue;
    const int32_t* splits = column.splits.data();
    CHECK(splits[0] == 0);
    for (size_t row = 0; row < rows; ++row) CHECK(splits[row] <= splits[row + 1]);
    CHECK(static_cast<size_t>(splits[rows]) == column.ids.size());
  }
}

// Whether the last rows of a block are all rows of another.
void check_tail(const RecordBlock& block, const RecordBlock& tail) {
  const size_t rows = tail.columns.num_rows, skipped = block.columns.num_rows - rows;
  for (size_t i = 0; i < tail.columns.columns.size(); ++i) {
    const Column &got = block.columns.columns[i], &expected = tail.columns.columns[i];
    if (!got.spec.is_ids) {
      const size_t width = got.spec.width;
      const float *from = got.floats.data() + skipped * width, *other = expected.floats.data();
      CHECK(std::equal(from, from + rows * width, other));
      continue;
    }
    const int32_t* splits = got.splits.data() + skipped;
    for (size_t row = 0; row <= rows; ++row) {
      CHECK(splits[row] - splits[0] == expected.splits.data()[row]);
    }
    CHECK(
        std::equal(got.ids.data() + splits[0], got.ids.data() + splits[rows], expected.ids.data()));
  }
}

// Memory of exactly this size, so that the sanitizer detects a read beyond it.
struct Exact {
  explicit Exact(const Bytes& bytes) : data(new uint8_t[bytes.size()]), size(bytes.size()) {
    std::copy(bytes.begin(), bytes.end(), data.get());
  }
  std::unique_ptr<uint8_t[]> data;
  size_t size;
};

void check_records(RecordType type) {
  RecordDecoder decoder(specs(), {type, false, false}, {});
  std::mt19937_64 random(static_cast<uint64_t>(type));
  const Bytes unchanged = good(type);
  const int64_t alone[] = {0, static_cast<int64_t>(unchanged.size())};
  const RecordBlock tail = decoder.decode_split(unchanged.data(), alone, 1);
  CHECK(tail.bad.empty() && tail.columns.num_rows > 0);
  size_t num_bad = 0;
  constexpr int kCount = 8'000;
  for (int i = 0; i < kCount; ++i) {
    Bytes bytes = good(type);
    mutate(bytes, random);
    const Exact record(bytes);
    const int64_t splits[] = {0, static_cast<int64_t>(record.size)};
    const RecordBlock block = decoder.decode_split(record.data.get(), splits, 1);
    check_block(block);
    num_bad += !block.bad.empty();
    if (!block.bad.empty()) CHECK(block.bad[0].at <= record.size);
    const Exact both(join({bytes, unchanged}));
    const int64_t parts[] = {0, splits[1], static_cast<int64_t>(both.size)};
    check_tail(decoder.decode_split(both.data.get(), parts, 2), tail);
  }
  CHECK(num_bad > 0 && num_bad < kCount);
}

void check_frames() {
  std::mt19937_64 random(1);
  for (int i = 0; i < 8'000; ++i) {
    FrameOptions options;
    options.is_tfrecord = i % 5 == 4;
    options.checks_crc = i % 10 < 5;
    options.lagrangex_header = i % 5 == 1;
    options.kafka_dump_prefix = options.has_sort_id = i % 5 == 2;
    options.kafka_dump = i % 5 == 3;
    const Bytes record = good(RecordType::kExample);
    Bytes bytes =
        join({words({0, 0}), words({record.size()}), record, words({record.size()}), record});
    mutate(bytes, random);
    const Exact data(bytes);
    RecordDecoder decoder(specs(), {RecordType::kExample, false, false}, options);
    const RecordBlock block = decoder.decode(data.data.get(), data.size);
    check_block(block);
    CHECK(block.consumed <= data.size);
    CHECK(block.needed == 0 || block.needed > data.size - block.consumed);
  }
}

}  // namespace

int main() {
  for (const auto type : {RecordType::kExample, RecordType::kExampleBatch, RecordType::kInstance,
                          RecordType::kTfExample}) {
    check_records(type);
  }
  check_frames();
}
