// Four-bit codes, eight in a word, the first in the low bits.
#pragma once

constexpr int CODES = 8;

// Code i of a word minus `zero`, exactly: the last bits of the float 2^23 + q are q.
__device__ __forceinline__ float code(unsigned word, int i, float zero) {
    const unsigned q = (word >> (4 * i)) & 15u;
    return __uint_as_float(0x4B000000u | q) - (8388608.0f + zero);
}
