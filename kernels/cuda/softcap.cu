// Soft cap: out = cap * tanh(x / cap), a vector of 16 bytes a thread. Grid: (rows, tiles of a row's columns).
#include "common.cuh"

// tanh(x). In bf16 tanhf: at most 2 ulp (CUDA C++ Programming Guide, single-precision functions), as its exponential and
// reciprocal are better than the 2 and 1 ulp that PTX promises.
template <typename T>
__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }

// Without approximate instructions: 1 - 2 / (exp(2 |x|) + 1). Over all floats from 0.6 on at most 1.41 ulp, below it
// tanhf is a polynomial.
template <>
__device__ __forceinline__ float tanh_of<float>(float x) {
    // exp(a) = 2^n exp(f), |f| <= log(2) / 2; from a = 2 * 9.011 on the result is 1
    const float a = fminf(2.0f * fabsf(x), 20.0f);
    // n, in the last bits of a float near 1.5 2^23
    const float shifted = __fmaf_rn(a, 1.442695f, 12582912.0f), n = shifted - 12582912.0f;
    // log(2) as a number of 15 bits, whose product with n is exact, and the rest
    float f = __fmaf_rn(n, -6.93145752e-1f, a);
    f = __fmaf_rn(n, -1.42860677e-6f, f);
    float exponential = 1.37805939e-3f;
    exponential = __fmaf_rn(exponential, f, 8.37312452e-3f);
    exponential = __fmaf_rn(exponential, f, 4.16695364e-2f);
    exponential = __fmaf_rn(exponential, f, 1.66664720e-1f);
    exponential = __fmaf_rn(exponential, f, 4.99999851e-1f);
    exponential = __fmaf_rn(exponential, f, 1.0f);
    exponential = __fmaf_rn(exponential, f, 1.0f);
    exponential = __uint_as_float(__float_as_uint(exponential) + (__float_as_uint(shifted) << 23));
    const float squashed = copysignf(__fmaf_rn(-2.0f, __frcp_rn(exponential + 1.0f), 1.0f), x);
    // a NaN takes the second way
    return fabsf(x) >= 0.6f ? squashed : tanhf(x);
}

// EACH_OP: quotient and tanh are rounded to T, too. The quotient is x times 1 / cap, as torch divides on GPUs.
template <typename T, bool EACH_OP>
__device__ __forceinline__ void softcap(
    const T* x, T* out, long long x_stride, long long out_stride, int n, float cap, float inverse) {
    const T* from = x + blockIdx.x * x_stride;
    T* to = out + blockIdx.x * out_stride;
    const int first = (blockIdx.y * blockDim.x + threadIdx.x) * LANES<T>;
    float value[LANES<T>];
    load(value, from, first, n, aligned(from));
#pragma unroll
    for (int i = 0; i < LANES<T>; ++i) {
        const float quotient = point<T, EACH_OP>(value[i] * inverse);
        value[i] = point<T, EACH_OP>(tanh_of<T>(quotient)) * cap;
    }
    store(to, value, first, n, aligned(to));
}

#define ENTRY(NAME, T, EACH_OP)                                                                                     \
    extern "C" __global__ void __launch_bounds__(256)                                                               \
        NAME(const T* x, T* out, long long x_stride, long long out_stride, int n, float cap, float inverse) {       \
        softcap<T, EACH_OP>(x, out, x_stride, out_stride, n, cap, inverse);                                         \
    }

ENTRY(softcap_each_op, __nv_bfloat16, true)
ENTRY(softcap_once, __nv_bfloat16, false)
ENTRY(softcap_float32, float, false)
