// Vectors times a weight of four-bit codes. A warp an output: a lane takes 32 codes, 16 bytes, at a time, forms their
// weights once and multiplies them with ROWS vectors. Grid: (tiles of OUTPUTS outputs, tiles of ROWS vectors).
#include "common.cuh"
#include "nibbles.cuh"

using T = __nv_bfloat16;

constexpr int OUTPUTS = 4;
constexpr int WORDS = 4, GROUP = CODES * WORDS;
constexpr float MIDDLE = 8.0f;

enum Profile { KEPT, DEQUANTISED, OFFSET };

struct Weight {
    const unsigned* words;
    const T* scales;
    const unsigned char* zeros;
    const T* offset;
    long long words_stride, scales_stride, zeros_stride, offset_stride;
};

// Four words of a row; `vectors`: the row begins at a multiple of 16 bytes.
__device__ __forceinline__ void words_of(unsigned (&into)[WORDS], const unsigned* row, int first, bool vectors) {
    if (vectors) {
        // read once: not kept in the caches that hold x
        const uint4 pack = __ldcs(reinterpret_cast<const uint4*>(row + first));
        into[0] = pack.x, into[1] = pack.y, into[2] = pack.z, into[3] = pack.w;
    } else {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) into[i] = row[first + i];
    }
}

template <Profile PROFILE, int BLOCK, bool OFFSETS, int ROWS>
__device__ __forceinline__ void w4_gemv(
    const T* x, const Weight& at, T* out, long long x_stride, long long out_stride, int rows, int n, int k) {
    const int lane = threadIdx.x % WARP, output = blockIdx.x * OUTPUTS + threadIdx.x / WARP;
    if (output >= n) return;
    const unsigned* words = at.words + output * at.words_stride;
    const T* scales = at.scales + output * at.scales_stride;
    const bool vectors = aligned(words);
    const T* from[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        // vectors past the last one repeat it, and are not stored
        from[r] = x + min(static_cast<int>(blockIdx.y) * ROWS + r, rows - 1) * x_stride;

    // a running sum for each word of a lane's four
    float sum[ROWS][WORDS] = {};
    for (int group = lane; group < k / GROUP; group += WARP) {
        constexpr int GROUPS = BLOCK / GROUP;
        const float scale = widened(scales[group / GROUPS]);
        float zero = MIDDLE, offset = 0.0f;
        if (BLOCK == 128) zero = at.zeros[output * at.zeros_stride + group / GROUPS];
        if (OFFSETS) offset = widened(at.offset[output * at.offset_stride + group]);
        if (PROFILE == OFFSET) {
            offset = point<T, true>((MIDDLE - zero) * scale);
            zero = MIDDLE;
        }
        unsigned word[WORDS];
        words_of(word, words, group * WORDS, vectors);
#pragma unroll
        for (int w = 0; w < WORDS; ++w) {
            float weight[CODES];
#pragma unroll
            for (int i = 0; i < CODES; ++i) {
                weight[i] = code(word[w], i, zero) * scale;
                if (OFFSETS || PROFILE == OFFSET) weight[i] += offset;
                weight[i] = point<T, PROFILE == DEQUANTISED>(weight[i]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                float value[CODES];
                load(value, from[r], group * GROUP + w * CODES, k, aligned(from[r]));
#pragma unroll
                for (int i = 0; i < CODES; ++i) sum[r][w] = __fmaf_rn(value[i], weight[i], sum[r][w]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float total = warp_sum((sum[r][0] + sum[r][1]) + (sum[r][2] + sum[r][3]));
        const int row = blockIdx.y * ROWS + r;
        if (lane == 0 && row < rows) out[row * out_stride + output] = rounded<T>(total);
    }
}

// zeros are null with blocks of 32, offset without OFFSETS.
#define ENTRY(NAME, PROFILE, BLOCK, OFFSETS, ROWS)                                                                  \
    extern "C" __global__ void __launch_bounds__(OUTPUTS * WARP)                                                    \
        NAME(const T* x, const unsigned* words, const T* scales, const unsigned char* zeros, const T* offset,       \
             T* out, long long x_stride, long long words_stride, long long scales_stride, long long zeros_stride,   \
             long long offset_stride, long long out_stride, int rows, int n, int k) {                               \
        const Weight at = {words, scales, zeros, offset, words_stride, scales_stride, zeros_stride, offset_stride}; \
        w4_gemv<PROFILE, BLOCK, OFFSETS, ROWS>(x, at, out, x_stride, out_stride, rows, n, k);                       \
    }
#define ENTRIES(NAME, PROFILE, BLOCK, OFFSETS)          \
    ENTRY(NAME##_x1, PROFILE, BLOCK, OFFSETS, 1)        \
    ENTRY(NAME##_x4, PROFILE, BLOCK, OFFSETS, 4)

ENTRIES(kept_32, KEPT, 32, false)
ENTRIES(kept_32_offsets, KEPT, 32, true)
ENTRIES(kept_128, KEPT, 128, false)
ENTRIES(dequantised_32, DEQUANTISED, 32, false)
ENTRIES(offset_128, OFFSET, 128, false)
