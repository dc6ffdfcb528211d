"""One entry of a module, ready to be launched."""

from __future__ import annotations

from pathlib import PurePath

from contract.engines.ptx import build, flow, spin, together
from contract.engines.ptx.decode import Decoder
from contract.engines.ptx.decoded import Program
from contract.engines.ptx.faults import Malformed
from contract.engines.ptx.syntax import Module

__all__ = ["Program", "decode"]


def decode(module: Module, entry: str | None = None) -> Program:
    """The program of an entry; without a name, of the only one.

    Raises:
        Malformed: a name that is not declared, operands that do not fit, no such entry.
        Unsupported: an instruction that the executor does not know, with its line.
    """
    if entry is None and len(module.entries) != 1:
        raise Malformed(f"the module has entries {', '.join(module.entries) or '(none)'}: name one")
    name = entry or next(iter(module.entries))
    function = module.entries.get(name)
    if function is None:
        raise Malformed(f"the module has no entry {name}: it has {', '.join(module.entries)}")
    decoder = Decoder(module, function)
    decoder.function(function, {}, (name,), None)
    decoder.emit("exit", (), function.line, "(end of the entry)")
    program = decoder.finish()
    build.bind(program)
    program.sources = [
        (at, f"{PurePath(module.files[file]).name}:{line}" if line and file in module.files else "")
        for at, file, line in module.locations
    ]
    program.polls = spin.polls(program.blocks)
    together.plan(program)
    program.undefined = flow.maybe_undefined(program)
    return program
