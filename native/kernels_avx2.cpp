#define MONOLITH_ISA avx2
#define MONOLITH_ISA_NAME "avx2"
#include "optimizer/kernels_body.h"
