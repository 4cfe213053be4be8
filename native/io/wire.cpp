#include "io/wire.h"

namespace monolith {

namespace {

constexpr int kMaxVarint = 10;  // bytes of 64 bits, 7 each
constexpr int kMaxGroups = 100;
constexpr uint32_t kGroupBegin = 3, kGroupEnd = 4;

}  // namespace

bool Wire::long_varint(uint64_t& value) noexcept {
  const uint8_t* p = at;
  uint64_t sum = 0;
  const size_t limit = left() < kMaxVarint ? left() : kMaxVarint;
  for (size_t i = 0; i < limit; ++i) {
    const uint64_t byte = p[i];
    sum |= (byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      at = p + i + 1;
      value = sum;
      return true;
    }
  }
  return fail(limit == kMaxVarint ? Fault::kVarint : Fault::kTruncated);
}

bool Wire::skip_other(uint32_t tag, int depth) noexcept {
  uint64_t number;
  uint32_t word;
  Wire inside;
  switch (tag & 7) {
    case kVarintType:
      return varint(number);
    case kFixed64Type:
      return fixed(number);
    case kBytesType:
      return bytes(inside);
    case kFixed32Type:
      return fixed(word);
    case kGroupBegin:
      break;
    default:
      return fail(Fault::kWireType);
  }
  if (depth == kMaxGroups) return fail(Fault::kGroup);
  while (!is_done()) {
    uint32_t next;
    if (!this->tag(next)) return false;
    if ((next & 7) == kGroupEnd) return next >> 3 == tag >> 3 || fail(Fault::kGroup);
    if (!skip_other(next, depth + 1)) return false;
  }
  return fail(Fault::kGroup);
}

}  // namespace monolith
