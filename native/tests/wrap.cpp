// No reader may take a line for unchanged after its sequence went round: a worn line is replaced.
#include "check.h"
#include "tables.h"

using namespace monolith;

int main() {
  TableSpec spec = adagrad_table(2);
  spec.first_version = (Line::kWorn - 64 * Line::kSequence) & ~(Line::kSequence - 1);
  Table table(spec);
  Table plain(adagrad_table(2));
  const auto keys = keys_from(0, 100);
  const std::vector<float> grads(200, 1.0f);
  const float rate = 0.1f;
  for (int round = 0; round < 300; ++round) {
    table.apply_gradients(keys.data(), 100, grads.data(), &rate, 0, 1, 1);
    plain.apply_gradients(keys.data(), 100, grads.data(), &rate, 0, 1, 1);
  }
  // 300 changes of each row, at most some 64 per life of a line.
  const uint64_t rebuilds = table.index_counters().rebuilds.load();
  CHECK(rebuilds >= plain.index_counters().rebuilds.load() + 5);
  CHECK(rebuilds <= 300);
  std::vector<float> a(200), b(200);
  table.lookup(keys.data(), 100, a.data(), false, 1);
  plain.lookup(keys.data(), 100, b.data(), false, 1);
  CHECK(a == b);
  CHECK(a[0] != 0.0f);
  std::printf("wrap: %llu rebuilds\n",
              static_cast<unsigned long long>(table.index_counters().rebuilds.load()));
}
