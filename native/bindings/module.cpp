// The Python module `monolith._native`: one init function for each file of bindings.
#include <nanobind/nanobind.h>

#include "table/team.h"

void init_blocks(nanobind::module_& module);
void init_codec(nanobind::module_& module);
void init_dense(nanobind::module_& module);
void init_dumps(nanobind::module_& module);
void init_exchange(nanobind::module_& module);
void init_features(nanobind::module_& module);
void init_group(nanobind::module_& module);
void init_io(nanobind::module_& module);
void init_plain_buffers(nanobind::module_& module);
void init_records(nanobind::module_& module);
void init_table(nanobind::module_& module);

// For the Python package `native_training` alone: native/compat/.
void init_layout(nanobind::module_& module);
void init_pack(nanobind::module_& module);
void init_touched_key_set(nanobind::module_& module);

NB_MODULE(_native, module) {
  monolith::Team::watch_forks();
  nanobind::set_leak_warnings(false);  // tables alive at exit are no leak
  module.doc() =
      "Compiled core of monolith. Tensors come as addresses of checked, contiguous memory.";
  module.def("compiler", [] {
#ifdef __clang__
    return "clang " __clang_version__ ": " MONOLITH_COMPILER_FLAGS;
#else
    return "gcc " __VERSION__ ": " MONOLITH_COMPILER_FLAGS;
#endif
  });
  init_blocks(module);
  init_codec(module);
  init_dense(module);
  init_io(module);
  init_plain_buffers(module);
  init_pack(module);
  init_layout(module);
  init_dumps(module);
  init_records(module);
  init_table(module);
  init_group(module);
  init_features(module);
  init_exchange(module);
  init_touched_key_set(module);
}
