// Tail of a residual block: total = (norm(x) w_b + h) s, out = norm(total) w. One block a row, one pass over memory: the
// row stays in registers between the norms.
#include "common.cuh"

using T = __nv_bfloat16;

// Vectors of a row that a thread holds; vector v of the row belongs to thread v % blockDim.x.
constexpr int HELD = 2;
constexpr int MOST_THREADS = 1024;

enum Profile { EACH, EACH_NORM, FUSED, TWO_STEP };

// 1 / sqrt(mean square + eps); rsqrtf: at most 2 ulp (CUDA C++ Programming Guide, single-precision functions).
__device__ __forceinline__ float inverse_root(const float (&value)[HELD][LANES<T>], int d, float eps, float* partial) {
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < HELD; ++v)
#pragma unroll
        for (int i = 0; i < LANES<T>; ++i) sum = __fmaf_rn(value[v][i], value[v][i], sum);
    return rsqrtf(__fdiv_rn(block_sum(sum, partial), static_cast<float>(d)) + eps);
}

struct Rows {
    const T *x, *residual, *branch_weight, *scalar, *weight;
    T *total, *out;
    long long x_stride, residual_stride, total_stride, out_stride;
};

template <Profile PROFILE, bool BRANCH_NORM, bool SCALE>
__device__ __forceinline__ void add_rms_tail(const Rows& at, int d, float eps) {
    // one array a sum: the second is written while slow warps still read the first
    __shared__ float branch_partial[WARP], partial[WARP];
    constexpr bool STORED = PROFILE == EACH || PROFILE == TWO_STEP;
    const T* x = at.x + blockIdx.x * at.x_stride;
    const T* residual = at.residual + blockIdx.x * at.residual_stride;
    T* total = at.total + blockIdx.x * at.total_stride;
    T* out = at.out + blockIdx.x * at.out_stride;
    const bool whole_x = aligned(x), whole_residual = aligned(residual), whole_total = aligned(total);
    const bool whole_out = aligned(out), whole_weight = aligned(at.weight);

    float value[HELD][LANES<T>], held[LANES<T>];
#pragma unroll
    for (int v = 0; v < HELD; ++v) load(value[v], x, (v * blockDim.x + threadIdx.x) * LANES<T>, d, whole_x);
    float inverse = 1.0f;
    if (BRANCH_NORM) inverse = inverse_root(value, d, eps, branch_partial);
    const float factor = SCALE ? widened(*at.scalar) : 1.0f;

#pragma unroll
    for (int v = 0; v < HELD; ++v) {
        const int first = (v * blockDim.x + threadIdx.x) * LANES<T>;
        if (BRANCH_NORM) {
            load(held, at.branch_weight, first, d, aligned(at.branch_weight));
#pragma unroll
            for (int i = 0; i < LANES<T>; ++i)
                value[v][i] = point<T, PROFILE != FUSED>(value[v][i] * inverse * held[i]);
        }
        load(held, residual, first, d, whole_residual);
#pragma unroll
        for (int i = 0; i < LANES<T>; ++i) {
            value[v][i] += held[i];
            if (SCALE) value[v][i] = point<T, PROFILE == EACH>(value[v][i]) * factor;
        }
        store(total, value[v], first, d, whole_total);
#pragma unroll
        for (int i = 0; i < LANES<T>; ++i)
            // beyond the row 0 times an infinite scalar, or 0 times a NaN, is no 0
            value[v][i] = first + i < d ? point<T, STORED>(value[v][i]) : 0.0f;
    }

    inverse = inverse_root(value, d, eps, partial);
#pragma unroll
    for (int v = 0; v < HELD; ++v) {
        const int first = (v * blockDim.x + threadIdx.x) * LANES<T>;
        load(held, at.weight, first, d, whole_weight);
#pragma unroll
        for (int i = 0; i < LANES<T>; ++i)
            value[v][i] = point<T, PROFILE == TWO_STEP>(value[v][i] * inverse) * held[i];
        store(out, value[v], first, d, whole_out);
    }
}

// branch_weight is null without BRANCH_NORM, scalar without SCALE.
#define ENTRY(NAME, PROFILE, BRANCH_NORM, SCALE)                                                                    \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                                      \
        NAME(const T* x, const T* residual, const T* branch_weight, const T* scalar, const T* weight, T* total,     \
             T* out, long long x_stride, long long residual_stride, long long total_stride, long long out_stride,   \
             int d, float eps) {                                                                                    \
        const Rows at = {x, residual, branch_weight, scalar, weight, total, out,                                    \
                         x_stride, residual_stride, total_stride, out_stride};                                      \
        add_rms_tail<PROFILE, BRANCH_NORM, SCALE>(at, d, eps);                                                      \
    }

ENTRY(each, EACH, false, false)
ENTRY(each_scaled, EACH, false, true)
ENTRY(each_branch, EACH, true, false)
ENTRY(each_branch_scaled, EACH, true, true)
ENTRY(each_norm_branch, EACH_NORM, true, false)
ENTRY(each_norm_branch_scaled, EACH_NORM, true, true)
ENTRY(fused, FUSED, false, false)
ENTRY(fused_scaled, FUSED, false, true)
ENTRY(fused_branch, FUSED, true, false)
ENTRY(fused_branch_scaled, FUSED, true, true)
ENTRY(two_step, TWO_STEP, false, false)
