"""Softmax-weighted sums at 200 bits: only the weights are rounded, against the maximum their gauge names."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from contract.attention import Softmax
from contract.endpoints import Array
from contract.exactround import round_mpf


def softmax_av_audit(s: Array, v: Array, mask: Any, spec: Softmax) -> tuple[Array, Array]:
    """o (..., Q, D) and the log-sum-exp (..., Q, 1) as object arrays; an unknown gauge is read as the final maximum."""
    live = np.broadcast_to(np.asarray(True) if mask is None else mask, s.shape)
    v = np.broadcast_to(v, (*s.shape[:-2], *v.shape[-2:]))
    o = np.empty((*s.shape[:-1], v.shape[-1]), object)
    lse = np.empty((*s.shape[:-1], 1), object)
    for row in np.ndindex(*s.shape[:-1]):
        keys = np.flatnonzero(live[row])
        scores = s[row]
        if not keys.size and spec.empty == "mean":
            keys, scores = np.arange(s.shape[-1]), np.full(s.shape[-1], mpmath.mpf(0), object)
        o[row], lse[(*row, 0)] = _row(scores, v[row[:-1]], keys, spec)
    return o, lse


def _row(s: Array, v: Array, keys: Array, spec: Softmax) -> tuple[Any, Any]:
    if not keys.size:
        value = mpmath.mpf(0 if spec.empty == "zeros" else "nan")
        return [value] * v.shape[-1], mpmath.mpf("-inf" if spec.empty == "zeros" else "nan")
    if any(mpmath.isnan(s[j]) for j in keys):
        nan = mpmath.mpf("nan")
        return [nan] * v.shape[-1], nan
    top = max(s[j] for j in keys)
    if mpmath.isinf(top):
        nan = mpmath.mpf("nan")
        return [nan] * v.shape[-1], nan
    total, rounded = mpmath.mpf(0), {}
    for block in spec.gauge.blocks(len(s)):
        inside = [j for j in keys if block.start <= j < block.stop]
        first = block.start // spec.gauge.split * spec.gauge.split if spec.gauge.split else 0
        seen = [s[j] for j in keys if first <= j < block.stop]
        own = max(seen) if spec.gauge.kind == "running" and seen else top
        for j in inside:
            e = mpmath.exp(s[j] - top)
            rounded[j] = e
            if spec.p_format is not None:
                exact = mpmath.exp(s[j] - own)
                p = mpmath.mpf(round_mpf(exact, spec.p_format, spec.p_mode))  # type: ignore[arg-type]
                if spec.low_format is not None:
                    p += round_mpf(exact - p, spec.low_format, spec.low_mode)  # type: ignore[arg-type]
                rounded[j] = p * mpmath.exp(own - top)
            total += rounded[j] if spec.sums == "rounded" else e
    o = [sum(rounded[j] * v[j, d] for j in keys) / total for d in range(v.shape[-1])]
    return o, top + mpmath.log(total)
