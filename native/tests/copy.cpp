// Copies of every length, and nothing beyond.
#include "table/copy.h"

#include <vector>

#include "check.h"

using namespace monolith;

int main() {
  for (size_t n = 0; n < 600; ++n) {
    std::vector<char> from(n + 8), to(n + 8, 'x');
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>('a' + i % 19);
    copy_short(to.data() + 4, from.data(), n);
    for (size_t i = 0; i < n; ++i) CHECK(to[i + 4] == from[i]);
    for (size_t i = 0; i < 4; ++i) CHECK(to[i] == 'x' && to[n + 4 + i] == 'x');
  }
  std::printf("copy: ok\n");
}
