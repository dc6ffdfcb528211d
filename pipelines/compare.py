"""How an output differs from the expected one: rows of features, or logits of positions.

Values are read as float64, a block of rows at a time. Every measure is NaN where it would have to be made of NaN or an
infinity, and no limit of `contract.pipelines.gates` holds for NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from contract.errors import ContractError
from contract.pipelines.guard import measuring
from contract.pipelines.run_record import json_value

# Values of a block: some arrays of 32 MiB of float64.
_BLOCK = 1 << 22
# Squares of a row's squares that are nearer to zero have lost bits; fp32's least row has 2^-596.
_LEAST = 2.0**-900
TOP = 5


class ComparisonError(ContractError):
    """Two outputs that cannot be compared: other shapes, nothing in them, no numbers."""


@dataclass(frozen=True)
class Disagreement:
    """A position whose largest logit is another token's; the lowest index of equal ones counts."""

    position: int
    actual: int
    expected: int
    #: The expected largest logit less the second one.
    margin: float


@dataclass(frozen=True)
class Logits:
    """What only logits are asked for."""

    #: Correlation of a position's logits, mean over positions, and the worst; NaN where a position's are all equal.
    pearson: float
    worst_pearson: float
    worst_pearson_position: int
    #: Share of positions whose largest logit is the same token's.
    top1: float
    disagreements: tuple[Disagreement, ...]
    #: The largest expected margin of a position that disagrees; 0 where none does.
    widest: float
    #: Share of the expected five largest that are among the actual five largest: mean and worst.
    top5: float
    worst_top5: float
    #: KL(expected || actual) of the softmax of a position's logits in nats: mean and worst.
    kl: float
    worst_kl: float
    worst_kl_position: int


@dataclass(frozen=True)
class Comparison:
    """An output against the expected one; a row is the last axis, all others counted through."""

    name: str
    shape: tuple[int, ...]
    #: Cosine of a row, mean over rows, and the worst; 1 for two rows of zeros, 0 where one of them is.
    cosine: float
    worst_cosine: float
    worst_cosine_row: int
    #: sum(actual * expected) / sum(expected^2): the factor that fits actual to expected best.
    gain: float
    #: |actual - expected| / |expected| of the worst row.
    worst_error: float
    worst_error_row: int
    #: Largest |actual - expected| of an element, with its row and feature.
    max_error: float
    max_error_at: tuple[int, int]
    #: Standard deviation of the expected values, the yardstick of max_error.
    spread: float
    #: Elements of the same bits in percent; None where the dtypes differ.
    equal_bits: float | None
    #: Elements of the same value in percent; -0 is 0, and NaN is nothing.
    equal_values: float
    #: Elements that are NaN or infinite in either.
    nonfinite: int
    #: Rows that lie nearer to the expected row before, or after, than to their own: a shifted output. None for one row.
    nearer_previous: int | None
    nearer_next: int | None
    logits: Logits | None = None

    def line(self) -> str:
        """The measures for people, in one line."""
        bits = "" if self.equal_bits is None else f", equal bits {self.equal_bits:.2f} %"
        text = (
            f"{self.name} {'x'.join(map(str, self.shape))}: cosine {self.cosine:.6f} (worst {self.worst_cosine:.6f}, row"
            f" {self.worst_cosine_row}), gain {self.gain:.6f}, worst row {self.worst_error_row} off by"
            f" {self.worst_error:.3g}, max error {self.max_error:.3g} at {list(self.max_error_at)} (std"
            f" {self.spread:.3g}), equal values {self.equal_values:.2f} %{bits}"
        )
        if self.nonfinite:
            text += f", {self.nonfinite} NaN or infinite"
        for count, which in ((self.nearer_previous, "previous"), (self.nearer_next, "next")):
            if count:
                text += f", {count} rows nearer to the {which} one"
        return text + (_logits_line(self.logits) if self.logits else "")

    def to_json(self) -> dict[str, Any]:
        """The measures as JSON values; what is not finite as 'nan', 'inf' or '-inf'."""
        found: dict[str, Any] = json_value(dataclasses.asdict(self))
        return found


