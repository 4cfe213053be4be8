#include "io/string_hash.h"

#include <bit>
#include <cstring>

namespace monolith {
namespace {

// The five primes in the definition of the hash.
constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu,
                   kPrime3 = 0x165667B19E3779F9u, kPrime4 = 0x85EBCA77C2B2AE63u,
                   kPrime5 = 0x27D4EB2F165667C5u;

// Little-endian, as the definition reads its input.
template <typename Word>
uint64_t read(const uint8_t* at) noexcept {
  Word word = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&word, at, sizeof(word));
  } else {
    for (size_t i = sizeof(word); i-- > 0;) word = static_cast<Word>(word << 8 | at[i]);
  }
  return word;
}

uint64_t round(uint64_t lane, uint64_t word) noexcept {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

uint64_t join(uint64_t hash, uint64_t lane) noexcept {
  return (hash ^ round(0, lane)) * kPrime1 + kPrime4;
}

}  // namespace

uint64_t xxh64(const void* data, size_t n, uint64_t seed) noexcept {
  const auto* at = static_cast<const uint8_t*>(data);
  const uint8_t* const end = at + n;
  uint64_t hash = seed + kPrime5;
  if (n >= 32) {
    uint64_t lanes[4] = {seed + kPrime1 + kPrime2, seed + kPrime2, seed, seed - kPrime1};
    for (; end - at >= 32; at += 32) {
      for (int i = 0; i < 4; ++i) lanes[i] = round(lanes[i], read<uint64_t>(at + 8 * i));
    }
    hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
           std::rotl(lanes[3], 18);
    for (const uint64_t lane : lanes) hash = join(hash, lane);
  }
  hash += n;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ read<uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) hash = std::rotl(hash ^ *at * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

void hash_strings(const uint8_t* bytes, const int64_t* splits, size_t n, uint64_t seed,
                  int64_t* out) noexcept {
  for (size_t i = 0; i < n; ++i) {
    const auto length = static_cast<size_t>(splits[i + 1] - splits[i]);
    out[i] = static_cast<int64_t>(xxh64(bytes + splits[i], length, seed));
  }
}

}  // namespace monolith
