// add_rms_tail.cu with a fault of faults.cuh, or one of its own.
#ifdef NO_BARRIER
// also in the sums of common.cuh
#define __syncthreads()
#endif
#include "faults.cuh"

#ifdef BF16_ACCUMULATOR
#define __fmaf_rn(a, b, c) point<T, true>(__fmaf_rn(a, b, c))
#endif

#include "add_rms_tail.cu"
