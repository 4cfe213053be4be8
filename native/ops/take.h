// Allocates arrays that are freed together.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <type_traits>

namespace monolith {

// Allocates `n` uninitialised values. `alignment` is in bytes.
template <typename T>
T* take(std::pmr::monotonic_buffer_resource& memory, size_t n, size_t alignment = alignof(T)) {
  static_assert(std::is_trivially_destructible_v<T>);
  return static_cast<T*>(memory.allocate(n * sizeof(T), alignment));
}

}  // namespace monolith
