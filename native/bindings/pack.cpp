// Converts arguments and releases the GIL; meaning: native/ops/pack.h.
#include "ops/pack.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Attributes and methods of torch's tensors, asked for by name: torch is not linked here. A loop in
// Python over them takes longer than the copy itself.
struct Names {
  nb::object dtype = nb::str("dtype"), layout = nb::str("layout"), is_cpu = nb::str("is_cpu"),
             is_nested = nb::str("is_nested"), requires_grad = nb::str("requires_grad"),
             is_contiguous = nb::str("is_contiguous"), is_neg = nb::str("is_neg"),
             nbytes = nb::str("nbytes"), data_ptr = nb::str("data_ptr");
};

bool has(nb::handle tensor, nb::handle name, nb::handle value) {
  return nb::getattr(tensor, name).is(value);
}

bool answers(nb::handle tensor, nb::handle method, nb::handle value) {
  return nb::object(tensor.attr(method)()).is(value);
}

// Whether the bytes of the tensor, in order, are its elements.
bool is_plain(const Names& names, nb::handle tensor, nb::handle strided, bool with_grad) {
  const nb::handle yes(Py_True), no(Py_False);
  return has(tensor, names.layout, strided) && has(tensor, names.is_cpu, yes) &&
         has(tensor, names.is_nested, no) && (with_grad || has(tensor, names.requires_grad, no)) &&
         answers(tensor, names.is_contiguous, yes);
}

using Tensors = nb::typed<nb::list, nb::object>;
using Types = nb::typed<nb::tuple, nb::object, nb::ellipsis>;
using Buffers = std::pair<std::vector<uintptr_t>, std::vector<size_t>>;  // addresses, bytes

Buffers plain_buffers(const Names& names, nb::list tensors, nb::tuple types, nb::handle strided,
                      bool with_grad) {
  constexpr size_t kMaxItem = 16;  // bytes of an element
  Buffers found;
  found.first.reserve(nb::len(tensors));
  found.second.reserve(nb::len(tensors));
  const std::vector<nb::handle> known(types.begin(), types.end());
  nb::object dtype;
  for (nb::handle tensor : tensors) {
    const auto is_type = [tensor](nb::handle type) { return tensor.type().is(type); };
    if (std::none_of(known.begin(), known.end(), is_type)) return {};
    if (!dtype.is_valid()) dtype = nb::getattr(tensor, names.dtype);
    if (!has(tensor, names.dtype, dtype)) return {};
    if (!is_plain(names, tensor, strided, with_grad)) return {};
    const auto bytes = nb::cast<size_t>(nb::getattr(tensor, names.nbytes));
    // Torch negates the imaginary part of a conjugate when it is read; such a view has gaps unless
    // it is one element.
    if (bytes <= kMaxItem && answers(tensor, names.is_neg, nb::handle(Py_True))) return {};
    found.first.push_back(nb::cast<uintptr_t>(tensor.attr(names.data_ptr)()));
    found.second.push_back(bytes);
  }
  return found;
}

}  // namespace

void init_pack(nb::module_& module) {
  module.def(
      "plain_buffers",
      [names = Names()](const Tensors& tensors, const Types& types, nb::handle strided,
                        bool with_grad) {
        return plain_buffers(names, tensors, types, strided, with_grad);
      },
      "tensors"_a, "types"_a, "strided"_a, "with_grad"_a);
  module.def(
      "pack_buffers",
      [](const std::vector<uintptr_t>& buffers, const std::vector<size_t>& sizes, uintptr_t out) {
        monolith::pack_buffers(buffers, sizes, reinterpret_cast<char*>(out));
      },
      nb::call_guard<nb::gil_scoped_release>(), "buffers"_a, "sizes"_a, "out"_a);
  module.def(
      "fused_value_rowids",
      [](uintptr_t splits, size_t num_splits, uintptr_t out, size_t num_values) {
        monolith::value_rowids(reinterpret_cast<const int64_t*>(splits), num_splits,
                               reinterpret_cast<int64_t*>(out), num_values);
      },
      nb::call_guard<nb::gil_scoped_release>(), "row_splits"_a, "num_splits"_a, "out"_a,
      "num_values"_a);
}
