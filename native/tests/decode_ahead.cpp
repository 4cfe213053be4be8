// Blocks decoded on another thread equal those of the calling thread; the thread ends with its
// owner, also in the middle of a block. Run under the thread sanitizer.
#include "io/decode_ahead.h"

#include <stdexcept>
#include <vector>

#include "check.h"

using namespace monolith;

namespace {

// Framed Examples without features: 8 bytes of a length of 0 each.
std::vector<uint8_t> empty_records(size_t count) { return std::vector<uint8_t>(count * 8, 0); }

RecordDecoder decoder() {
  return RecordDecoder({{"a", true, 1, false, 0, false, false}}, {RecordType::kExample}, {});
}

void check_blocks() {
  RecordDecoder ours = decoder();
  DecodeAhead ahead(ours);
  for (size_t count = 1; count < 200; ++count) {
    const std::vector<uint8_t> bytes = empty_records(count);
    ahead.start(bytes.data(), bytes.size());
    const RecordBlock block = ahead.wait();
    CHECK(block.num_records == count && block.consumed == bytes.size());
    CHECK(ahead.num_blocks() == count);
  }
}

void check_early_end() {
  const std::vector<uint8_t> bytes = empty_records(10'000);
  for (int i = 0; i < 200; ++i) {
    RecordDecoder ours = decoder();
    DecodeAhead ahead(ours);
    if (i % 2 == 0) ahead.start(bytes.data(), bytes.size());
  }
}

template <class Call>
bool is_refused(Call call) {
  try {
    call();
  } catch (const std::logic_error&) {
    return true;
  }
  return false;
}

void check_misuse() {
  const std::vector<uint8_t> bytes = empty_records(1);
  RecordDecoder ours = decoder();
  DecodeAhead ahead(ours);
  CHECK(is_refused([&] { ahead.wait(); }));
  ahead.start(bytes.data(), bytes.size());
  CHECK(is_refused([&] { ahead.start(bytes.data(), bytes.size()); }));
  CHECK(ahead.wait().num_records == 1);
}

}  // namespace

int main() {
  check_blocks();
  check_early_end();
  check_misuse();
}
