"""Records of mutants: arguments for those that no gate can refuse, and the score of each implementation.

records/NAME.json has them beside the resources, as an object `mutants` that a file without any lacks:

    {"arguments": [{"diff": "0123456789abcdef", "verdict": "equal", "argument": "..."}],
     "scores": [{"implementation": "torch", "count": 20, "seed": 0, "killed": 19, "survived": 0}]}

An argument says of the changed lines whose hash is `diff` why they compute the same whatever the inputs are (`equal`, and
then no output of any gate may move), or which freedom the contract leaves them (`freedom`). It holds for
every kernel of the folder whose implementation has these lines. A score is of so many mutants (0: of all) chosen by that
seed, of all kernels that the implementation serves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from contract.errors import StoreError

VERDICTS = ("equal", "freedom")
_ARGUMENT = {"diff": str, "verdict": str, "argument": str}
_SCORE = {
    "implementation": str,
    "count": int,
    "seed": int,
    "killed": int,
    "survived": int,
}
_DIGEST = re.compile(r"[0-9a-f]{16}\Z")


class Argument(NamedTuple):
    """Why a mutant is not refused: the verdict, and the words."""

    verdict: str
    text: str


def check(path: Path, book: Any) -> None:
    """Refuse an object that is not as above.

    Raises:
        StoreError: naming file and field.
    """
    if not isinstance(book, dict) or set(book) != {"arguments", "scores"}:
        raise StoreError(f"record {path}: mutants needs exactly arguments and scores")
    for name, fields in (("arguments", _ARGUMENT), ("scores", _SCORE)):
        if not isinstance(book[name], list):
            raise StoreError(f"record {path}: mutants.{name} is no list")
        for i, entry in enumerate(book[name]):
            where = f"record {path}: mutants.{name}[{i}]"
            if not isinstance(entry, dict) or set(entry) != set(fields):
                raise StoreError(f"{where} needs exactly the fields {', '.join(fields)}")
            for field, kind in fields.items():
                if type(entry[field]) is not kind or (kind is int and entry[field] < 0):
                    raise StoreError(f"{where}.{field} is {entry[field]!r}, not {kind.__name__}")
    seen: dict[str, int] = {}
    for i, entry in enumerate(book["arguments"]):
        where = f"record {path}: mutants.arguments[{i}]"
        if not _DIGEST.match(entry["diff"]) or entry["verdict"] not in VERDICTS:
            raise StoreError(
                f"{where} needs the 16 digits that `contract mutate` prints, and a verdict of {', '.join(VERDICTS)}"
            )
        if not entry["argument"].strip():
            raise StoreError(f"{where} has no argument: say why it is {entry['verdict']}")
        if (first := seen.setdefault(entry["diff"], i)) != i:
            raise StoreError(f"{where} is for the same diff as arguments[{first}]")


def arguments(folder: Path | None) -> dict[str, Argument]:
    """The arguments of all files of a records folder, by the hash of their diff.

    Raises:
        StoreError: a file that is no record; a diff that two files argue about.
    """
    from contract.recordbook import read

    found: dict[str, Argument] = {}
    for path in sorted(folder.glob("*.json")) if folder is not None else ():
        for entry in read(path).get("mutants", {}).get("arguments", ()):
            if entry["diff"] in found:
                raise StoreError(f"record {path}: another file argues about {entry['diff']}, too")
            found[entry["diff"]] = Argument(entry["verdict"], entry["argument"])
    return found


def drop(data: Mapping[str, Any], score: Mapping[str, Any]) -> str:
    """What is to be said where a score is lower than the recorded one of the same choice; '' where it is not."""
    for entry in data.get("mutants", {}).get("scores", ()):
        if _choice(entry) != _choice(score):
            continue
        old, new = _of(entry), _of(score)
        # killed / of, without a division
        if score["killed"] * old < entry["killed"] * new:
            return (
                f"the score fell: {score['killed']} of {new} are killed, the record has {entry['killed']} of {old};"
                " give the contract rows that show the difference, or run with --update-records"
            )
    return ""


def update(path: Path, score: Mapping[str, Any]) -> None:
    """Write a score into a record file (atomically), in the place of the implementation's old one."""
    from contract.compiledbook import dumped
    from contract.recordbook import read
    from contract.store import atomic_write_text

    data = read(path)
    book = data.setdefault("mutants", {"arguments": [], "scores": []})
    others = [one for one in book["scores"] if one["implementation"] != score["implementation"]]
    book["scores"] = sorted([*others, dict(score)], key=lambda one: str(one["implementation"]))
    check(path, book)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, dumped(data))


def _of(score: Mapping[str, Any]) -> int:
    return int(score["killed"]) + int(score["survived"])


def _choice(score: Mapping[str, Any]) -> tuple[Any, ...]:
    return score["implementation"], score["count"], score["seed"]


__all__ = ["Argument", "arguments", "check", "drop", "update"]
