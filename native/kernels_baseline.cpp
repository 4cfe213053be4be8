#define MONOLITH_ISA baseline
#define MONOLITH_ISA_NAME "baseline"
#include "optimizer/kernels_body.h"
