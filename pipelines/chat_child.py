"""Renders one chat template in a process of its own; run as a file, by chat.py alone.

A template is a program out of a file of weights. jinja2's sandbox keeps it from files and from the inside of Python, but not
from `9**9**9`, strings doubled in a loop or loops in loops: those end with this process, at the limits set here.

stdin: {"path": [...], "template": ..., "variables": {...}, "seconds": ..., "memory": ..., "characters": ...} as JSON;
stdout: {"text": ...} or {"error": ...}.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any, NoReturn


def main() -> None:
    given = json.load(sys.stdin)
    sys.path[:] = given["path"]
    try:
        answer = {"text": render(given)}
    except MemoryError:
        answer = {"error": f"it needs more than {given['memory'] >> 20} MiB"}
    except Exception as error:  # noqa: BLE001 - a template raises what it likes
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    json.dump(answer, sys.stdout)


def render(given: dict[str, Any]) -> str:
    """The text; raises whatever jinja2 or the template does."""
    from jinja2.exceptions import SecurityError, TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Environment(ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
            # jinja2's own prints as nothing until it is used further
            raise SecurityError(f"attribute {attribute!r} of {type(obj).__name__} is not allowed")

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        # jinja2's own writes < and > for HTML
        return json.dumps(value, ensure_ascii=False, indent=indent)

    # what transformers gives its templates
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    limit(given["seconds"], given["memory"])
    pieces, left = [], given["characters"]
    for piece in environment.from_string(given["template"]).generate(**given["variables"]):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise ValueError(f"more than {given['characters']} characters")
    return "".join(pieces)


def limit(seconds: int, memory: int) -> None:
    """Processor time and address space of this process, where the system has such limits."""
    try:
        import resource
    except ImportError:
        return
    for which, value in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, memory)):
        hard = resource.getrlimit(which)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (most, hard))


if __name__ == "__main__":
    main()
