// What Python does beside a call of the core.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>

// given: a callable that the caller holds, or None. For a call without the GIL; throws what it
// raises.
inline std::function<void()> with_gil(nanobind::handle given) {
  if (given.is_none()) return {};
  return [given] {
    const nanobind::gil_scoped_acquire gil;
    given();
  };
}
