"""GeGLU: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading
from contract.references.gelu import CUBIC, ROOT_TWO_OVER_PI

#: The same two constants as bf16 values: what MLX makes of a Python number that meets a bf16 array.
CUBIC_BF16 = float.fromhex("0x1.6ep-5")
ROOT_TWO_OVER_PI_BF16 = float.fromhex("0x1.98p-1")


def geglu(r: Reading, gate: Quantity, up: Quantity, constants: str) -> Quantity:
    """Gated GELU: y = gelu(gate) * up, with gelu in the tanh form.

    Args:
        gate, up: (rows, n) bf16, the products of the two input projections.
        constants: 'fp32' or 'bf16', the format in which 0.044715 and sqrt(2 / pi) are held.

    Rounding points, step by step:
        sq: gate squared (each_product only).
        cube: gate cubed; without `sq` it is one power, whose 24 bits an fp32 product holds.
        scaled: 0.044715 times the cube.
        inner: gate plus that.
        arg: sqrt(2 / pi) times that.
        tanh: its hyperbolic tangent.
        one_plus: 1 plus that.
        half: half the gate; exact but for subnormals, which the flush hides.
        gelu: half times one_plus, the activation.
        out: the activation times up.

    Freedoms: tanh within 2 fp32 ulps. A step that a profile does not round may be fused with the next one.

    Specials: as gelu; an infinity times a zero is NaN.

    Source: Shazeer, GLU Variants Improve Transformer, 2020.
    """
    k, c = (CUBIC_BF16, ROOT_TWO_OVER_PI_BF16) if constants == "bf16" else (CUBIC, ROOT_TWO_OVER_PI)
    cube = r.round("cube", r.round("sq", r.square(gate)) * gate)
    scaled = r.round("scaled", cube * k)
    inner = r.round("inner", gate + scaled)
    arg = r.round("arg", inner * c)
    squashed = r.round("tanh", r.tanh(arg, ulps=2))
    one_plus = r.round("one_plus", 1.0 + squashed)
    half = r.round("half", gate * 0.5)
    activated = r.round("gelu", half * one_plus)
    return r.round("out", activated * up)
