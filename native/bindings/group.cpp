// Python binding of groups of tables. Takes addresses and sizes; the checks are in Python.
#include "table/group.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;
using monolith::GradientSum;
using monolith::Table;
using monolith::TableGroup;
using monolith::TableStep;

namespace {

using Address = uintptr_t;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

TableGroup::Keys keys_at(Address keys, size_t num_keys, Address splits) {
  return {reinterpret_cast<const int64_t*>(keys), num_keys,
          reinterpret_cast<const int64_t*>(splits)};
}

std::vector<Table*> cores_of(const nb::typed<nb::list, Table>& tables) {
  std::vector<Table*> cores;
  for (nb::handle table : tables) cores.push_back(nb::cast<Table*>(table));
  return cores;
}

const float* floats_at(Address address) { return reinterpret_cast<const float*>(address); }

// rates: of the first table's segments, then of the second's, and so on.
void bind_steps(nb::module_& module) {
  module.def(
      "step_tables",
      [](const std::vector<Table*>& tables, const std::vector<GradientSum*>& sums,
         const std::vector<float>& rates, const std::vector<uint32_t>& times, Address are_done,
         unsigned threads) {
        std::vector<TableStep> steps;
        const float* rate = rates.data();
        for (size_t i = 0; i < tables.size(); ++i) {
          steps.push_back({tables[i], sums[i], rate, times[i],
                           reinterpret_cast<uint8_t*>(are_done) + i, sums[i]->grads().size()});
          rate += tables[i]->layout().segments().size();
        }
        monolith::step_tables(steps, threads);
      },
      ReleaseGil(), "tables"_a, "sums"_a, "rates"_a, "times"_a, "are_done"_a, "threads"_a);
}

}  // namespace

void init_group(nb::module_& module) {
  bind_steps(module);
  nb::class_<TableGroup>(module, "TableGroup")
      .def(
          "__init__",
          [](TableGroup* self, const nb::typed<nb::list, Table>& tables) {
            new (self) TableGroup(cores_of(tables));
          },
          "tables"_a, nb::keep_alive<1, 2>())
      .def(
          "lookup",
          [](const TableGroup& self, Address keys, size_t num_keys, Address splits, Address out,
             bool initial, const std::vector<float>& scales, unsigned threads) {
            self.lookup(keys_at(keys, num_keys, splits), reinterpret_cast<float*>(out), initial,
                        scales.data(), threads);
          },
          ReleaseGil(), "keys"_a, "num_keys"_a, "splits"_a, "out"_a, "initial"_a, "scales"_a,
          "threads"_a)
      .def(
          "assign",
          [](TableGroup& self, Address keys, size_t num_keys, Address splits, Address values,
             uint32_t now, unsigned threads) {
            self.assign(keys_at(keys, num_keys, splits), floats_at(values), now, threads);
          },
          ReleaseGil(), "keys"_a, "num_keys"_a, "splits"_a, "values"_a, "now"_a, "threads"_a)
      .def(
          "assign_add",
          [](TableGroup& self, Address keys, size_t num_keys, Address splits, Address values,
             uint32_t now, unsigned threads) {
            self.assign_add(keys_at(keys, num_keys, splits), floats_at(values), now, threads);
          },
          ReleaseGil(), "keys"_a, "num_keys"_a, "splits"_a, "values"_a, "now"_a, "threads"_a)
      .def(
          "apply_gradients",
          [](TableGroup& self, Address keys, size_t num_keys, Address splits, Address grads,
             const std::vector<float>& rates, const std::vector<float>& scales, int64_t step,
             uint32_t now, unsigned threads) {
            const auto counts =
                self.apply_gradients(keys_at(keys, num_keys, splits), floats_at(grads),
                                     {rates.data(), scales.data(), step}, now, threads);
            return std::make_tuple(counts.applied, counts.inserted, counts.refused, counts.skipped);
          },
          ReleaseGil(), "keys"_a, "num_keys"_a, "splits"_a, "grads"_a, "rates"_a, "scales"_a,
          "step"_a, "now"_a, "threads"_a)
      .def(
          "push",
          [](TableGroup& self, Address keys, size_t num_keys, Address splits, Address grads,
             Address counts, Address are_stepped, Address times, const std::vector<float>& rates,
             const std::vector<float>& scales, unsigned threads) {
            const auto sums =
                self.push({keys_at(keys, num_keys, splits), floats_at(grads),
                           reinterpret_cast<const int32_t*>(counts),
                           reinterpret_cast<const uint8_t*>(are_stepped),
                           reinterpret_cast<const int64_t*>(times), rates.data(), scales.data()},
                          threads);
            return std::make_tuple(sums.applied, sums.inserted, sums.refused, sums.skipped);
          },
          ReleaseGil(), "keys"_a, "num_keys"_a, "splits"_a, "grads"_a, "counts"_a, "are_stepped"_a,
          "times"_a, "rates"_a, "scales"_a, "threads"_a);
}
