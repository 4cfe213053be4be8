// What a line of the index finds.
#include "table/line.h"

#include "check.h"
#include "table/index.h"

using namespace monolith;

namespace {

void put(Line& line, uint32_t slot, int64_t key, uint32_t row) {
  line.keys[slot].store(key);
  line.rows[slot].store(row);
}

// Vectors compare the low halves of keys.
void check_keys_with_equal_halves_are_told_apart() {
  constexpr int64_t kLow = 7, kHigh = int64_t{1} << 32;
  Line line;
  line.reset(0);
  for (int64_t slot = 0; slot < Line::kSlots; ++slot) {
    put(line, static_cast<uint32_t>(slot), kLow + slot * kHigh, 10 + static_cast<uint32_t>(slot));
  }
  for (int64_t slot = 0; slot < Line::kSlots; ++slot) {
    CHECK(line.find(kLow + slot * kHigh) == static_cast<uint32_t>(slot));
  }
  CHECK(line.find(kLow + Line::kSlots * kHigh) == Line::kSlots);
  CHECK(line.find(kLow + 1) == Line::kSlots);
  CHECK(line.find(kHigh) == Line::kSlots);
}

void check_a_free_slot_holds_nothing() {
  Line line;
  line.reset(0);
  CHECK(line.find(0) == Line::kSlots);  // the key of free slots
  CHECK(line.match_halves(0) == (1u << Line::kSlots) - 1);
  put(line, 1, 5, kNoRow);  // the ghost of a removed key
  CHECK(!line.has(1, 5));
  CHECK(line.find(5) == Line::kSlots);
  put(line, 3, 5, 9);
  CHECK(line.has(3, 5));
  CHECK(line.find(5) == 3);
}

void check_a_search_in_one_line_says_when_it_goes_on() {
  Line line;
  line.reset(0);
  put(line, 2, 5, 9);
  Index::Location location;
  CHECK(Index::find_in(&line, 5, location));
  CHECK(location.row == 9 && location.slot == 2 && location.line == &line && !location.is_worn);
  CHECK(Index::find_in(&line, 6, location));
  CHECK(location.row == kNoRow && location.slot < Line::kSlots);
  line.version.store(Line::kOverflowed);
  CHECK(Index::find_in(&line, 5, location));
  CHECK(!Index::find_in(&line, 6, location));
  for (const uint32_t flag : {Line::kWriting, Line::kRetired}) {
    line.version.store(flag);
    CHECK(!Index::find_in(&line, 5, location));
  }
  line.version.store((Line::kWorn | 7) + 1);  // without flags
  CHECK(Index::find_in(&line, 5, location));
  CHECK(location.is_worn);
}

}  // namespace

int main() {
  check_keys_with_equal_halves_are_told_apart();
  check_a_free_slot_holds_nothing();
  check_a_search_in_one_line_says_when_it_goes_on();
}
