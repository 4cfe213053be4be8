#define MONOLITH_ISA avx512
#define MONOLITH_ISA_NAME "avx512"
#include "optimizer/kernels_body.h"
