// The path of a key through the lines of its bin.
#include <cstdlib>
#include <new>
#include <random>
#include <set>

#include "check.h"
#include "table/bin.h"
#include "table/line.h"

using namespace monolith;

namespace {

// A bin of `num_lines` lines, of which only the addresses matter.
class Lines {
 public:
  explicit Lines(uint32_t num_lines)
      : memory_(std::aligned_alloc(64, (size_t{num_lines} + 1) * 64)), bin_(new (memory_) Bin) {
    bin_->num_lines = num_lines;
  }
  ~Lines() { std::free(memory_); }
  BinRef ref() const { return BinRef(bin_); }

 private:
  void* const memory_;
  Bin* const bin_;
};

void check_a_path_comes_to_every_line(uint32_t num_lines) {
  const Lines lines(num_lines);
  const BinRef bin = lines.ref();
  std::mt19937 random(num_lines);
  for (int i = 0; i < 100; ++i) {
    const auto place = static_cast<uint32_t>(random());
    Path path(bin, place);
    CHECK(path.line() == bin.home(place));
    std::set<const Line*> seen;
    do {
      CHECK(path.line() >= bin.lines());
      CHECK(path.line() < bin.lines() + num_lines);
      seen.insert(path.line());
    } while (path.step());
    CHECK(seen.size() == num_lines);
    CHECK((bin.second(place, bin.home(place)) == bin.home(place)) == (num_lines == 1));
  }
}

// Otherwise keys of one home would collide again in the lines after it.
void check_keys_of_one_home_part() {
  const Lines lines(100);
  const BinRef bin = lines.ref();
  std::set<const Line*> homes, seconds;
  for (uint32_t place = 0; place < 1u << 16; place += 97) {  // all of the first line
    homes.insert(bin.home(place));
    seconds.insert(bin.second(place, bin.home(place)));
  }
  CHECK(homes.size() == 1);
  CHECK(seconds.size() == 99);
}

}  // namespace

int main() {
  for (const uint32_t num_lines : {1u, 2u, 3u, 8u, 523u})
    check_a_path_comes_to_every_line(num_lines);
  check_keys_of_one_home_part();
}
