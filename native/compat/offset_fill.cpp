#include "compat/offset_fill.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

#include "compat/id_groups.h"
#include "table/team.h"

namespace monolith {
namespace {

constexpr int64_t kPiece = 1024;  // rows that a thread takes at once

// Some rows of one slot of one part.
struct Piece {
  const int64_t* keys;
  int64_t num_keys;
  float* values;
  int64_t dim;
};

[[noreturn]] void refuse(const std::string& expected, int64_t got) {
  throw std::invalid_argument("[fill_with_offset_map] expected " + expected + ", got " +
                              std::to_string(got));
}

void check_part(const Fill& fill, const FillPart& part) {
  check_splits("[fill_with_offset_map] expected row_splits of pos", part.splits, part.keys.size());
  int64_t needed = 0;
  for (size_t slot = 0; slot < fill.dims.size(); ++slot) {
    const int64_t dim = fill.dims[slot];
    needed += (part.splits[slot + 1] - part.splits[slot]) * dim;
    for (int64_t k = part.splits[slot]; k < part.splits[slot + 1]; ++k) {
      const int64_t key = part.keys[k];
      const auto num_keys = static_cast<int64_t>(fill.offset_splits.size()) - 1;
      if (key < 0 || key >= num_keys) {
        refuse("pos in [0, " + std::to_string(num_keys) + ")", key);
      }
      for (int64_t i = fill.offset_splits[key]; i < fill.offset_splits[key + 1]; ++i) {
        if (fill.offsets[i] < 0 || fill.offsets[i] > fill.size - dim) {
          refuse("an offset with " + std::to_string(dim) + " of " + std::to_string(fill.size) +
                     " floats behind it",
                 fill.offsets[i]);
        }
      }
    }
  }
  if (needed != part.size) refuse("a value of " + std::to_string(needed) + " floats", part.size);
}

std::vector<Piece> pieces_of(const Fill& fill) {
  check_splits("[fill_with_offset_map] expected row_splits of offset_map", fill.offset_splits,
               fill.offsets.size());
  std::vector<Piece> pieces;
  for (const FillPart& part : fill.parts) {
    check_part(fill, part);
    float* values = part.values;
    for (size_t slot = 0; slot < fill.dims.size(); ++slot) {
      for (int64_t k = part.splits[slot]; k < part.splits[slot + 1]; k += kPiece) {
        const int64_t n = std::min(kPiece, part.splits[slot + 1] - k);
        pieces.push_back({part.keys.data() + k, n, values, fill.dims[slot]});
        values += n * fill.dims[slot];
      }
    }
  }
  return pieces;
}

// use(values of a row, its places)
template <typename Use>
void by_row(const Fill& fill, unsigned threads, const Use& use) {
  const std::vector<Piece> pieces = pieces_of(fill);
  std::atomic<size_t> next{0};
  Team::run(threads, [&](Team&, unsigned) {
    for (size_t p; (p = next.fetch_add(1)) < pieces.size();) {
      const Piece& piece = pieces[p];
      for (int64_t k = 0; k < piece.num_keys; ++k) {
        const int64_t first = fill.offset_splits[piece.keys[k]];
        const int64_t last = fill.offset_splits[piece.keys[k] + 1];
        use(piece.values + k * piece.dim, piece.dim, fill.offsets.subspan(first, last - first));
      }
    }
  });
}

}  // namespace

void fill_buffer(const Fill& fill, unsigned threads) {
  by_row(fill, threads, [&](const float* row, int64_t dim, std::span<const int64_t> places) {
    for (const int64_t place : places) {
      std::memcpy(fill.buffer + place, row, static_cast<size_t>(dim) * sizeof(float));
    }
  });
}

void sum_from_buffer(const Fill& fill, unsigned threads) {
  by_row(fill, threads, [&](float* row, int64_t dim, std::span<const int64_t> places) {
    if (places.empty()) {
      std::fill_n(row, dim, 0.0f);
      return;
    }
    std::copy_n(fill.buffer + places[0], dim, row);  // not 0 + x, which loses the sign of -0
    for (const int64_t place : places.subspan(1)) {
      for (int64_t c = 0; c < dim; ++c) row[c] += fill.buffer[place + c];
    }
  });
}

}  // namespace monolith
