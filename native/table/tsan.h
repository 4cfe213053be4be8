// Defines fences and row copies of the optimistic reader in a form that the thread sanitizer
// supports.
//
// A reader copies a row that a writer may be changing, and discards the copy if the version of the
// line changed. In C++ that is a data race unless every access is atomic, and the sanitizer does
// not support fences. So the sanitizer build copies word by word with relaxed atomics, and writes
// rows through a scratch copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__SANITIZE_THREAD__)
#define MONOLITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MONOLITH_TSAN 1
#endif
#endif
#ifndef MONOLITH_TSAN
#define MONOLITH_TSAN 0
#endif

namespace monolith {

inline void fence_acquire() noexcept {
#if !MONOLITH_TSAN
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}

inline void fence_release() noexcept {
#if !MONOLITH_TSAN
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

// Copies 64 bytes as four vectors; the compiler would use eight words.
inline void copy_line(char* to, const char* from) noexcept {
  using Words = uint32_t __attribute__((vector_size(16)));
  Words a, b, c, d;
  std::memcpy(&a, from, 16);
  std::memcpy(&b, from + 16, 16);
  std::memcpy(&c, from + 32, 16);
  std::memcpy(&d, from + 48, 16);
  std::memcpy(to, &a, 16);
  std::memcpy(to + 16, &b, 16);
  std::memcpy(to + 32, &c, 16);
  std::memcpy(to + 48, &d, 16);
}

// Copies `bytes` bytes, a multiple of 4, that a writer may be changing. Both pointers are 4-byte
// aligned.
inline void racy_load(void* to, const void* from, size_t bytes) noexcept {
#if MONOLITH_TSAN
  auto* out = static_cast<uint32_t*>(to);
  auto* in = static_cast<const uint32_t*>(from);
  for (size_t i = 0; i < bytes / 4; ++i) out[i] = __atomic_load_n(in + i, __ATOMIC_RELAXED);
#else
  auto* out = static_cast<char*>(to);
  auto* in = static_cast<const char*>(from);
  for (; bytes >= 64; bytes -= 64, out += 64, in += 64) copy_line(out, in);
  for (; bytes >= 16; bytes -= 16, out += 16, in += 16) std::memcpy(out, in, 16);
  for (; bytes >= 4; bytes -= 4, out += 4, in += 4) std::memcpy(out, in, 4);
#endif
}

// Copies a multiple of 64 bytes past the caches where the processor can, so that lines that are
// fully overwritten are not fetched. `to` is aligned to a line. Call fence_streamed() before other
// threads read the copy.
inline void racy_stream(void* to, const void* from, size_t bytes) noexcept {
#if defined(__SSE2__) && !MONOLITH_TSAN
  auto* out = static_cast<__m128i*>(to);
  auto* in = static_cast<const __m128i*>(from);
  for (; bytes > 0; bytes -= 64, out += 4, in += 4) {
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                  d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
#else
  racy_load(to, from, bytes);
#endif
}

inline void fence_streamed() noexcept {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Writes `bytes` bytes, a multiple of 4, that readers may be copying.
inline void racy_store(void* to, const void* from, size_t bytes) noexcept {
#if MONOLITH_TSAN
  auto* out = static_cast<uint32_t*>(to);
  auto* in = static_cast<const uint32_t*>(from);
  for (size_t i = 0; i < bytes / 4; ++i) __atomic_store_n(out + i, in[i], __ATOMIC_RELAXED);
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace monolith
