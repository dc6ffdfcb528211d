"""Gate `bounds`: nothing outside an operand is read or written, inputs keep their bits, and outputs are in range.

In range, too: a launcher of compiled code chooses it by where its operands lie, and here they lie in every way.
"""

from __future__ import annotations

from contract.judge import Bench, Failure, Subject, Tally, compare, same_bits


def run(bench: Bench, subject: Subject) -> Tally:
    """With NaN and with finite poison around every operand and in its gaps: the same bits, nothing written."""
    tally = Tally()
    kernel = bench.kernel
    launches = {launch.layout: launch for launch in reversed(subject.launches)}
    alive = set(range(len(bench.options)))
    for name, index in _cases(bench):
        case = bench.cases(name)[index]
        for launch in launches.values():
            seen = []
            for poison in ("finite", "nan"):
                outcome, detail, _, outputs = subject.call(case, launch, poison)
                where = f"{case.label}, launch {launch.name}"
                if outcome:
                    return tally.stop(outcome, f"{detail} ({where})")
                tally.compared += sum(int(b.size) for b in outputs.values())
                seen.append(outputs)
            differ = same_bits(kernel, seen[0], seen[1])
            if differ:
                tally.failure = Failure("bounds", case, launch, seen[1], bench.options[0])
                return tally.stop(
                    "fail",
                    f"poison around the inputs moves {differ} outputs: it reads outside an operand ({where})",
                )
            if not compare(bench, subject, name, index, launch, seen[0], tally, alive):
                return tally
    return tally


def _cases(bench: Bench) -> list[tuple[str, int]]:
    """Name of the set and place in it."""
    shapes = bench.cases("shapes")
    places = {id(case): place for place, case in enumerate(shapes)}
    cases = [("shapes", places[id(case)]) for case in bench.small_cases()]
    cases += [("exact", place) for place in range(len(bench.cases("exact")[:1]))]
    return cases[:1] if bench.effort == "quick" else cases
