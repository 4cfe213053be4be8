// Converts arguments and releases the GIL; meaning: arrow_block.h and block_copy.h of native/io.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <future>
#include <new>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "io/arrow_block.h"
#include "io/block_copy.h"

namespace nb = nanobind;
using namespace nb::literals;
using monolith::ArrowBlock;
using monolith::BlockCopy;
using monolith::BlockNames;
using monolith::BlockRows;
using monolith::CopyAhead;

namespace {

using Names = std::vector<std::string>;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

// The capsules of Arrow's PyCapsule interface own schema and array, and release them.
struct OwningBlock {
  OwningBlock(const BlockNames& names, nb::object held_schema, nb::object held_array)
      : schema(std::move(held_schema)),
        array(std::move(held_array)),
        block(names, *at<ArrowArray>(array, "arrow_array"),
              *at<ArrowSchema>(schema, "arrow_schema")) {}

  template <typename T>
  static const T* at(const nb::object& capsule, const char* name) {
    void* pointer = PyCapsule_GetPointer(capsule.ptr(), name);
    if (pointer == nullptr) throw nb::python_error();
    return static_cast<const T*>(pointer);
  }

  nb::object schema, array;
  ArrowBlock block;
};

// A block, its first row and the number of rows.
using PartTuple = std::tuple<nb::object, size_t, size_t>;

// Owns a copy, which may be in progress. Keeps the blocks alive until the copy is ready; the
// destructor waits for the copy.
class HeldCopy {
 public:
  HeldCopy(std::vector<PartTuple> parts, CopyAhead* ahead) : parts_(std::move(parts)) {
    std::vector<BlockRows> rows;
    for (const auto& [block, first, count] : parts_) {
      rows.push_back({&nb::cast<const OwningBlock&>(block).block, first, count});
    }
    if (ahead != nullptr) {
      future_ = ahead->start(std::move(rows));
    } else {
      const nb::gil_scoped_release release;
      copy_ = monolith::copy_rows(rows);
    }
  }
  ~HeldCopy() {
    if (future_.valid()) future_.wait();  // the thread never waits for the GIL
  }
  HeldCopy(const HeldCopy&) = delete;
  HeldCopy& operator=(const HeldCopy&) = delete;

  const BlockCopy& get() {
    if (future_.valid()) {
      const nb::gil_scoped_release release;
      copy_ = future_.get();
    }
    parts_.clear();
    return copy_;
  }

 private:
  std::vector<PartTuple> parts_;
  std::future<BlockCopy> future_;
  BlockCopy copy_;
};

template <typename T>
nb::ndarray<nb::pytorch, T, nb::ndim<1>> tensor_of(const monolith::Lines<T>& memory,
                                                   nb::handle owner) {
  return nb::ndarray<nb::pytorch, T, nb::ndim<1>>(memory.data(), {memory.size()}, owner);
}

using Tensors = nb::typed<nb::tuple, nb::object, nb::object, nb::object, nb::object>;

Tensors tensors_of(nb::handle_t<HeldCopy> self) {
  const BlockCopy& copy = nb::cast<HeldCopy&>(self).get();
  return Tensors(nb::make_tuple(tensor_of(copy.ids, self), tensor_of(copy.splits, self),
                                tensor_of(copy.floats, self), tensor_of(copy.times, self)));
}

}  // namespace

void init_blocks(nb::module_& module) {
  nb::class_<BlockNames>(module, "BlockNames")
      .def(
          "__init__",
          [](BlockNames* block_names, Names ids, Names floats, Names times) {
            new (block_names) BlockNames{std::move(ids), std::move(floats), std::move(times)};
          },
          "ids"_a, "floats"_a, "times"_a);
  nb::class_<OwningBlock>(module, "ArrowBlock")
      .def(nb::init<const BlockNames&, nb::object, nb::object>(), "names"_a, "schema"_a, "array"_a);
  nb::class_<CopyAhead>(module, "CopyAhead").def(nb::init<>());
  nb::class_<HeldCopy>(module, "BlockCopy")
      .def(nb::init<std::vector<PartTuple>, CopyAhead*>(), nb::keep_alive<1, 3>(), "parts"_a,
           "ahead"_a.none())
      .def_prop_ro("num_rows", [](HeldCopy& self) { return self.get().num_rows; })
      .def_prop_ro("widths", [](HeldCopy& self) { return self.get().widths; })
      .def_prop_ro("is_one_each", [](HeldCopy& self) { return self.get().is_one_each; })
      .def("tensors", &tensors_of);
}
