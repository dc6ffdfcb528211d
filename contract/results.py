"""What a run produces: check results and the report that holds them. Plain facts; rendering is in contract.report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: Every outcome there is.
OUTCOMES = (
    "pass",
    "fail",
    "crash",
    "timeout",
    "out_of_memory",
    "not_run",
    "not_applicable",
    "red_as_planted",
    "green_as_planted",
    "missed",
    "red_elsewhere",
)
GOOD = frozenset({"pass", "red_as_planted", "green_as_planted", "not_applicable"})


@dataclass(frozen=True)
class CheckResult:
    """One finished check.

    Attributes:
        id: `rms_norm,gain=1+w/once/torch/stress`, `rms_norm/two_step/reference`, `rms_norm/two_step/red.drop-normed`.
        kernel: contract name with its non-default enumerated parameters, as in the id.
        implementation: None for the reference and for controls.
        gate: gate name; for a control the gate that caught it, or None.
        control: 'red.NAME' or 'green.NAME', else None.
        outputs_compared: outputs whose bits were compared.
        one_value_share: share of compared outputs whose range is one value; None where nothing was compared.
        widest_ulp: widest range in ulps of max(|y|, rms of the row).
        detail: one or more lines; for a red: smallest row, element, bits, allowed bits, dropped point.
        compiled: of an engine that runs compiled code, with what it was compiled and for what: 'triton 3.9.0, sm_80, fusion off'.
        recorded: entries for the record of compiled kernels, as JSON (contract.compiledbook).
        captured: rows among what was compared that a model gave to the kernel.
        power: rounding point or option -> share of outputs that leave their range (reference checks).
        measured: resource -> count, of a host implementation at the gate limits.
        bits: digests of the 'inputs' and 'outputs' of all calls that were compared (contract.bits); empty where the bits may
            move from run to run.
        sketch: a few hundred outputs for the plots of a report (contract.sketch), as JSON; '' where nobody asked.
    """

    id: str
    kernel: str
    profile: str
    outcome: str
    implementation: str | None = None
    engine: str = "host"
    gate: str | None = None
    control: str | None = None
    outputs_compared: int = 0
    one_value_share: float | None = None
    widest_ulp: float | None = None
    detail: str = ""
    reproduce: str = ""
    from_receipt: bool = False
    required: bool = False
    seconds: float = 0.0
    power: Mapping[str, float] = field(default_factory=dict)
    planted: str = ""
    measured: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    captured: int = 0
    compiled: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    bits: Mapping[str, str] = field(default_factory=dict)
    sketch: str = ""

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r}; outcomes are {OUTCOMES}")

    @property
    def good(self) -> bool:
        """Whether the check is neither red nor missing where it is required."""
        return self.outcome in GOOD or (self.outcome == "not_run" and not self.required)


@dataclass
class Report:
    """All checks of a run, in the order of their ids' collection, with what the run was."""

    checks: list[CheckResult] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    limit_problems: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seed: int = 0
    effort: str = "default"
    interrupted: bool = False
