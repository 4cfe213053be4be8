// As Adam, with x <- max(x, v) and sqrt(x) in place of sqrt(v).
// State: m, v, x, p1, p2.
#pragma once

#include "optimizer/rules/adam.h"

namespace monolith::MONOLITH_ISA {

struct Amsgrad : AdamState<3> {
  static constexpr const char* kName = "amsgrad";
  static constexpr auto kOptions = kAdamOptions;
};

}  // namespace monolith::MONOLITH_ISA
