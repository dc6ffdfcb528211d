// Faults that several kernels can have, in place of what common.cuh has; each is turned on by its macro.
#pragma once

#include "common.cuh"

// Results are cut to their format, not rounded.
template <typename T>
__device__ __forceinline__ void cut_store(T* row, const float (&from)[LANES<T>], int first, int end, bool vectors) {
    float cut[LANES<T>];
#pragma unroll
    for (int i = 0; i < LANES<T>; ++i) cut[i] = __uint_as_float(__float_as_uint(from[i]) & 0xffff0000u);
    store(row, cut, first, end, vectors);
}

// Whole vectors are written, also where the row ends inside one.
template <typename T>
__device__ __forceinline__ void whole_store(T* row, const float (&from)[LANES<T>], int first, int end, bool vectors) {
    store(row, from, first, first < end ? first + LANES<T> : end, vectors);
}

// The butterfly begins eight lanes apart: halves of a warp keep their own sums.
__device__ __forceinline__ float half_warp_sum(float x) {
#pragma unroll
    for (int apart = WARP / 4; apart > 0; apart /= 2) x += __shfl_xor_sync(ALL_LANES, x, apart);
    return x;
}

// The sum over a block with such sums over its warps.
__device__ __forceinline__ float half_block_sum(float x, float* partial) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    x = half_warp_sum(x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    return warp_sum(lane < blockDim.x / WARP ? partial[lane] : 0.0f);
}

// Only the first warp's sum.
__device__ __forceinline__ float first_warp_sum(float x, float* partial) {
    if (threadIdx.x / WARP == 0) x = warp_sum(x);
    if (threadIdx.x == 0) partial[0] = x;
    __syncthreads();
    return partial[0];
}

// Two sums after each other in one array: the second is written while slow warps still read the first.
__device__ __forceinline__ float one_array_sum(float x, float* partial) {
    __shared__ float one[WARP];
    return block_sum(x, one);
}

#ifdef CUT_STORE
#define store cut_store
#endif
#ifdef TAIL_NOT_MASKED
#define store whole_store
#endif
#ifdef ALIGNMENT_ASSUMED
#define aligned(at) true
#endif
#ifdef SHUFFLE_MISSING
#define warp_sum half_warp_sum
#define block_sum half_block_sum
#endif
#ifdef FIRST_WARP_ONLY
#define block_sum first_warp_sum
#endif
#ifdef ONE_ARRAY
#define block_sum one_array_sum
#endif
#ifdef NO_BARRIER
#define __syncthreads()
#endif
