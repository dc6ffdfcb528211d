"""Shape lists that never cross an edge of a block, chunk or tile.

Blocks are read from the contract's parameters, from the launches of contract and implementation, and from the source of
an implementation: module constants and keywords whose name says block, chunk, tile or page, in the functions that its
call reaches inside its own module. A dim crosses an edge where its size is more than the block and no multiple of it;
where the contract's rules allow multiples alone, where it is two blocks or more. A block whose name ends in a dim's
(`BLOCK_N`, dim `n`) must be crossed by that dim, any other one by some dim.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contract.case import Kernel, kernels_of
from contract.declare import Contract, Implementation, Launch, Shape, served
from contract.lint.findings import Finding, short
from contract.lint.places import contract_place, place_of

NAME = re.compile(r"(?i)(^|_)(block|chunk|tile|page)(s|size|_size)?($|_)")
#: Sizes past a block that are tried to learn whether the rules allow a tail.
TAILS = 256
#: A vector load: a dim of which every size is a multiple has no tail of any vector.
VECTOR = 16


@dataclass(frozen=True)
class Block:
    """A block size, and where it is said: `dim` where its name ends in one."""

    name: str
    size: int
    source: str
    place: tuple[str, int]
    dim: str = ""


def findings(
    contract: Contract, items: Sequence[Implementation], *, own: bool = True
) -> tuple[list[Finding], int]:
    """The findings of these implementations of a contract, with `own` of itself too, and how many blocks were looked at."""
    found: dict[tuple[str, str], Finding] = {}
    blocks: set[Block] = set()
    for kernel in kernels_of(contract):
        shapes = [kernel.sized(shape) for shape in _declared(contract)]
        for block in _blocks(kernel, items, own):
            blocks.add(block)
            if finding := _of_block(kernel, block, shapes):
                found.setdefault((block.name, block.source), finding)
    for finding in _of_dims(contract) if own else ():
        found.setdefault((finding.reason, ""), finding)
    return list(found.values()), len(blocks)


def _declared(contract: Contract) -> tuple[Shape, ...]:
    """Every shape whose rows are compared; those of stress and exact rows leave the row dims out."""
    return (*contract.shapes, *contract.awkward, *contract.stress, *contract.exact_shapes)


def _blocks(kernel: Kernel, items: Sequence[Implementation], own: bool) -> Iterator[Block]:
    contract, here = kernel.contract, contract_place(kernel.contract)
    if own:
        for key, value in kernel.parameters.items():
            if NAME.search(key) and value.isdecimal():
                yield _block(contract, key, int(value), f"parameter {key}={value}", here)
        yield from _of_launches(contract, contract.launches, "", here)
    for item in items:
        if item.profile == kernel.profile.name and served(item.parameters, kernel.parameters):
            place = place_of(item.place) or here
            yield from _of_launches(contract, item.launches, item.name, place)
            yield from _of_source(contract, item)


def _of_launches(
    contract: Contract, launches: tuple[Launch, ...], name: str, place: tuple[str, int]
) -> Iterator[Block]:
    for launch in launches:
        for key, value in launch.arguments.items():
            if NAME.search(key) and type(value) is int:
                of = f" of {name}" if name else ""
                yield _block(
                    contract, key, value, f"launch {launch.name}{of}: {key}={value}", place
                )


def _block(contract: Contract, name: str, size: int, source: str, place: tuple[str, int]) -> Block:
    dims = {dim.lower() for operand in contract.operands for dim in operand.dims}
    last = name.lower().rpartition("_")[2]
    return Block(name, size, source, place, last if last in dims else "")


def _of_block(kernel: Kernel, block: Block, shapes: list[dict[str, int]]) -> Finding | None:
    contract = kernel.contract
    stated = {dim for shape in (*contract.shapes, *contract.awkward) for dim in shape}
    dims = [block.dim] if block.dim else sorted(stated)
    if block.size < 2 or not dims:
        return None
    tails = {dim: _tail(kernel, dim, block.size, shapes) for dim in dims}
    for shape in shapes:
        for dim in dims:
            size = shape.get(dim, 0)
            whole = size % block.size == 0
            if size > block.size and (not whole or tails[dim] is None):
                return None
    largest = {dim: max(shape.get(dim, 0) for shape in shapes) for dim in dims}
    dim = block.dim or max(largest, key=lambda d: largest[d])
    add = tails[dim] or 2 * block.size
    several = largest[dim] > block.size
    what = f"has a tail of a block of {block.size}" if several else "has a second block"
    return Finding(
        *block.place,
        "shape-never-crosses",
        f"{block.source}: no declared shape of {kernel.name} {what} ({dim} is at most {largest[dim]}): a kernel that"
        " leaves it out is green",
        f"add an awkward shape with {dim} = {add}",
    )


def _tail(kernel: Kernel, dim: str, block: int, shapes: list[dict[str, int]]) -> int | None:
    """The least size past one block that is no multiple of it and that the rules allow; None where they allow none."""
    contract = kernel.contract
    stated = [dict(shape) for shape in (*contract.shapes, *contract.awkward) if dim in shape]
    for given in stated[:4]:
        for more in range(1, min(block, TAILS)):
            if _allowed(kernel, {**given, dim: block + more}):
                return block + more
    return None


def _allowed(kernel: Kernel, shape: Mapping[str, int]) -> bool:
    try:
        return not kernel.contract.broken_sizes(kernel.sized(shape))
    except Exception:  # noqa: BLE001 - a size that a contract's own function cannot take is none it allows
        return False


def _of_dims(contract: Contract) -> Iterator[Finding]:
    """Dims of which every declared size is a multiple of a vector, where the rules allow others."""
    kernel = kernels_of(contract)[0]
    shapes = _declared(contract)
    for dim in sorted({dim for shape in shapes for dim in shape}):
        sizes = {int(shape[dim]) for shape in shapes if dim in shape}
        step = math.gcd(*sizes)
        if len(sizes) < 2 or step % VECTOR:
            # one size alone is the model's own, and no list
            continue
        odd = min(sizes) + 1
        if any(_allowed(kernel, {**shape, dim: odd}) for shape in shapes if dim in shape):
            yield Finding(
                *contract_place(contract),
                "shape-never-crosses",
                f"every declared {dim} of {contract.name} is a multiple of {step}: no vector, block or warp has a tail",
                f"add an awkward shape with {dim} = {odd}",
            )


# -- blocks of an implementation's source


def _of_source(contract: Contract, item: Implementation) -> Iterator[Block]:
    call: Callable[..., Any] = inspect.unwrap(getattr(item.call, "cls", item.call))
    try:
        file = inspect.getsourcefile(call)
    except TypeError:
        file = None
    if file is None:
        return
    source = _tree(file)
    reached = _reached(source, getattr(call, "__name__", ""))
    names = {n.id for function in reached for n in ast.walk(function) if isinstance(n, ast.Name)}
    for node in source.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name):
            size = _whole(node.value)
            if size and target.id in names and NAME.search(target.id):
                yield _block(
                    contract,
                    target.id,
                    size,
                    _said(item, target.id, size),
                    (short(file), node.lineno),
                )
    for function in reached:
        for call_node in (n for n in ast.walk(function) if isinstance(n, ast.Call)):
            for one in call_node.keywords:
                size = _whole(one.value)
                if one.arg and size and NAME.search(one.arg):
                    place = (short(file), one.value.lineno)
                    yield _block(contract, one.arg, size, _said(item, one.arg, size), place)


def _said(item: Implementation, name: str, size: int) -> str:
    return f"{item.name}: {name} = {size}"


def _whole(node: ast.expr | None) -> int:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if type(value) is int else 0


_trees: dict[str, ast.Module] = {}


def _tree(file: str) -> ast.Module:
    if file not in _trees:
        try:
            _trees[file] = ast.parse(Path(file).read_bytes())
        except (OSError, SyntaxError, ValueError):
            _trees[file] = ast.Module([], [])
    return _trees[file]


def _reached(tree: ast.Module, name: str) -> list[ast.AST]:
    """The functions and classes of a module that one of them names, and those that these name."""
    own = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    todo, found = [name], {}
    while todo:
        one = todo.pop()
        if one in own and one not in found:
            found[one] = own[one]
            todo += [n.id for n in ast.walk(own[one]) if isinstance(n, ast.Name)]
    return list(found.values())