def _logits_line(x: Logits) -> str:
    lost = ", ".join(
        f"{d.position}: {d.actual} for {d.expected}, margin {d.margin:.3g}"
        for d in x.disagreements[:3]
    )
    more = f", {len(x.disagreements) - 3} more" if len(x.disagreements) > 3 else ""
    return (
        f", Pearson {x.pearson:.6f} (worst {x.worst_pearson:.6f}), top-1 {x.top1:.4f}"
        f"{f' ({lost}{more})' if lost else ''}, top-5 {x.top5:.3f}, KL {x.kl:.3g} (worst {x.worst_kl:.3g}, position"
        f" {x.worst_kl_position})"
    )


def compare(actual: Any, expected: Any, name: str = "output") -> Comparison:
    """Compare two torch tensors or arrays of one shape, (..., features).

    Raises:
        ComparisonError: other shapes, no elements, or values that are no real numbers.
    """
    return _compare(actual, expected, name, logits=False)


def compare_logits(actual: Any, expected: Any, name: str = "logits") -> Comparison:
    """Compare two torch tensors or arrays of logits of one shape, (..., vocab); a position is a row.

    Raises:
        ComparisonError: as `compare`, and for a vocabulary of one token.
    """
    return _compare(actual, expected, name, logits=True)


def top_margin(logits: Any) -> float:
    """The largest logit less the second one; NaN where one is NaN or +inf, or fewer than one is above -inf.

    Args:
        logits: all axes but the last of size 1.

    Raises:
        ComparisonError: more than one row, or fewer than two logits.
    """
    x = _Rows(logits, "logits")
    if x.rows != 1 or x.features < 2:
        raise ComparisonError(
            f"logits of shape {x.shape}; the margin is of one row of two or more logits"
        )
    with np.errstate(invalid="ignore"):
        return float(_margins(x.values(0, 1))[0])


