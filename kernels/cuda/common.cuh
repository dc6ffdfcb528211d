// What the kernels share: rows read and written in vectors of 16 bytes, rounding to their format, sums over a block.
//
// Compiled with -fmad=false, so that a product and a sum are two roundings unless __fmaf_rn says otherwise.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// Elements of 16 bytes.
template <typename T>
constexpr int LANES = 16 / sizeof(T);

__device__ __forceinline__ float widened(float x) { return x; }
__device__ __forceinline__ float widened(__half x) { return __half2float(x); }
__device__ __forceinline__ float widened(__nv_bfloat16 x) { return __bfloat162float(x); }

// To nearest, ties to even.
template <typename T>
__device__ __forceinline__ T rounded(float x);
template <>
__device__ __forceinline__ float rounded<float>(float x) { return x; }
template <>
__device__ __forceinline__ __half rounded<__half>(float x) { return __float2half_rn(x); }
template <>
__device__ __forceinline__ __nv_bfloat16 rounded<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// A rounding point: the value as T holds it where AT, and as it is elsewhere.
template <typename T, bool AT>
__device__ __forceinline__ float point(float x) {
    return AT ? widened(rounded<T>(x)) : x;
}

__device__ __forceinline__ bool aligned(const void* at) {
    return (reinterpret_cast<unsigned long long>(at) & 15) == 0;
}

// row[first .. first + LANES - 1]; columns from `end` on are zeros. `vectors`: the row begins at a multiple of 16 bytes.
template <typename T>
__device__ __forceinline__ void load(float (&into)[LANES<T>], const T* row, int first, int end, bool vectors) {
    if (vectors && first + LANES<T> <= end) {
        union { uint4 raw; T at[LANES<T>]; } pack;
        pack.raw = *reinterpret_cast<const uint4*>(row + first);
#pragma unroll
        for (int i = 0; i < LANES<T>; ++i) into[i] = widened(pack.at[i]);
    } else {
#pragma unroll
        for (int i = 0; i < LANES<T>; ++i) into[i] = first + i < end ? widened(row[first + i]) : 0.0f;
    }
}

// The other way; columns from `end` on are not written.
template <typename T>
__device__ __forceinline__ void store(T* row, const float (&from)[LANES<T>], int first, int end, bool vectors) {
    if (vectors && first + LANES<T> <= end) {
        union { uint4 raw; T at[LANES<T>]; } pack;
#pragma unroll
        for (int i = 0; i < LANES<T>; ++i) pack.at[i] = rounded<T>(from[i]);
        *reinterpret_cast<uint4*>(row + first) = pack.raw;
    } else {
#pragma unroll
        for (int i = 0; i < LANES<T>; ++i)
            if (first + i < end) row[first + i] = rounded<T>(from[i]);
    }
}

// Sum over a warp: five additions a term, the same sum in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int apart = WARP / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(ALL_LANES, x, apart);
    return x;
}

// Sum over a block of whole warps: ten additions a term, the same sum in every thread. `partial` is shared, a float a
// warp, at most 32 of them; it may be used again after the next barrier.
__device__ __forceinline__ float block_sum(float x, float* partial) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    x = warp_sum(x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    return warp_sum(lane < blockDim.x / WARP ? partial[lane] : 0.0f);
}
