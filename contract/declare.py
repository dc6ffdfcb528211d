"""What a suite declares: operands, scalars, profiles, launches and the contract that joins them.

Frozen facts only. Every declaration is checked where it is written: the error names the value and the repair.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, get_args

from contract import formats
from contract.engines import HOST, UNNAMED
from contract.errors import CaseError, DeclarationError
from contract.orders import Tree

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# What an id may hold (pytest ids with brackets or colons cannot be selected in every version).
ID_PART = re.compile(r"[A-Za-z0-9_.,=+-]+\Z")

#: How a rounding point may round.
MODES: tuple[str, ...] = get_args(formats.Mode)

GATE_NAMES = ("shapes", "stress", "exact", "invariance", "bounds", "limits")

#: Signature of a sampler of typical data: (generator, shape) -> float64 values, rounded to the operand's format after.
Typical = Callable[[Any, tuple[int, ...]], Any]

Shape = Mapping[str, int]


def check_format(fmt: str) -> None:
    """A known format, or `{parameter}`: the format that an enumerated parameter names."""
    if not (fmt.startswith("{") and fmt.endswith("}")):
        formats.get(fmt)


def _frozen(mapping: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
    return MappingProxyType(dict(mapping or {}))


def require_name(kind: str, name: object) -> str:
    """The name, or a DeclarationError that says what a name may be."""
    if not isinstance(name, str) or not NAME.match(name):
        raise DeclarationError(
            f"{kind} name {name!r}: use letters, digits and underscores, not starting with a digit"
        )
    return name


@dataclass(frozen=True)
class Operand:
    """One tensor of a kernel.

    Attributes:
        name: the keyword under which implementations receive it; for outputs the key of the result.
        dims: named dimensions, () for a single value.
        format: format of storage (contract.formats); a profile may replace it.
        role: 'in', 'out' or 'inout' (read and overwritten: its result is an output of the same name).
        typical: sampler of ordinary data, N(0, 1) unless given; () -> the values an integer format draws uniformly.
        when: enumerated parameter values under which the operand exists, e.g. {"gain": ("w", "1+w")}; an operand may
            be declared again, with other dims, for values under which it does not.
        stage: an output that an implementation may leave out (None); the points only it shows are then reported.
        observed: as a stage, what follows is judged from its bits, but every implementation must give it (a state).
        in_place_of: an output that may be written over this input (name of the input).
        finite: the kernel is defined for finite values only; no row holds a NaN or an infinity.
        positive: it is defined for finite values above zero only (a cap, a divisor).
        below: for indices and other codes: every value lies in least .. below - 1, a number or the size of a dim; "dim+1"
            for counts, of which the last is the size itself.
        least: the smallest of those values, 0 but for codes such as the -1 that marks padding.
    """

    name: str
    dims: tuple[str, ...]
    format: str = "bf16"
    role: str = "in"
    typical: Typical | None = None
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    stage: bool = False
    observed: bool = False
    in_place_of: str | None = None
    finite: bool = False
    below: str | int | None = None
    least: int = 0
    positive: bool = False

    def __post_init__(self) -> None:
        require_name("operand", self.name)
        for dim in self.dims:
            require_name(f"operand {self.name}: dim", dim)
        check_format(self.format)
        if self.role not in ("in", "out", "inout"):
            raise DeclarationError(
                f"operand {self.name}: role {self.role!r}; use 'in', 'out' or 'inout'"
            )
        if (self.stage or self.observed) and self.role != "out":
            raise DeclarationError(f"operand {self.name}: a stage is an output; set role='out'")
        if self.positive:
            object.__setattr__(self, "finite", True)
        if self.least and self.below is None:
            raise DeclarationError(
                f"operand {self.name}: least={self.least} without below; say where its codes end, too"
            )
        object.__setattr__(self, "when", _frozen({k: tuple(v) for k, v in dict(self.when).items()}))

    def limit(self, shape: Shape) -> int | None:
        """One past the largest value that the operand may hold; None where its format alone bounds it."""
        if not isinstance(self.below, str):
            return self.below
        dim, _, more = self.below.partition("+")
        return int(shape[dim]) + int(more or 0)


def tensor(name: str, dims: str, format: str = "bf16", **more: Any) -> Operand:
    """An input operand: `tensor("x", "rows d", "bf16")`."""
    return Operand(name, tuple(dims.split()), format, **more)


def output(name: str, dims: str, format: str = "bf16", **more: Any) -> Operand:
    """An output operand."""
    return Operand(name, tuple(dims.split()), format, role="out", **more)


@dataclass(frozen=True)
class Scalar:
    """A number the caller states (eps, cap): passed by keyword, honoured by every implementation.

    `values` are used in turn over the cases of a gate; the first is the default.
    """

    name: str
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        require_name("scalar", self.name)
        values = tuple(self.values)
        if not values:
            raise DeclarationError(f"scalar {self.name}: no value; give at least the default")
        object.__setattr__(self, "values", values)

    @property
    def default(self) -> float:
        return self.values[0]


@dataclass(frozen=True)
class Profile:
    """Named values of all rounding points and options.

    Attributes:
        name: called after what is rounded: once, two_step, each_op, float32.
        points: rounding point -> format, or None where the profile keeps the value unrounded.
        formats: operand -> format, where it differs from the operand's own.
        options: option -> the value it fixes, or a tuple of alternatives, one of which must explain all outputs.
        overflow: rounding point -> overflow policy 'inf' | 'nan' | 'saturate', where the format's own is not meant.
        modes: rounding point -> how it rounds (contract.formats.Mode), where that is not the reference's own, nearest even.
        orders: sum or product -> the one `Tree` that it is computed in, where the reference leaves its order free.
        users: who computes like this, for listing.
        vacuous: rounding point or option -> why no input can show it; checked: its power must be exactly 0.
            `NAME,gain=none` says it of one parameter value.
        not_applicable: gate -> reason, where the contract's gate means nothing under this profile.
        when: enumerated parameter values under which the profile differs from the others.
        unless: values that together it is not for: {"block": ("128",), "offsets": ("yes",)}.
        keeps_subnormals: True where no step flushes.
    """

    name: str
    points: Mapping[str, str | None]
    formats: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    overflow: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    orders: Mapping[str, Tree] = field(default_factory=dict)
    users: str = ""
    vacuous: Mapping[str, str] = field(default_factory=dict)
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    keeps_subnormals: bool = False

    def __post_init__(self) -> None:
        require_name("profile", self.name)
        for point, fmt in dict(self.points).items():
            require_name(f"profile {self.name}: rounding point", point)
            if fmt is not None:
                check_format(fmt)
        for policy in dict(self.overflow).values():
            if policy not in ("inf", "nan", "saturate"):
                raise DeclarationError(
                    f"profile {self.name}: overflow {policy!r}; use 'inf', 'nan' or 'saturate'"
                )
        for point, mode in dict(self.modes).items():
            if mode not in MODES or self.points.get(point) is None:
                raise DeclarationError(
                    f"profile {self.name}: {point} rounds {mode!r}; name a point that it rounds, and one of"
                    f" {', '.join(MODES)}"
                )
        for name, order in dict(self.orders).items():
            if not isinstance(order, Tree):
                raise DeclarationError(
                    f"profile {self.name}: order of {name} is {order!r}; give a contract.orders.Tree"
                )
        for attribute in (
            "points",
            "formats",
            "options",
            "overflow",
            "modes",
            "orders",
            "vacuous",
            "not_applicable",
            "when",
            "unless",
        ):
            object.__setattr__(self, attribute, _frozen(getattr(self, attribute)))

    def rounded_points(self) -> tuple[str, ...]:
        """The points at which this profile rounds, in order."""
        return tuple(point for point, fmt in self.points.items() if fmt is not None)


@dataclass(frozen=True)
class Launch:
    """One way to call that must not change what is computed.

    Attributes:
        name: shown in messages.
        layout: 'contiguous', 'strided' (rows with a gap), 'offset' (base not aligned to 16 bytes).
        batch: rows per call; 0 is all at once.
        threads: CPU threads.
        arguments: further keyword arguments for the implementation (block, split, num_warps).
        skew: where an engine models approximate instructions: 0 their nominal results, -1 and 1 the ends of the documented
            bounds.
        configuration: which configuration of an autotuned kernel runs.
        graph: on a GPU the call is recorded into a graph, and replayed.
        blocks: where an engine chooses: how the blocks of a grid take their turns: 'together', 'in_turn' or 'reversed'.
    """

    name: str
    layout: str = "contiguous"
    batch: int = 0
    threads: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict)
    skew: int = 0
    configuration: int = 0
    graph: bool = False
    blocks: str = "together"

    def __post_init__(self) -> None:
        if not ID_PART.match(self.name):
            raise DeclarationError(
                f"launch name {self.name!r}: use letters, digits and . , = + - _"
            )
        if self.layout not in ("contiguous", "strided", "offset"):
            raise DeclarationError(
                f"launch {self.name}: layout {self.layout!r}; use contiguous, strided or offset"
            )
        if self.batch < 0 or self.threads < 1:
            raise DeclarationError(f"launch {self.name}: batch >= 0 and threads >= 1 are needed")
        object.__setattr__(self, "arguments", _frozen(self.arguments))


DEFAULT_LAUNCHES = (
    Launch("plain"),
    Launch("strided", layout="strided"),
    Launch("offset", layout="offset"),
    Launch("one-row", batch=1),
    Launch("three-rows", batch=3),
    Launch("two-threads", threads=2),
)


@dataclass(frozen=True)
class Contract:
    """Operands, shapes, reference, profiles, rows and launches of one kernel.

    Attributes:
        name, family: kernel name (the same in every folder) and family for listing.
        reference: f(r, *inputs, **scalars, **parameters, **options) -> output or {output: value}; see contract.readings.
        operands, scalars: what a caller passes.
        parameters: enumerated parameter -> values; the first is the default and has no place in ids.
        options: option -> values that exist; a profile fixes one or lists alternatives.
        profiles: the first is the default.
        row_dims: dims whose index makes a row (all operands without them are shared by the rows).
        shapes: real sizes, as {dim: size}; `awkward` the odd ones; `stress` those of stress rows (row dims left out).
        column_dim: a dim along which outputs do not depend on each other, so that it may be cut into chunks.
        exact: function (generator, shape, scalars, parameters) -> operands by name as float64, candidates of exact
            rows; the exact gate keeps those whose range is proven to be one value. None with `not_applicable["exact"]`.
        exact_shapes: shapes of exact rows (rows = candidates).
        freedoms: freedom -> source of its bound; every freedom that the reference uses must stand here.
        not_applicable: gate -> reason.
        honest_nulls: null kernel -> why it is right for this contract.
        invariant: what must not move bits on ordinary rows: batch, position, launch, layout.
        shares: operand or quantity that rows share by contract (per-tensor scale): rows then depend on each other.
        shares_when: enumerated parameter values under which they do; always where empty.
        rules: what sizes must satisfy beyond agreeing, in words -> predicate of {dim: size}: {"k is a multiple of 32":
            lambda s: s["k"] % 32 == 0}. A case that breaks one is refused with those words.
        sizes: dims whose size follows from others and from the parameters, in order: {"words": lambda s, p:
            s["k"] * int(p["bits"]) // 32}. Shapes leave them out; where a call has them they are checked. With an entry
            for k as well, from words, a call finds k where no input has that dim.
    """

    name: str
    family: str
    reference: Callable[..., Any]
    operands: tuple[Operand, ...]
    profiles: tuple[Profile, ...]
    row_dims: tuple[str, ...]
    shapes: tuple[Shape, ...]
    awkward: tuple[Shape, ...] = ()
    stress: tuple[Shape, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    launches: tuple[Launch, ...] = DEFAULT_LAUNCHES
    column_dim: str | None = None
    exact: Callable[..., Mapping[str, Any]] | None = None
    exact_shapes: tuple[Shape, ...] = ()
    freedoms: Mapping[str, str] = field(default_factory=dict)
    not_applicable: Mapping[str, str] = field(default_factory=dict)
    honest_nulls: Mapping[str, str] = field(default_factory=dict)
    invariant: tuple[str, ...] = ()
    shares: str = ""
    shares_when: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    summary: str = ""
    rules: Mapping[str, Callable[[Shape], bool]] = field(default_factory=dict)
    sizes: Mapping[str, Callable[[Shape, Mapping[str, str]], int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_name("contract", self.name)
        require_name(f"contract {self.name}: family", self.family)
        if not callable(self.reference):
            raise DeclarationError(
                f"contract {self.name}: reference must be a function f(r, inputs..., scalars...)"
            )
        for attribute in (
            "operands",
            "profiles",
            "row_dims",
            "shapes",
            "awkward",
            "stress",
            "scalars",
            "launches",
            "exact_shapes",
            "invariant",
        ):
            object.__setattr__(self, attribute, tuple(getattr(self, attribute)))
        for attribute in (
            "parameters", "options", "freedoms", "not_applicable", "honest_nulls", "rules", "sizes",
        ):  # fmt: skip
            object.__setattr__(self, attribute, _frozen(getattr(self, attribute)))
        self._check_names()
        self._check_shapes()
        self._check_profiles()

    def _check_names(self) -> None:
        where = f"contract {self.name}"
        names = (
            [o.name for i, o in enumerate(self.operands) if not apart(o, self.operands[:i])]
            + [s.name for s in self.scalars]
            + list(self.parameters)
            + list(self.options)
        )
        for name in names:
            if names.count(name) > 1:
                raise DeclarationError(
                    f"{where}: {name!r} is declared {names.count(name)} times; every name once"
                )
        sizes = {dim for operand in self.operands for dim in operand.dims}
        for operand in self.operands:
            if isinstance(operand.below, str) and operand.below.removesuffix("+1") not in sizes:
                raise DeclarationError(
                    f"{where}: operand {operand.name} lies below {operand.below!r}, no dim; dims are {sorted(sizes)}"
                )
        if not self.outputs():
            raise DeclarationError(
                f"{where}: no output; declare one with output(name, dims, format)"
            )
        for operand in self.operands:
            for key, values in operand.when.items():
                if key not in self.parameters or not set(values) <= set(self.parameters[key]):
                    raise DeclarationError(
                        f"{where}: operand {operand.name} exists when {key}={values}; no such parameter value"
                    )
            if operand.in_place_of is not None and operand.in_place_of not in [
                o.name for o in self.inputs()
            ]:
                raise DeclarationError(
                    f"{where}: {operand.name} in place of {operand.in_place_of!r}, which is no input"
                )
        for parameter, values in self.parameters.items():
            if not values or len(set(values)) != len(values):
                raise DeclarationError(
                    f"{where}: parameter {parameter} needs distinct values, got {values!r}"
                )
            for value in values:
                if not ID_PART.match(str(value)):
                    raise DeclarationError(
                        f"{where}: parameter {parameter}={value!r} cannot stand in an id"
                    )
        stated = [
            *self.not_applicable.items(),
            *(item for p in self.profiles for item in p.not_applicable.items()),
        ]
        for gate, reason in stated:
            if gate.partition(",")[0] not in GATE_NAMES or not reason:
                raise DeclarationError(
                    f"{where}: not_applicable {gate!r} needs a gate of {', '.join(GATE_NAMES)} and a reason"
                )

    def _check_shapes(self) -> None:
        where = f"contract {self.name}"
        dims = {dim for operand in self.operands for dim in operand.dims}
        if not self.shapes:
            raise DeclarationError(f"{where}: no shape; a gate that compares nothing fails")
        for dim in self.row_dims:
            if dim not in dims:
                raise DeclarationError(
                    f"{where}: row dim {dim!r} is in no operand; dims are {sorted(dims)}"
                )
        stated = dims - set(self.sizes)
        for dim in self.sizes:
            if dim not in dims:
                raise DeclarationError(
                    f"{where}: size of {dim!r}, which is in no operand; dims are {sorted(dims)}"
                )
        for shape in (*self.shapes, *self.awkward):
            if not stated <= set(shape) <= dims or any(int(size) < 1 for size in shape.values()):
                raise DeclarationError(
                    f"{where}: shape {dict(shape)} must give a size >= 1 to each of {sorted(stated)}"
                )
            full = self.sized(shape, self.full_parameters({}))
            if set(full) != dims:
                raise DeclarationError(
                    f"{where}: shape {dict(shape)} leaves {sorted(dims - set(full))} open; state what they follow from"
                )
            for words, holds in self.rules.items():
                try:
                    holds(full)
                except KeyError as error:
                    raise DeclarationError(
                        f"{where}: rule {words!r} asks for {error}, no dim; dims are {sorted(dims)}"
                    ) from None
            if broken := self.broken_sizes(full):
                raise DeclarationError(f"{where}: shape {dict(shape)} breaks its rule: {broken}")
        for shape in (*self.stress, *self.exact_shapes):
            if not set(shape) <= dims or not stated - set(shape) <= set(self.row_dims):
                raise DeclarationError(
                    f"{where}: stress or exact shape {dict(shape)} must size every dim but {self.row_dims}"
                )
        if self.exact is None and "exact" not in self.not_applicable:
            raise DeclarationError(
                f"{where}: no exact rows; give exact=..., or not_applicable={{'exact': reason}}"
            )

    def _check_profiles(self) -> None:
        where = f"contract {self.name}"
        if not self.profiles:
            raise DeclarationError(f"{where}: no profile; declare at least one")
        points = [tuple(profile.points) for profile in self.profiles]
        names = [profile.name for profile in self.profiles]
        if len(set(names)) != len(names):
            raise DeclarationError(f"{where}: profile names {names} are not distinct")
        for profile, own in zip(self.profiles, points, strict=True):
            if set(own) != set(points[0]):
                raise DeclarationError(
                    f"{where}: profile {profile.name} lists points {sorted(own)}, {names[0]} lists {sorted(points[0])};"
                    " every profile gives each point a format or None"
                )
            for operand in profile.formats:
                if operand not in [o.name for o in self.operands]:
                    raise DeclarationError(
                        f"{where}: profile {profile.name} gives a format to {operand!r}, no operand of that name"
                    )
            if set(profile.options) != set(self.options):
                raise DeclarationError(
                    f"{where}: profile {profile.name} fixes options {sorted(profile.options)}, the contract has {sorted(self.options)}"
                )
            for name in profile.orders:
                if name not in self.freedoms:
                    raise DeclarationError(
                        f"{where}: profile {profile.name} orders {name!r}; freedoms are {sorted(self.freedoms)}"
                    )
            for option, value in profile.options.items():
                for one in value if isinstance(value, tuple) else (value,):
                    if one not in self.options[option]:
                        raise DeclarationError(
                            f"{where}: profile {profile.name}: {option}={one!r}; values are {self.options[option]}"
                        )
            for key, values in (*profile.when.items(), *profile.unless.items()):
                if not set(values) <= set(self.parameters.get(key, ())):
                    raise DeclarationError(
                        f"{where}: profile {profile.name} depends on {key}={values}; no such parameter value"
                    )
            for name in profile.vacuous:
                bare = name.partition(",")[0].partition("=")[0]
                bare = bare.removeprefix("drop-").removeprefix("truncate-").removeprefix("nearest-")
                if bare not in (*profile.points, *self.options, *self.parameters):
                    raise DeclarationError(
                        f"{where}: profile {profile.name}: vacuous {name!r} is no point, option or parameter"
                        " (write POINT, drop-POINT, truncate-POINT, OPTION or NAME=VALUE)"
                    )

    def sized(self, shape: Shape, parameters: Mapping[str, str]) -> dict[str, int]:
        """The shape with the dims that follow from others.

        Raises:
            CaseError: a dim that is there and has another size.
        """
        full = dict(shape)
        # twice: a dim that the first round found must lead back to those it follows from
        for dim, size in (*self.sizes.items(), *self.sizes.items()):
            try:
                own = size(full, parameters)
            except KeyError:
                # what it follows from is not known
                continue
            if full.setdefault(dim, own) != own:
                raise CaseError(
                    f"contract {self.name}: {dim} = {full[dim]}, sizes"
                    f" {', '.join(f'{d} = {n}' for d, n in full.items() if d != dim)} need {own}"
                    + (
                        f" ({', '.join(f'{k}={v}' for k, v in parameters.items())})"
                        if parameters
                        else ""
                    )
                )
        return full

    def broken_rule(self, shape: Shape) -> str:
        """The first rule that these sizes do not satisfy, in words; '' where they satisfy all.

        A rule about a dim that no operand has under the case's parameters says nothing.
        """
        for words, holds in self.rules.items():
            with contextlib.suppress(KeyError):
                if not holds(shape):
                    return words
        return ""

    def broken_sizes(self, shape: Shape) -> str:
        """The first rule that these sizes do not satisfy, with the sizes that it looks at and whose they are."""
        broken = self.broken_rule(shape)
        if not broken:
            return ""
        looked = _Looked(shape)
        self.rules[broken](looked)
        said = []
        for dim in looked.dims:
            owners = dict.fromkeys(o.name for o in self.operands if dim in o.dims)
            said.append(f"{dim} = {shape[dim]}" + (f" (of {', '.join(owners)})" if owners else ""))
        return f"{broken}; here {', '.join(said)}" if said else broken

    def inputs(self, parameters: Mapping[str, str] | None = None) -> tuple[Operand, ...]:
        """Operands that are read, in order; those that exist under `parameters` where given."""
        return tuple(o for o in self.operands if o.role != "out" and exists(o, parameters))

    def outputs(self, parameters: Mapping[str, str] | None = None) -> tuple[Operand, ...]:
        """Operands that are written, in order."""
        return tuple(o for o in self.operands if o.role != "in" and exists(o, parameters))

    def profile(self, name: str) -> Profile:
        """The profile of that name, or a DeclarationError that lists them."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        raise DeclarationError(
            f"contract {self.name}: no profile {name!r}; profiles are {', '.join(p.name for p in self.profiles)}"
        )

    def full_parameters(self, given: Mapping[str, str]) -> dict[str, str]:
        """Every enumerated parameter with its value, defaults filled in."""
        for key, value in given.items():
            if not self.parameters:
                raise DeclarationError(
                    f"contract {self.name}: it has no parameters; take {key}= out"
                )
            if key not in self.parameters:
                raise DeclarationError(
                    f"contract {self.name}: no parameter {key!r}; parameters are {list(self.parameters)}"
                )
            if value not in self.parameters[key]:
                raise DeclarationError(
                    f"contract {self.name}: {key}={value!r}; values are {self.parameters[key]}"
                )
        return {key: given.get(key, values[0]) for key, values in self.parameters.items()}


