"""exp and tanh from fma alone: within their contracts' 2 ulps on every device, for outputs that show it.

libdevice's are within 2 ulps as measured, but not by the bounds of what they are made of: ex2.approx alone may be 2 ulps
off, rcp.approx 1 (PTX ISA, ex2 and rcp).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from contract.engines.deferred_jit import jit
from contract.lazy import lazy

if TYPE_CHECKING:
    import triton.language as tl
    from triton.language.extra import libdevice
else:
    tl, libdevice = lazy("triton.language"), lazy("triton.language.extra.libdevice")


@jit
def exp_by_fma(x: tl.tensor) -> tl.tensor:
    """exp(x) within 1 ulp on every device: 2^n times a Taylor polynomial of degree 7 on |r| <= ln(2) / 2.

    Its truncation is below r^8 / 8! = 2^-27; ln 2 is split so that n times its upper part (16 bits) is exact.
    """
    # beyond these the result is infinity and 0
    bounded = tl.minimum(tl.maximum(x, -110.0), 100.0)
    n = libdevice.rint(bounded * 1.4426950408889634)
    r = tl.math.fma(n, -0.693145751953125, bounded)
    r = tl.math.fma(n, -1.428606765330187e-06, r)
    p = tl.math.fma(r, 1.0 / 5040.0, 1.0 / 720.0)
    p = tl.math.fma(p, r, 1.0 / 120.0)
    p = tl.math.fma(p, r, 1.0 / 24.0)
    p = tl.math.fma(p, r, 1.0 / 6.0)
    p = tl.math.fma(p, r, 0.5)
    p = tl.math.fma(p, r, 1.0)
    p = tl.math.fma(p, r, 1.0)
    # 2^n in two factors, as it may lie outside of the normal numbers
    first = n.to(tl.int32) >> 1
    second = n.to(tl.int32) - first
    p = p * ((first + 127) << 23).to(tl.float32, bitcast=True)
    p = p * ((second + 127) << 23).to(tl.float32, bitcast=True)
    # the bounds above drop a NaN
    return tl.where(x == x, p, x)  # noqa: PLR0124


@jit
def tanh_by_fma(x: tl.tensor) -> tl.tensor:
    """tanh(x) within 2 ulps: x + x^3 P(x^2) below 0.625 (Cephes, tanhf.c), 1 - 2 / (exp(2 |x|) + 1) from there on."""
    magnitude = tl.abs(x)
    z = x * x
    p = tl.math.fma(z, -5.70498872745e-3, 2.06390887954e-2)
    p = tl.math.fma(p, z, -5.37397155531e-2)
    p = tl.math.fma(p, z, 1.33314422036e-1)
    p = tl.math.fma(p, z, -3.33332819422e-1)
    small = tl.math.fma(p * z, magnitude, magnitude)
    large = 1.0 - tl.math.div_rn(2.0, exp_by_fma(2.0 * magnitude) + 1.0)
    # a NaN goes through exp; the sign is a bit, so that a zero has its own
    bits = tl.where(magnitude < 0.625, small, large).to(tl.int32, bitcast=True)
    sign = x.to(tl.int32, bitcast=True) & -2147483648
    return (bits | sign).to(tl.float32, bitcast=True)