class _Rows:
    """Rows of features of a tensor or an array, read as float64 or as bytes by blocks."""

    def __init__(self, x: Any, name: str) -> None:
        self.tensor = isinstance(x, torch.Tensor)
        x = x if self.tensor else np.asarray(x)
        self.shape, self.dtype = tuple(x.shape), str(x.dtype).removeprefix("torch.")
        if not x.ndim or 0 in self.shape:
            raise ComparisonError(
                f"{name} has shape {self.shape}: nothing to compare; give rows of features"
            )
        with measuring():
            self.x = (x.detach() if self.tensor else x).reshape(-1, self.shape[-1])
        self.rows, self.features = (int(n) for n in self.x.shape)
        if not self._real():
            raise ComparisonError(f"{name} has dtype {self.dtype}; give real numbers")

    def _real(self) -> bool:
        # bfloat16 and the like are extension types to NumPy, of kind V
        x = self.x
        if x.is_complex() if self.tensor else x.dtype.kind not in "biufV" or x.dtype.names:
            return False
        try:
            self.values(0, 1)
        except (TypeError, ValueError, RuntimeError):
            return False
        return True

    def values(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        part = self.x[max(start, 0) : stop]
        if not self.tensor:
            return np.asarray(part, np.float64)
        with measuring():
            found: np.ndarray[Any, np.dtype[np.float64]] = part.to("cpu", torch.float64).numpy()
        return found

    def bits(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """(rows, features, bytes of an element)."""
        part = self.x[start:stop]
        if self.tensor:
            with measuring():
                part = part.cpu().contiguous().view(torch.uint8).numpy()
        else:
            part = np.ascontiguousarray(part).view(np.uint8)
        found: np.ndarray[Any, np.dtype[np.uint8]] = part.reshape(stop - start, self.features, -1)
        return found


def _compare(actual: Any, expected: Any, name: str, *, logits: bool) -> Comparison:
    a, e = _Rows(actual, f"{name}, actual"), _Rows(expected, f"{name}, expected")
    if a.shape != e.shape:
        raise ComparisonError(
            f"{name}: actual has shape {a.shape}, expected has {e.shape}; compare outputs of one shape"
        )
    if logits and a.features < 2:
        raise ComparisonError(f"{name} has shape {a.shape}; logits are of two or more tokens")
    parts: dict[str, list[Any]] = {}
    # what is not finite is told by its count and by NaN, not by a warning
    with np.errstate(all="ignore"):
        for found in _blocks(a, e, logits):
            for key, value in found.items():
                parts.setdefault(key, []).append(value)
        m = {key: np.concatenate(value) for key, value in parts.items()}
        return _summary(a, e, name, m, logits)


def _blocks(a: _Rows, e: _Rows, logits: bool) -> Iterator[dict[str, Any]]:
    size = max(1, _BLOCK // a.features)
    for start in range(0, a.rows, size):
        stop = min(start + size, a.rows)
        x, y = a.values(start, stop), e.values(start, stop)
        found = _row_measures(x, y)
        if a.dtype == e.dtype:
            found["bits"] = (a.bits(start, stop) == e.bits(start, stop)).all(-1).sum(-1)
        # the first row has none before it, the last none after it
        before, after = e.values(start - 1, stop - 1), e.values(start + 1, stop + 1)
        found["previous"] = _nearer(x[len(x) - len(before) :], before, y[len(x) - len(before) :])
        found["next"] = _nearer(x[: len(after)], after, y[: len(after)])
        yield {**found, **(_logit_measures(x, y) if logits else {})}


def _row_measures(x: Any, y: Any) -> dict[str, Any]:
    error = np.abs(x - y)
    xx, yy, xy = (x * x).sum(-1), (y * y).sum(-1), (x * y).sum(-1)
    # zero by its elements: squares of small ones vanish
    zero_x, zero_y = ~x.any(-1), ~y.any(-1)
    either = zero_x | zero_y
    # one root: exactly 1 for equal rows; NaN where the product leaves float64
    product = xx * yy
    cosine = np.minimum(xy / np.sqrt(np.where(product > _LEAST, product, np.nan)), 1.0)
    return {
        "cosine": np.where(either, (zero_x & zero_y).astype(np.float64), cosine),
        "relative": np.where(zero_x & zero_y, 0.0, np.sqrt((error * error).sum(-1) / yy)),
        "error": error.max(-1),
        "feature": error.argmax(-1),
        "xy": xy,
        "yy": yy,
        "equal": (x == y).sum(-1),
        "nonfinite": (~(np.isfinite(x) & np.isfinite(y))).sum(-1),
        "mean": y.mean(-1),
        "squares": ((y - y.mean(-1, keepdims=True)) ** 2).sum(-1),
    }


def _nearer(x: Any, other: Any, own: Any) -> Any:
    """Whether rows of x lie nearer to those of `other` than to their own; so does one with NaN."""
    return ~(((x - other) ** 2).sum(-1) >= ((x - own) ** 2).sum(-1))


def _logit_measures(x: Any, y: Any) -> dict[str, Any]:
    first, second = x.argmax(-1), y.argmax(-1)
    k = min(TOP, x.shape[-1])
    shared = [len(_top(u, k) & _top(v, k)) / k for u, v in zip(x, y, strict=True)]
    # NaN has no place in an order
    known = np.isfinite(x).all(-1) & np.isfinite(y).all(-1)
    p, q = _log_softmax(y), _log_softmax(x)
    return {
        "pearson": _pearson(x, y),
        "actual": first,
        "expected": second,
        "margin": _margins(y),
        "top": np.where(known, shared, np.nan),
        "known": known,
        # rounding may leave it a little below its least value
        "kl": np.where(known, np.maximum((np.exp(p) * (p - q)).sum(-1), 0.0), np.nan),
    }


def _pearson(x: Any, y: Any) -> Any:
    flat = (x == x[:, :1]).all(-1) | (y == y[:, :1]).all(-1)
    x, y = x - x.mean(-1, keepdims=True), y - y.mean(-1, keepdims=True)
    found = (x * y).sum(-1) / np.sqrt((x * x).sum(-1)) / np.sqrt((y * y).sum(-1))
    return np.where(flat, np.nan, np.clip(found, -1.0, 1.0))


def _log_softmax(x: Any) -> Any:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _margins(x: Any) -> Any:
    two = np.partition(x, -2, axis=-1)[:, -2:]
    # NumPy sorts NaN to the end: it is the largest here, and makes the difference NaN
    return np.where(np.isposinf(two[:, 1]), np.nan, two[:, 1] - two[:, 0])


def _top(x: Any, k: int) -> set[int]:
    """The k largest, of equal ones those of the lowest index."""
    least = np.partition(x, -k)[-k]
    above = np.flatnonzero(x > least)
    return {*above.tolist(), *np.flatnonzero(x == least)[: k - len(above)].tolist()}


def _worst(values: Any, largest: bool) -> int:
    """The place of the worst value; NaN is worse than any number."""
    bad = np.isnan(values)
    return int(bad.argmax() if bad.any() else values.argmax() if largest else values.argmin())


def _summary(a: _Rows, e: _Rows, name: str, m: dict[str, Any], logits: bool) -> Comparison:
    elements = a.rows * a.features
    cosine, relative = _worst(m["cosine"], False), _worst(m["relative"], True)
    error = _worst(m["error"], True)
    # within rows and between them: no difference of large sums
    between = a.features * ((m["mean"] - m["mean"].mean()) ** 2).sum()
    return Comparison(
        name=name,
        shape=a.shape,
        cosine=float(m["cosine"].mean()),
        worst_cosine=float(m["cosine"][cosine]),
        worst_cosine_row=cosine,
        gain=float(m["xy"].sum() / m["yy"].sum()),
        worst_error=float(m["relative"][relative]),
        worst_error_row=relative,
        max_error=float(m["error"][error]),
        max_error_at=(error, int(m["feature"][error])),
        spread=float(np.sqrt((m["squares"].sum() + between) / elements)),
        equal_bits=100.0 * float(m["bits"].sum()) / elements if "bits" in m else None,
        equal_values=100.0 * float(m["equal"].sum()) / elements,
        nonfinite=int(m["nonfinite"].sum()),
        nearer_previous=int(m["previous"].sum()) if a.rows > 1 else None,
        nearer_next=int(m["next"].sum()) if a.rows > 1 else None,
        logits=_logits(m) if logits else None,
    )


def _logits(m: dict[str, Any]) -> Logits:
    # a position with NaN agrees with nothing
    lost = np.flatnonzero((m["actual"] != m["expected"]) | ~m["known"])
    found = tuple(
        Disagreement(int(i), int(m["actual"][i]), int(m["expected"][i]), float(m["margin"][i]))
        for i in lost
    )
    pearson, kl = _worst(m["pearson"], False), _worst(m["kl"], True)
    return Logits(
        pearson=float(m["pearson"].mean()),
        worst_pearson=float(m["pearson"][pearson]),
        worst_pearson_position=pearson,
        top1=1.0 - len(found) / len(m["actual"]),
        disagreements=found,
        widest=float(np.where(m["known"], m["margin"], np.nan)[lost].max(initial=0.0)),
        top5=float(m["top"].mean()),
        worst_top5=float(m["top"].min()),
        kl=float(m["kl"].mean()),
        worst_kl=float(m["kl"][kl]),
        worst_kl_position=kl,
    )
