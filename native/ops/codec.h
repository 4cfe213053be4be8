// Encodes whole matrices of weights for src/monolith/table/codecs.py.
#pragma once

#include <cstddef>
#include <string>

namespace monolith {

// weights: (n, dim); codes: n rows of the codec's bytes. Throws std::invalid_argument for an
// unknown codec.
void encode_rows(const std::string& codec, const float* weights, size_t n, size_t dim, char* codes,
                 float parameter);
void decode_rows(const std::string& codec, const char* codes, size_t n, size_t dim, float* weights,
                 float parameter);

}  // namespace monolith
