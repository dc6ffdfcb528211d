// 3 x 3 pooling by position: out = (m root - bias) scale, m the mean of a cell's patches. Grid: (cells, tiles of columns);
// a block looks for its cell's patches with all its threads, then adds their rows, a vector of 16 bytes a thread.
#include "common.cuh"

using T = __nv_bfloat16;

constexpr int WINDOW = 3;
constexpr int MOST_THREADS = 256;

// Whether a patch lies in the cell; padding, whose position is -1, -1, lies in none.
__device__ __forceinline__ bool inside(const int* position, int column, int row) {
    const int x = position[0], y = position[1];
    return x >= 0 && y >= 0 && x / WINDOW == column && y / WINDOW == row;
}

// The patches found by a block's threads, in ascending order; returns how many. `counts`: an integer a warp.
__device__ __forceinline__ int listed(bool found, int patch, int* list, int* counts) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const unsigned votes = __ballot_sync(ALL_LANES, found);
    if (lane == 0) counts[warp] = __popc(votes);
    __syncthreads();
    int before = 0, all = 0;
    for (int w = 0; w < blockDim.x / WARP; ++w) {
        before += w < warp ? counts[w] : 0;
        all += counts[w];
    }
    if (found) list[before + __popc(votes & ((1u << lane) - 1))] = patch;
    __syncthreads();
    return all;
}

template <bool EACH_STEP>
__device__ __forceinline__ void vit_pool(
    const T* x, const int* positions, const int* cells, const T* bias, const T* scale, T* out, long long x_stride,
    long long position_stride, long long cell_stride, long long out_stride, int patches, int d, float root) {
    __shared__ int list[MOST_THREADS], counts[MOST_THREADS / WARP];
    const int first = (blockIdx.y * blockDim.x + threadIdx.x) * LANES<T>;
    const int* cell = cells + blockIdx.x * cell_stride;
    const int column = cell[0], row = cell[1];

    float sum[LANES<T>] = {}, held[LANES<T>];
    for (int start = 0; start < patches; start += blockDim.x) {
        const int patch = start + threadIdx.x;
        const bool found = patch < patches && inside(positions + patch * position_stride, column, row);
        const int count = listed(found, patch, list, counts);
        for (int i = 0; i < count; ++i) {
            const T* from = x + list[i] * x_stride;
            load(held, from, first, d, aligned(from));
#pragma unroll
            for (int j = 0; j < LANES<T>; ++j) sum[j] += held[j];
        }
        // the list is read before the next patches are written to it
        __syncthreads();
    }

    float factor[LANES<T>];
    load(held, bias, first, d, aligned(bias));
    load(factor, scale, first, d, aligned(scale));
#pragma unroll
    for (int j = 0; j < LANES<T>; ++j) {
        const float mean = point<T, true>(__fdiv_rn(sum[j], WINDOW * WINDOW));
        const float scaled = point<T, EACH_STEP>(mean * root);
        sum[j] = point<T, EACH_STEP>(scaled - held[j]) * factor[j];
    }
    T* to = out + blockIdx.x * out_stride;
    store(to, sum, first, d, aligned(to));
}

#define ENTRY(NAME, EACH_STEP)                                                                                      \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS)                                                      \
        NAME(const T* x, const int* positions, const int* cells, const T* bias, const T* scale, T* out,             \
             long long x_stride, long long position_stride, long long cell_stride, long long out_stride,            \
             int patches, int d, float root) {                                                                      \
        vit_pool<EACH_STEP>(x, positions, cells, bias, scale, out, x_stride, position_stride, cell_stride,          \
                            out_stride, patches, d, root);                                                          \
    }

ENTRY(vit_pool_mean, false)
ENTRY(vit_pool_each_step, true)
