// Converts arguments and releases the GIL; meaning: the headers of native/io.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>

#include <cerrno>
#include <utility>

#include "io/crc32c.h"
#include "io/file.h"
#include "io/string_hash.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

void raise_os_error(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const monolith::FileError& told) {
    errno = told.code().value();
    PyErr_SetFromErrno(PyExc_OSError);
  }
}

}  // namespace

void init_io(nb::module_& module) {
  nb::register_exception_translator(raise_os_error);
  module.def(
      "crc32c",
      [](uintptr_t data, size_t n, uint32_t before) {
        return monolith::crc32c(reinterpret_cast<const void*>(data), n, before);
      },
      nb::call_guard<nb::gil_scoped_release>(), "data"_a, "n"_a, "before"_a);
  nb::class_<monolith::Blocks>(module, "Blocks").def(nb::init<>());
  nb::class_<monolith::FileWriter>(module, "FileWriter")
      .def(nb::init<int, monolith::Blocks&>(), "file"_a, "blocks"_a, nb::keep_alive<1, 3>())
      .def(
          "write",
          [](monolith::FileWriter& self, uintptr_t data, size_t n) {
            self.write(reinterpret_cast<const char*>(data), n);
          },
          nb::call_guard<nb::gil_scoped_release>(), "data"_a, "n"_a)
      .def_prop_ro("crc32c", &monolith::FileWriter::crc32c)
      .def("finish", &monolith::FileWriter::finish, nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "read_file",
      [](int file, uintptr_t memory, size_t n, bool is_read_again) {
        const auto read =
            monolith::read_file(file, reinterpret_cast<char*>(memory), n, is_read_again);
        return std::pair(read.num_bytes, read.crc32c);
      },
      nb::call_guard<nb::gil_scoped_release>(), "file"_a, "memory"_a, "n"_a, "is_read_again"_a);
  module.def(
      "hash_strings",
      [](uintptr_t bytes, uintptr_t splits, size_t n, uint64_t seed, uintptr_t out) {
        monolith::hash_strings(reinterpret_cast<const uint8_t*>(bytes),
                               reinterpret_cast<const int64_t*>(splits), n, seed,
                               reinterpret_cast<int64_t*>(out));
      },
      nb::call_guard<nb::gil_scoped_release>(), "data"_a, "splits"_a, "n"_a, "seed"_a, "out"_a);
}
