// Reads the addresses of plain tensors in one call: a loop in Python takes longer than a copy of
// small tensors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Attributes and methods of torch's tensors, asked for by name: torch is not linked here.
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
  Buffers buffers;
  buffers.first.reserve(nb::len(tensors));
  buffers.second.reserve(nb::len(tensors));
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
    buffers.first.push_back(nb::cast<uintptr_t>(tensor.attr(names.data_ptr)()));
    buffers.second.push_back(bytes);
  }
  return buffers;
}

}  // namespace

void init_plain_buffers(nb::module_& module) {
  module.def(
      "plain_buffers",
      [names = Names()](const Tensors& tensors, const Types& types, nb::handle strided,
                        bool with_grad) {
        return plain_buffers(names, tensors, types, strided, with_grad);
      },
      "tensors"_a, "types"_a, "strided"_a, "with_grad"_a);
}
