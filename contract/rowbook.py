"""Rows that failed once: kept beside the suite's records, replayed first.

records/rows/NAME.json of a suite in a checkout; of an installed suite, or one without records, the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from contract import recordbook
from contract.checks import Check
from contract.store import MAX_ROWS, StoredRow, read_rows, write_rows


class RowBook:
    """Failing rows of every suite of a run."""

    def __init__(self, store_root: Path):
        self.store_root = store_root

    def path(self, module: str, kernel: str) -> Path:
        """Where the rows of one contract lie."""
        folder = recordbook.folder_of(module)
        if folder is None or "site-packages" in folder.parts:
            return self.store_root / "rows" / f"{kernel}.json"
        return folder / "rows" / f"{kernel}.json"

    def text(self, module: str, kernel: str) -> str:
        """What the stress gate depends on besides its seed."""
        paths = dict.fromkeys(
            [self.path(module, kernel), self.store_root / "rows" / f"{kernel}.json"]
        )
        return "".join(path.read_text(errors="replace") for path in paths if path.is_file())

    def rows_for(self, check: Check) -> list[dict[str, Any]]:
        """The rows to replay for a check's contract, as JSON."""
        name = check.spec["name"]
        found = []
        for path in dict.fromkeys(
            [self.path(check.module, name), self.store_root / "rows" / f"{name}.json"]
        ):
            for row in read_rows(path):
                found.append(
                    {
                        "id": row.id,
                        "path": str(path),
                        "shape": dict(row.shape),
                        "scalars": dict(row.scalars),
                        "note": row.note,
                        "operands": {
                            k: {
                                "dtype": x.dtype.name,
                                "shape": list(x.shape),
                                "bits": x.reshape(-1).tolist(),
                            }
                            for k, x in row.operands.items()
                        },
                    }
                )
        return found

    def add(self, module: str, row: dict[str, Any]) -> None:
        """Keep a failing row: newest first, at most MAX_ROWS a contract, one of each case."""
        path = self.path(module, row["id"].split("/")[0].split(",")[0])
        operands = {
            k: np.array(v["bits"], v["dtype"]).reshape(v["shape"])
            for k, v in row["operands"].items()
        }
        new = StoredRow(row["id"], row["shape"], operands, row["scalars"], row["note"])
        kept = [r for r in read_rows(path) if not _same(r, new)]
        write_rows(path, [new, *kept][:MAX_ROWS])


def _same(a: StoredRow, b: StoredRow) -> bool:
    return (
        a.id == b.id
        and dict(a.shape) == dict(b.shape)
        and all(k in b.operands and np.array_equal(x, b.operands[k]) for k, x in a.operands.items())
    )
