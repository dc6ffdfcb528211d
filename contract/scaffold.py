"""`contract init`: a first kernel with its contract, one red and one green control, in contracts/.

Never contract/, which would hide this package from everything that runs in that folder.
"""

from __future__ import annotations

from pathlib import Path

from contract.errors import UsageError

FOLDER = "contracts"

KERNEL = '''\
"""scaled_add: out = x * scale + y, rounded once to bfloat16.

A contract (what may come out), its reference (how that follows), and an implementation to judge.
"""

import contract


def scaled_add(r, x, y, scale):
    """Scaled sum: out = x * scale + y.

    Rounding points:
        out: bfloat16, to nearest even, once.
    """
    return r.round("out", x * scale + y)


def exact_rows(generator, shape, scalars, parameters):
    """Integers: product and sum are exact in float32, so that one output is right, bit for bit."""
    rows, d = shape["rows"], shape["d"]
    x = generator.integers(-255, 256, (rows, d)).astype(float)
    # Multiples of 256: the sum needs more bits than bfloat16 has, and often lies on a tie.
    y = 256.0 * generator.integers(-128, 129, (rows, d))
    return {"x": x, "y": y}


contract.register(
    contract.Contract(
        name="scaled_add",
        family="elementwise",
        reference=scaled_add,
        operands=(
            contract.tensor("x", "rows d", "bf16"),
            contract.tensor("y", "rows d", "bf16"),
            contract.output("out", "rows d", "bf16"),
        ),
        scalars=(contract.Scalar("scale", (1.25, 0.5)),),
        profiles=(contract.Profile("once", points={"out": "bf16"}),),
        row_dims=("rows",),
        # The sizes that your model uses, and the odd ones that break kernels.
        shapes=({"rows": 16, "d": 1024}, {"rows": 128, "d": 1024}),
        awkward=({"rows": 1, "d": 1}, {"rows": 3, "d": 65}),
        stress=({"d": 64},),
        exact=exact_rows,
        exact_shapes=({"d": 64},),
        summary="x * scale + y",
    )
)


# Any callable will do: operands and scalars arrive by name, as torch tensors and floats.
@contract.implementation("scaled_add", profile="once", name="torch")
def scaled_add_torch(x, y, scale):
    return (x.float() * scale + y.float()).bfloat16()
'''

CONTROLS = '''\
"""Planted kernels of scaled_add: the gates are worth what they do to these."""

import contract


@contract.red("scaled_add", profile="once", gate="exact")
def rounds_the_product(x, y, scale):
    """Computes in bfloat16 throughout: the product is rounded before the sum is."""
    return x * scale + y


@contract.green("scaled_add", profile="once")
def fused(x, y, scale):
    """A legal variant: multiply and add may be one operation."""
    return y.float().add(x.float(), alpha=scale).bfloat16()
'''

CONFIG = """\
[tool.contract]
suites = ["contracts/"]
require = ["torch"]
"""


def init(folder: Path) -> list[str]:
    """Write the two files below folder/contracts; returns the lines that say what to do next.

    Raises:
        UsageError: a file of that name is there already, or the folder cannot be written.
    """
    files = {
        folder / FOLDER / "scaled_add.py": KERNEL,
        folder / FOLDER / "scaled_add_controls.py": CONTROLS,
    }
    for path in files:
        if path.exists():
            raise UsageError(
                f"{path} exists; nothing was written (move it away, or give another folder)"
            )
    try:
        # an empty records folder: `limits` then asks for its first measurement
        (folder / FOLDER / "records").mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: cannot be written: {error.strerror}"
        ) from error
    wrote = [f"wrote {path}" for path in files]
    wrote.append(f"wrote {folder / FOLDER / 'records'}/")
    return [
        *wrote,
        "",
        f"Next, add to {folder / 'pyproject.toml'}:",
        "",
        *(f"    {line}" for line in CONFIG.splitlines()),
        "",
        "Then:",
        "",
        *([f"    cd {folder}"] if folder != Path(".") else []),
        "    contract run scaled_add --update-records",
        "    contract run scaled_add",
        "    contract show scaled_add",
        "",
        f"Without a pyproject.toml: contract run {folder / FOLDER}/ --update-records, then without the option",
    ]
