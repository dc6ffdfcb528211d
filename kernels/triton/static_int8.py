"""The last step of kernels that store int8 codes with a scale known beforehand, for Triton kernels."""

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
def static_codes(y: tl.tensor, inverse: tl.tensor) -> tl.tensor:
    """clamp(round(y / s), -127, 127) of fp32 numbers, ties to even; `inverse` is 1 / s. A NaN is code 0."""
    whole = libdevice.rint(y * inverse)
    # false for a NaN alone
    whole = tl.where(whole == whole, whole, 0.0)  # noqa: PLR0124
    return tl.minimum(tl.maximum(whole, -127.0), 127.0).to(tl.int8)
