// The decoder of dumps on good rows, on each fault, and on seeded mutations: rows that add up, or
// an error at a record; under the address sanitizer it also shows that nothing is read or written
// beyond its place.
#include "io/dump_decoder.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "check.h"
#include "io/frames.h"

using namespace monolith;

namespace {

using Bytes = std::vector<uint8_t>;
using Segments = std::vector<DumpSegment>;

Bytes varint(uint64_t number) {
  Bytes out;
  for (; number > 0x7f; number >>= 7) out.push_back(static_cast<uint8_t>(number | 0x80));
  out.push_back(static_cast<uint8_t>(number));
  return out;
}

template <class T>
Bytes plain(T value) {
  Bytes out(sizeof value);
  std::memcpy(out.data(), &value, sizeof value);
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
Bytes put_number(uint32_t field, uint64_t number) {
  return join({varint(field << 3), varint(number)});
}
Bytes put_floats(uint32_t field, std::initializer_list<float> values) {
  Bytes out;
  for (const float value : values) {
    out = join({out, varint(field << 3 | kFixed32Type), plain(value)});
  }
  return out;
}
Bytes put_id(int64_t id) { return join({varint(1 << 3 | kFixed64Type), plain(id)}); }

Bytes framed(const Bytes& record) {
  const Bytes size = plain(uint64_t{record.size()});
  return join({size, plain(masked_crc32c(size.data(), size.size())), record,
               plain(masked_crc32c(record.data(), record.size()))});
}

// Adagrad of 2 weights and FTRL of 1 weight, then SGD of 1 weight and batch softmax of 1.
Segments segments() {
  return {{2, 1, {{2}}}, {1, 3, {{1}, {1}}}, {1, 2, {}}, {1, 14, {{1, true}}}, {1, 0, {}}};
}

Bytes weights() { return put_floats(2, {1, 2, 3, 4, 5, 6}); }
Bytes adagrad(std::initializer_list<float> norm) { return put(1, put(1, put_floats(1, norm))); }
Bytes ftrl() { return put(1, put(3, join({put_floats(1, {8}), put_floats(2, {9})}))); }
Bytes sgd() { return put(1, put(2, {})); }
Bytes softmax() { return put(1, put(14, put_number(1, 70))); }
Bytes opt() { return put(3, join({adagrad({6, 7}), ftrl(), sgd(), softmax()})); }
Bytes row(int64_t id) { return join({put_id(id), weights(), opt(), put_number(4, 100)}); }

// Decodes with arrays of exactly the size that is promised.
struct Decoded {
  DumpBlock block;
  std::vector<int64_t> keys, times, steps;
  std::vector<std::vector<float>> floats;
};

Decoded decode(const Bytes& data, DumpOptions options = {}, size_t most = 4) {
  const DumpDecoder decoder(segments(), options);
  Decoded out{
      {}, std::vector<int64_t>(most), std::vector<int64_t>(most), std::vector<int64_t>(most), {}};
  for (const size_t size : {2, 1, 1, 1, 1, 2, 1, 1}) out.floats.emplace_back(size * most);
  std::vector<void*> columns;
  for (auto& column : out.floats) columns.push_back(column.data());
  columns.push_back(out.steps.data());
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[data.size()]);
  std::copy(data.begin(), data.end(), exact.get());
  out.block = decoder.decode(exact.get(), data.size(), most, out.keys.data(), out.times.data(),
                             columns.data());
  return out;
}

DumpError error_of(const Bytes& record, DumpOptions options = {}) {
  return decode(framed(record), options).block.error;
}

void check_fault(const Bytes& record, DumpFault fault, int64_t expected = 0, int64_t got = 0) {
  const DumpError error = error_of(record);
  CHECK(error.fault == fault);
  CHECK(error.expected == expected);
  CHECK(error.got == got);
}

void check_good_rows() {
  const Bytes data = join({framed(row(-7)), framed(row(8)), framed(row(9))});
  const Decoded out = decode(data, {}, 2);
  CHECK(out.block.num_rows == 2 && out.block.num_records == 2);
  CHECK(out.block.consumed == data.size() / 3 * 2 && out.block.needed == 0);
  CHECK(out.keys == (std::vector<int64_t>{-7, 8}));
  CHECK(out.times == (std::vector<int64_t>{100, 100}));
  CHECK(out.floats[0] == (std::vector<float>{1, 2, 1, 2}));
  CHECK(out.floats[4] == (std::vector<float>{6, 6}));
  CHECK(out.floats[5] == (std::vector<float>{6, 7, 6, 7}));
  CHECK(out.floats[6] == (std::vector<float>{8, 8}));
  CHECK(out.floats[7] == (std::vector<float>{9, 9}));
  CHECK(out.steps == (std::vector<int64_t>{70, 70}));
}

void check_other_forms() {
  // Fields in another order, numbers in several runs, unknown fields, no time.
  const Bytes parts = join({put(3, adagrad({6, 7})), put_floats(2, {1}), put_number(9, 1),
                            put(3, join({ftrl(), sgd(), put_number(7, 1), softmax()})),
                            put_floats(2, {2, 3, 4, 5, 6}), put_id(5)});
  const Decoded out = decode(framed(parts));
  CHECK(out.block.num_rows == 1 && out.keys[0] == 5 && out.times[0] == 0);
  CHECK(out.floats[3][0] == 5 && out.floats[6][0] == 8 && out.steps[0] == 70);
  DumpOptions weights_only;
  weights_only.with_state = false;
  CHECK(decode(framed(join({put_id(1), weights()})), weights_only).block.num_rows == 1);
  DumpOptions any;
  any.has_segments = false;
  CHECK(decode(framed(join({put_id(1), put_floats(2, {1, 2})})), any).block.num_rows == 1);
  CHECK(decode({}).block.needed == 12);
  CHECK(decode(framed(row(1)), {}, 0).block.consumed == 0);
}

void check_faults() {
  const Bytes id = put_id(1);
  check_fault(weights(), DumpFault::kId);
  check_fault(join({id, put_floats(2, {1, 2, 3}), opt()}), DumpFault::kDim, 6, 3);
  check_fault(join({id, weights(), put_floats(2, {7}), opt()}), DumpFault::kDim, 6, 7);
  check_fault(join({id, weights()}), DumpFault::kElements, 4, 0);
  check_fault(
      join({id, weights(), put(3, join({adagrad({6, 7}), ftrl(), sgd(), softmax(), sgd()}))}),
      DumpFault::kElements, 4, 5);
  check_fault(join({id, weights(), put(3, ftrl())}), DumpFault::kKind, 1, 3);
  check_fault(join({id, weights(), put(3, put(1, {}))}), DumpFault::kKind, 1, 0);
  check_fault(join({id, weights(), put(3, adagrad({6}))}), DumpFault::kState, 2, 1);
  check_fault(join({id, weights(), put(3, adagrad({6, 7, 8}))}), DumpFault::kState, 2, 3);
  check_fault(join({row(1), put_number(4, uint64_t{1} << 32)}), DumpFault::kTime, UINT32_MAX,
              int64_t{1} << 32);
  check_fault(join({row(1), put_number(4, ~uint64_t{0})}), DumpFault::kTime, UINT32_MAX, -1);
  check_fault(join({id, put(2, plain(1.0f))}), DumpFault::kWireType);
  check_fault(join({id, weights(), put(3, put(1, put(1, put_number(1, 1))))}),
              DumpFault::kWireType);
  check_fault(join({id, weights(), put(3, put_number(1, 1))}), DumpFault::kWireType);
  check_fault(join({id, Bytes{0x15, 1}}), DumpFault::kMessage);
  const DumpError second = error_of(
      join({id, weights(), put(3, join({adagrad({6, 7}), put(1, put(3, put_floats(2, {9})))}))}));
  CHECK(second.fault == DumpFault::kState && second.segment == 1 && second.field == 0);
  CHECK(name_of(second.fault) == std::string_view("state"));
}

void check_frames() {
  Bytes data = join({framed(row(1)), framed(row(2))});
  const size_t size = data.size() / 2;
  data[size + 20] ^= 1;
  const DumpBlock block = decode(data).block;
  CHECK(block.error.fault == DumpFault::kChecksum && block.error.at == size);
  CHECK(block.num_rows == 1 && block.consumed == size);
  data[size + 9] ^= 1;
  CHECK(decode(data).block.error.fault == DumpFault::kLengthChecksum);
  const Bytes huge = plain(uint64_t{1} << 60);
  const DumpError error =
      decode(join({huge, plain(masked_crc32c(huge.data(), 8)), Bytes(4)})).block.error;
  CHECK(error.fault == DumpFault::kRecordLength && error.got == int64_t{1} << 60);
}

void check_non_finite() {
  const Bytes bad = join({put_id(3), put_floats(2, {1, NAN, 3, 4, 5, 6}), opt()});
  CHECK(error_of(bad).fault == DumpFault::kNonFinite && error_of(bad).got == 3);
  DumpOptions skips;
  skips.skips_non_finite = true;
  const Decoded out = decode(join({framed(bad), framed(row(4))}), skips);
  CHECK(out.block.num_records == 2 && out.block.num_rows == 1);
  CHECK(out.block.num_non_finite == 1 && out.keys[0] == 4 && out.floats[0][1] == 2);
}

void check_mutations(uint32_t seed) {
  std::mt19937 random(seed);
  const Bytes record = row(5);
  Bytes changed = record;
  const auto place = [&](size_t n) { return random() % n; };
  for (size_t i = 1 + place(4); i > 0 && !changed.empty(); --i) {
    const size_t at = place(changed.size());
    switch (place(4)) {
      case 0:
        changed[at] = static_cast<uint8_t>(random());
        break;
      case 1:
        changed[at] ^= static_cast<uint8_t>(1 << place(8));
        break;
      case 2:
        changed.erase(changed.begin() + at, changed.begin() + at + place(changed.size() - at) + 1);
        break;
      default:
        changed.insert(changed.begin() + at, record.begin() + place(record.size()), record.end());
    }
  }
  // Half of the mutations have the right checksums, so that the message is parsed.
  Bytes data = join({framed(row(1)), framed(changed), framed(row(2))});
  if (seed % 2) data[place(data.size())] ^= static_cast<uint8_t>(1 << place(8));
  for (const bool with_state : {true, false}) {
    DumpOptions options;
    options.with_state = with_state;
    options.has_segments = with_state || seed % 3;
    const DumpBlock block = decode(data, options).block;
    CHECK(block.consumed <= data.size());
    CHECK(block.num_rows + block.num_non_finite == block.num_records);
    if (block.error.fault != DumpFault::kNone)
      CHECK(block.error.at == block.consumed);
    else
      CHECK(block.needed > 0 || block.num_records == 4);
  }
}

}  // namespace

int main() {
  check_good_rows();
  check_other_forms();
  check_faults();
  check_frames();
  check_non_finite();
  for (uint32_t seed = 0; seed < 5'000; ++seed) check_mutations(seed);
}
