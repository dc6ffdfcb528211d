"""Gates of a gated delta layer: what the kernel must compute."""

from __future__ import annotations

from contract.readings.base import Quantity, Reading

# Where torch's softplus hands its argument on; 20 + log1p(exp(-20)) is 20 + 2^-29, which fp32 does not hold.
THRESHOLD = 20.0


def dn_gates(
    r: Reading, a: Quantity, b: Quantity, a_log: Quantity, dt_bias: Quantity
) -> dict[str, Quantity]:
    """beta = sigmoid(b), g = -exp(a_log) softplus(a + dt_bias).

    Args:
        a, b: (tokens, heads) bf16, projections of each token.
        a_log: (heads,) fp32, the logarithm of the head's rate of decay.
        dt_bias: (heads,) fp32.

    Rounding points:
        beta: bf16 (once) or fp32.
        g: fp32, always: the decay multiplies a state that is kept in fp32.

    Freedoms: exp and log1p within 2 fp32 ulps; softplus as log1p(exp(x)) below 20 and x above, or as
        max(x, 0) + log1p(exp(-|x|)).

    Specials: as the steps have them; softplus(x) is x for large x, whatever exp(x) is.

    Source: Yang, Kautz and Hatamizadeh, Gated Delta Networks, 2024, section 3.4; Gu and Dao, Mamba, 2023 (a_log, dt_bias).
    """
    x = a + dt_bias
    upper = r.log1p(r.exp(-r.abs(x)))
    softplus = r.union(r.softplus(x, threshold=THRESHOLD), r.maximum(x, 0.0) + upper)
    return {
        "beta": r.round("beta", r.sigmoid(b)),
        "g": r.round("g", -(r.exp(a_log) * softplus)),
    }
