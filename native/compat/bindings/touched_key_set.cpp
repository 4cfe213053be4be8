// Converts arguments and releases the GIL; meaning: native_training/tables/touched_key_set.py.
#include "compat/touched_key_set.h"

#include <nanobind/nanobind.h>

namespace nb = nanobind;
using namespace nb::literals;
using monolith::TouchedKeySet;

void init_touched_key_set(nb::module_& module) {
  nb::class_<TouchedKeySet>(module, "TouchedKeySet", nb::is_weak_referenceable())
      .def(nb::init<uint64_t, uint64_t>(), "capacity"_a, "concurrency_level"_a)
      .def_prop_ro("capacity", &TouchedKeySet::capacity)
      .def_prop_ro("num_buckets", &TouchedKeySet::num_buckets)
      .def_prop_ro("num_locks", &TouchedKeySet::num_locks)
      .def("__len__", &TouchedKeySet::size);
  module.def(
      "monolith_touched_key_set_insert",
      [](TouchedKeySet& set, uintptr_t keys, size_t n) {
        return set.insert(reinterpret_cast<const int64_t*>(keys), n);
      },
      nb::call_guard<nb::gil_scoped_release>(), "touched_key_set"_a, "ids"_a, "n"_a);
  module.def(
      "monolith_touched_key_set_steal",
      [](TouchedKeySet& set) {
        std::vector<int64_t> keys;
        {
          const nb::gil_scoped_release release;
          keys = set.steal();
        }
        return nb::bytes(keys.data(), keys.size() * sizeof(int64_t));
      },
      "touched_key_set"_a);
}
