// Copies short rows and columns.
#pragma once

#include <cstddef>
#include <cstring>

namespace monolith {

// Copies a row inline: for short rows a call of memcpy would take longer than the copy.
inline void copy_short(void* to, const void* from, size_t bytes) noexcept {
  constexpr size_t kLong = 512, kStep = 32, kWord = 4;
  if (bytes >= kLong) {
    std::memcpy(to, from, bytes);
    return;
  }
  auto* out = static_cast<char*>(to);
  auto* in = static_cast<const char*>(from);
  for (; bytes >= kStep; bytes -= kStep, out += kStep, in += kStep) std::memcpy(out, in, kStep);
  for (; bytes >= kWord; bytes -= kWord, out += kWord, in += kWord) std::memcpy(out, in, kWord);
  for (; bytes > 0; --bytes) *out++ = *in++;
}

}  // namespace monolith
