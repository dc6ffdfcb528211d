// w4_gemv.cu with a fault of faults.cuh, or one of its own.
#include "faults.cuh"
#include "nibbles.cuh"

// The high nibble of a byte comes first.
__device__ __forceinline__ float swapped(unsigned word, int i, float zero) { return code(word, i ^ 1, zero); }

// The last code of a word is its arithmetic shift, without a mask.
__device__ __forceinline__ float signed_shift(unsigned word, int i, float zero) {
    return i < CODES - 1 ? code(word, i, zero) : static_cast<float>(static_cast<int>(word) >> 28) - zero;
}

// w = (q - 8) s, whatever the zero point.
__device__ __forceinline__ float without_zero(unsigned word, int i, float zero) { return code(word, i, 8.0f); }

#ifdef NIBBLES_SWAPPED
#define code swapped
#endif
#ifdef SIGNED_SHIFT
#define code signed_shift
#endif
#ifdef ZERO_POINT_DROPPED
#define code without_zero
#endif
#ifdef BF16_ACCUMULATOR
#define __fmaf_rn(a, b, c) point<T, true>(__fmaf_rn(a, b, c))
#endif

#include "w4_gemv.cu"