class _Looked(dict[str, int]):
    """Sizes that note which of them a rule looks at."""

    def __init__(self, sizes: Shape) -> None:
        super().__init__(sizes)
        self.dims: dict[str, None] = {}

    def __getitem__(self, dim: str) -> int:
        self.dims[dim] = None
        return super().__getitem__(dim)


def apart(operand: Operand, earlier: Sequence[Operand]) -> bool:
    """Whether operands of its name stand before it, and no parameter value has two of them: one name, other dims."""
    same = [o for o in earlier if o.name == operand.name]
    return bool(same) and all(
        any(not set(values) & set(o.when.get(key, values)) for key, values in operand.when.items())
        for o in same
    )


def exists(operand: Operand | Profile, parameters: Mapping[str, str] | None) -> bool:
    """Whether the operand or profile is there under these enumerated parameters (all are, where None)."""
    if parameters is None:
        return True
    if isinstance(operand, Profile) and operand.unless and served(operand.unless, parameters):
        return False
    return served(operand.when, parameters)


@dataclass(frozen=True)
class Implementation:
    """Code that claims to meet a contract.

    Attributes:
        kernel, profile, name: `rms_norm`, `two_step`, `torch`; third parties `transformers.Qwen3RMSNorm`.
        call: f(**operands, **scalars, **parameters it names, **launch arguments) -> tensor, tuple or {output: tensor}.
        parameters: enumerated parameter values it serves, as {name: values}; all that the contract has where absent.
        engine: what runs it.
        requires: modules that the call imports; where the top package of one is missing, the outcome is not_run.
            A worker starts with all of them imported, so name the module that takes long, not its package.
        order: freedom -> tighter declaration, e.g. {"mean": 24} for a depth; it is judged by its own.
        launches: further launches of its own.
        repeatable: False where atomics may move bits from run to run.
        invariant: what it promises not to move on ordinary rows (as in the contract).
        returns_view_of: inputs that the output may share memory with.
        budget: a measured budget's environment, or None.
        fusion: whether the compiler of GPU code may fuse multiplications with additions; None: what the launcher says.
        nominal: the source for which approximate instructions are judged at their nominal results alone; '' at both ends of
            their bounds, too.
        module, place: the module that declares it, and FILE:LINE.
    """

    kernel: str
    profile: str
    name: str
    call: Callable[..., Any]
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    engine: str = HOST
    requires: tuple[str, ...] = ()
    order: Mapping[str, Any] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    repeatable: bool = True
    invariant: tuple[str, ...] = ()
    in_place: bool = False
    module: str = ""
    place: str = field(default="", compare=False)
    fusion: bool | None = None
    nominal: str = ""

    def __post_init__(self) -> None:
        if not ID_PART.match(self.name):
            raise DeclarationError(
                f"implementation name {self.name!r}: use letters, digits and . , = + - _"
            )
        if not callable(self.call):
            raise DeclarationError(
                f"implementation {self.kernel}/{self.profile}/{self.name}: not callable"
            )
        object.__setattr__(
            self, "parameters", _frozen({k: tuple(v) for k, v in dict(self.parameters).items()})
        )
        object.__setattr__(self, "order", _frozen(self.order))

    @property
    def label(self) -> str:
        """Its name as ids have it: with the engine, where that is not one that any machine has."""
        return self.name if self.engine in UNNAMED else f"{self.name}+{self.engine}"


