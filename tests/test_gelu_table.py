"""Lookups: literal tables, every code and every bf16 value, and tables that are refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from literal import kernel_and_case, refused

import contract.kernels.gelu
from contract import formats
from contract.case import find, make_case
from contract.errors import CaseError
from contract.kernels.gelu_table import code_entries, gelu_of_codes, gelu_of_words, word_entries
from contract.ranges import case_range

assert contract.kernels.gelu.gelu.name == "gelu"
CODES = np.array([[-128, -1, 0, 1, 127]])
TABLE = np.arange(256.0)


def test_code_minus_128_is_the_first_entry() -> None:
    rows = {"codes": CODES, "code_table": TABLE}
    right = [[0.0, 127.0, 128.0, 129.0, 255.0]]
    assert refused("gelu_table", rows, right, index="int8") == {"out": 0}
    table = torch.from_numpy(TABLE).bfloat16()
    assert gelu_of_codes(torch.from_numpy(CODES).to(torch.int8), table).tolist() == right
    for faulty in ([[128.0, 255.0, 0.0, 1.0, 127.0]], [[0.0, 126.0, 127.0, 128.0, 254.0]]):
        assert refused("gelu_table", rows, faulty, index="int8")["out"] >= 4
    assert refused("gelu_table", rows, [[1.0, 127.0, 128.0, 129.0, 255.0]], index="int8") == {
        "out": 1
    }


def test_every_bf16_value_finds_its_entry() -> None:
    words = np.arange(65_536)
    table = word_entries("tanh")
    rows = {"words": words.reshape(16, -1), "word_table": table}
    right = table.reshape(16, -1)
    assert refused("gelu_table", rows, right, index="bf16") == {"out": 0}
    signed = table[words ^ 0x8000].reshape(16, -1)
    assert refused("gelu_table", rows, signed, index="bf16")["out"] > 60_000
    out = gelu_of_words(torch.arange(65_536, dtype=torch.int32), torch.from_numpy(table).bfloat16())
    assert np.array_equal(out.double().numpy(), table, equal_nan=True)


@pytest.mark.parametrize("form", ["tanh", "erf"])
def test_entries_are_gelu_rounded_once(form: str) -> None:
    x = formats.decode(np.arange(1 << 16, dtype=np.uint16), formats.get("bf16"))
    # below -4 what 1 + tanh leaves of its sum is judged there, as 1e-6 of x
    kept = np.isfinite(x) & (x > -4.0)
    kernel = find("gelu", "once", {"form": form})
    row = x[kept][None]
    case = make_case(kernel, {"rows": 1, "n": row.shape[1]}, {"x": row})
    bits = formats.encode(word_entries(form)[kept][None], formats.get("bf16"))
    allowed = case_range(kernel, case)["out"]
    assert not allowed.refused(bits).any()
    other = formats.encode(
        word_entries("erf" if form == "tanh" else "tanh")[kept][None], formats.get("bf16")
    )
    assert allowed.refused(other).any()


def test_entries_of_codes() -> None:
    entries = code_entries(0.03125, "erf")
    want = {0: -4.0, 64: -2.0, 128: 0.0, 160: 1.0, 255: 127 / 32}
    for place, x in want.items():
        true = 0.5 * x * (1.0 + math.erf(x / math.sqrt(2.0)))
        assert entries[place] == formats.round_to(np.array([true]), "bf16")[0]


@pytest.mark.parametrize(
    ("call", "match"),
    [(lambda: code_entries(0.0, "tanh"), "scale 0.0"), (lambda: code_entries(math.nan, "erf"), "scale nan"),
     (lambda: code_entries(1.0, "sigmoid"), "form 'sigmoid'"), (lambda: word_entries(""), "form ''")],
)  # fmt: skip
def test_other_tables_are_refused(call: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        call()


def test_tables_of_another_length_and_words_outside_are_refused() -> None:
    with pytest.raises(CaseError, match="256 and 65,536 entries"):
        kernel_and_case("gelu_table", {"codes": CODES, "code_table": TABLE[:-1]}, index="int8")
    rows = {"words": [[65_536]], "word_table": np.zeros(65_536)}
    with pytest.raises(CaseError, match="words holds 65536; values are 0 to 65535"):
        kernel_and_case("gelu_table", rows, index="bf16")
