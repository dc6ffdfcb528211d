"""The hypothesis that every step is rounded to the operands' format, as where each is a tensor operation of its own.

A contract's points are the roundings that are worth having; an eager formula, `x * rsqrt(x.pow(2).mean(-1) + eps) * weight`
on bf16 tensors, rounds after each operation instead. A step is what such a library has one operation for: an arithmetic
one, a function, a sum, a product of matrices, sigmoid and SiLU. A mean is one step, or a sum and a division. A reciprocal
square root is one step, or a root and a division: torch on a CPU does the one for whole vectors and the other for the rest
of a tensor (seen in torch's bf16 rsqrt of 63 values: the last ones differ by an ulp).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from contract import autocontrols
from contract.case import Kernel
from contract.functions import FUNCTIONS
from contract.identify.hypotheses import NARROW, Hypothesis, Signature, option_choices
from contract.readings.base import Quantity

#: Steps on payloads, and on quantities.
ARITHMETIC = ("add", "mul", "div")
STEPS = ("square", "sum", "sigmoid", "silu", "softplus", "fma", "dot")
#: Of an fp32 square root: the reading's own for `r.sqrt`.
ROOT_ULPS = 1
#: Freedoms of the steps above; what uses another has steps inside that no operation of a library shows.
KNOWN = ("sum:", "dot:", *(f"{name}:" for name in FUNCTIONS))


def every_step(
    signature: Signature, scalars: Sequence[Mapping[str, float]]
) -> Iterator[Hypothesis]:
    """One hypothesis for each set of parameters, combination of options and values of fixed scalars; none where the
    operands differ in format, or have a wide one, or the reference has steps that are composed."""
    kernels = {tuple(k.parameters.items()): k for k in reversed(signature.kernels)}
    for kernel in kernels.values():
        fmt = _format(kernel)
        if fmt and _steps(kernel) and not kernel.profile.orders:
            for options in option_choices(kernel.contract):
                for fixed in scalars:
                    yield Hypothesis(kernel, options, fixed, kernel.profile, every=fmt)


def _format(kernel: Kernel) -> str:
    """The one format of its operands, where that is a narrow one."""
    formats = {kernel.format(o).name for o in (*kernel.inputs(), *kernel.outputs())}
    return formats.pop() if len(formats) == 1 and formats <= set(NARROW) else ""


def _steps(kernel: Kernel) -> bool:
    used, _, _ = autocontrols.uses(kernel)
    return bool(used) and all(bound.startswith(KNOWN) for bound in used.values())


def rounding_every_step(fmt: str) -> Callable[[Any], None]:
    """Sets up a reading that rounds the result of each step to `fmt`."""

    def setup(reading: Any) -> None:
        inside = False

        def rounded(value: Any) -> Any:
            if isinstance(value, Quantity):
                return reading.wrap(rounded(value.v))
            return reading._round("", value, fmt, "nearest_even", None, None)

        def step(plain: Callable[..., Any]) -> Callable[..., Any]:
            def taken(*given: Any, **more: Any) -> Any:
                nonlocal inside
                if inside:
                    # a part of the step, which no tensor holds
                    return plain(*given, **more)
                inside = True
                try:
                    result = plain(*given, **more)
                finally:
                    inside = False
                return rounded(result)

            return taken

        def mean(x: Quantity, axis: int = -1, **more: Any) -> Any:
            apart = reading.sum(x, axis, **more) / float(x.shape[axis])
            return reading.union(at_once(x, axis, **more), apart)

        def function(f: str, x: Quantity, **more: Any) -> Any:
            once = one_step(f, x, **more)
            if inside or f != "rsqrt":
                return once
            root = rounded(reading._function("sqrt", x.v, ROOT_ULPS))
            apart = rounded(plain_div(reading.const(1.0), root))
            return reading.union(once, reading.wrap(apart))

        at_once, one_step, plain_div = step(reading.mean), step(reading.function), reading.div
        for name in (*ARITHMETIC, *STEPS):
            setattr(reading, name, step(getattr(reading, name)))
        reading.mean, reading.function = mean, function

    return setup
