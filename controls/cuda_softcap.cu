// softcap.cu with a fault of faults.cuh.
#include "faults.cuh"
#include "softcap.cu"