@dataclass(frozen=True)
class Control:
    """A planted kernel.

    Attributes:
        kernel, profile, name: `rms_norm`, `once`, `one_pass`; its id is `.../red.one_pass` or `.../green.NAME`.
        colour: 'red' (one fault, must fail at its gate) or 'green' (legal, must pass).
        gates: the gate named for it, or the set of automatic and null controls; a green one passes every gate.
        call: as an implementation's, or for automatic controls a function of the case (see contract.controls_auto).
        parameters: the enumerated parameter values it is planted under.
        kind: 'planted', 'automatic' or 'null'.
        engine, fusion, nominal: as an implementation's.
    """

    kernel: str
    profile: str
    name: str
    colour: str
    gates: tuple[str, ...]
    call: Callable[..., Any]
    parameters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    kind: str = "planted"
    expect: str = ""
    order: Mapping[str, Any] = field(default_factory=dict)
    module: str = ""
    place: str = field(default="", compare=False)
    engine: str = HOST
    fusion: bool | None = None
    nominal: str = ""

    def __post_init__(self) -> None:
        if not ID_PART.match(self.name):
            raise DeclarationError(
                f"control name {self.name!r}: use letters, digits and . , = + - _"
            )
        if self.colour not in ("red", "green"):
            raise DeclarationError(
                f"control {self.name}: colour {self.colour!r}; use 'red' or 'green'"
            )
        if self.colour == "red" and not self.gates:
            raise DeclarationError(f"control {self.name}: name the gate that must catch it")
        object.__setattr__(
            self, "parameters", _frozen({k: tuple(v) for k, v in dict(self.parameters).items()})
        )


def only_for(when: Mapping[str, tuple[str, ...]]) -> str:
    """The parameters that a profile or an operand is for, in words."""
    return " and ".join(f"{key} = {' or '.join(values)}" for key, values in when.items())


def scope(profile: Profile) -> str:
    """What a profile is for, in words; '' where it is for all parameters."""
    parts = [f"only for {only_for(profile.when)}"] if profile.when else []
    parts += [f"not for {only_for(profile.unless)}"] if profile.unless else []
    return ", ".join(parts)


def served(parameters: Mapping[str, tuple[str, ...]], values: Mapping[str, str]) -> bool:
    """Whether an implementation or control declared for `parameters` serves these enumerated values."""
    return all(values.get(key) in allowed for key, allowed in parameters.items())


def cases_of(values: Iterable[Sequence[str]]) -> list[tuple[str, ...]]:
    """Cartesian product of parameter values, in order."""
    result: list[tuple[str, ...]] = [()]
    for choices in values:
        result = [(*head, choice) for head in result for choice in choices]
    return result
