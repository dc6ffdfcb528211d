"""The gates: one kind of check each, a function of a kernel's bench and a subject."""

from __future__ import annotations

from collections.abc import Callable

from contract.gates import bounds, exact, invariance, limits, shapes, stress
from contract.judge import Bench, Subject, Tally

#: Gates of an implementation in the order in which they run.
GATES: dict[str, Callable[[Bench, Subject], Tally]] = {
    "shapes": shapes.run,
    "stress": stress.run,
    "exact": exact.run,
    "invariance": invariance.run,
    "bounds": bounds.run,
    "limits": limits.run,
}


def run(name: str, bench: Bench, subject: Subject) -> Tally:
    """Run one gate. A gate that compares nothing fails, unless it is declared not_applicable with its reason."""
    kernel = bench.kernel
    reason = kernel.declared(kernel.contract.not_applicable, name) or kernel.declared(
        kernel.profile.not_applicable, name
    )
    if reason:
        return Tally().stop("not_applicable", reason)
    tally = GATES[name](bench, subject)
    if not tally.outcome:
        if not tally.compared:
            tally.empty = True
            return tally.stop("fail", f"the gate {name} compared no output")
        tally.outcome = "pass"
    return tally
