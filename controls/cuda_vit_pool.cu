// vit_pool.cu with a fault of faults.cuh, or one of its own.
#include "faults.cuh"

#ifdef HALF_THE_VOTES
// As where a warp is taken for 16 threads: the upper half's patches are not counted.
#define __ballot_sync(lanes, found) (__ballot_sync(lanes, found) & 0xffffu)
#endif

#include "vit_pool.cu"
