// Converts arguments and releases the GIL; meaning: arrow_block.h of native/io.
#include "io/arrow_block.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;
using monolith::ArrowBlock;
using monolith::BlockNames;

namespace {

using Names = std::vector<std::string>;

// The capsules of Arrow's PyCapsule interface own schema and array, and release them.
struct OwningBlock {
  OwningBlock(const BlockNames& names, nb::object held_schema, nb::object held_array)
      : schema(std::move(held_schema)),
        array(std::move(held_array)),
        block(names, *at<ArrowArray>(array, "arrow_array"),
              *at<ArrowSchema>(schema, "arrow_schema")) {}

  template <typename T>
  static const T* at(const nb::object& capsule, const char* name) {
    void* found = PyCapsule_GetPointer(capsule.ptr(), name);
    if (found == nullptr) throw nb::python_error();
    return static_cast<const T*>(found);
  }

  nb::object schema, array;
  ArrowBlock block;
};

}  // namespace

void init_arrow_block(nb::module_& module) {
  nb::class_<BlockNames>(module, "BlockNames")
      .def(
          "__init__",
          [](BlockNames* made, Names ids, Names floats, Names times) {
            new (made) BlockNames{std::move(ids), std::move(floats), std::move(times)};
          },
          "ids"_a, "floats"_a, "times"_a);
  nb::class_<OwningBlock>(module, "ArrowBlock")
      .def(nb::init<const BlockNames&, nb::object, nb::object>(), nb::keep_alive<1, 2>(), "names"_a,
           "schema"_a, "array"_a)
      .def_prop_ro("num_rows", [](const OwningBlock& self) { return self.block.num_rows(); })
      .def_prop_ro("num_ids", [](const OwningBlock& self) { return self.block.num_ids(); })
      .def_prop_ro("is_one_each", [](const OwningBlock& self) { return self.block.is_one_each(); })
      .def_prop_ro("widths", [](const OwningBlock& self) { return self.block.widths(); })
      .def(
          "copy",
          [](const OwningBlock& self, uintptr_t ids, uintptr_t splits, uintptr_t floats,
             uintptr_t times) {
            self.block.copy(reinterpret_cast<int64_t*>(ids), reinterpret_cast<int64_t*>(splits),
                            reinterpret_cast<float*>(floats), reinterpret_cast<int64_t*>(times));
          },
          nb::call_guard<nb::gil_scoped_release>(), "ids"_a, "splits"_a, "floats"_a, "times"_a);
}
