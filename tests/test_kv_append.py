"""Appending to a cache on literal rows: one slot is written, codes end at 127."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from one_output import refused

from contract.autocontrols import changes
from contract.case import find
from contract.errors import DeclarationError
from contract.kernels.kv_append import kv_append_int8_torch, kv_append_torch

NAN, INF = np.nan, np.inf


def test_exactly_one_slot_is_written() -> None:
    cache = np.arange(6.0).reshape(1, 3, 1, 2)
    inputs = {"cache": cache, "new": np.array([[[9.0, -0.0]]]), "position": np.array([7])}
    kernel = find("kv_append", None, {"ring": "yes"})
    right = np.array([0.0, 1.0, 9.0, -0.0, 4.0, 5.0]).reshape(cache.shape)
    assert refused(kernel, inputs, right, name="cache") == 0
    assert refused(kernel, inputs, right + 0.0, name="cache") == 1
    assert refused(kernel, inputs, np.roll(right, 2, 1), name="cache") > 0
    assert refused(kernel, inputs, cache, name="cache") == 2


@pytest.mark.parametrize("rows", [1, 2])
def test_an_fp32_row_keeps_all_its_bits(rows: int) -> None:
    new = np.full((rows, 1, 2), 1.0 + 2.0**-23)
    inputs = {"cache": np.zeros((rows, 3, 1, 2)), "new": new, "slot": np.full(rows, 1)}
    kernel, right = find("kv_append", None, {"store": "fp32"}), np.zeros((rows, 3, 1, 2))
    right[:, 1] = new
    assert refused(kernel, inputs, right, name="cache") == 0
    assert refused(kernel, inputs, np.round(right), name="cache") == 2 * rows
    cache = torch.zeros(rows, 3, 1, 2)
    kv_append_torch(cache, torch.tensor(new).float(), torch.tensor(inputs["slot"]))
    np.testing.assert_array_equal(cache.double().numpy(), right)
    with pytest.raises(DeclarationError, match="not for store = fp32 and ring = yes"):
        find("kv_append", None, {"store": "fp32", "ring": "yes"})


def test_codes_are_rounded_to_even_and_end_at_127() -> None:
    inputs = {
        "cache": np.full((1, 2, 1, 4), 5.0),
        "new": np.array([[[0.5, 1.5, -100.0, 0.625]]]) * 2.0,
        "slot": np.array([1]),
    }
    kernel, right = find("kv_append_int8"), np.full((1, 2, 1, 4), 5.0)
    right[0, 1, 0] = [0, 2, -100, 1]
    assert refused(kernel, inputs, right, {"scale": 2.0}, name="cache") == 0
    right[0, 1, 0] = [1, 2, -100, 1]
    assert refused(kernel, inputs, right, {"scale": 2.0}, name="cache") == 1
    right[0, 1, 0] = [32, 96, -127, 40]
    assert refused(kernel, inputs, right, {"scale": 0.03125}, name="cache") == 0
    right[0, 1, 0, 2] = -128
    assert refused(kernel, inputs, right, {"scale": 0.03125}, name="cache") == 1


def test_a_scale_that_is_not_positive_is_refused() -> None:
    for scale in (0.0, -1.0, NAN, INF):
        with pytest.raises(ValueError, match="positive, finite scale"):
            kv_append_int8_torch(
                torch.zeros(1, 1, 1, 1, dtype=torch.int8),
                torch.zeros(1, 1, 1),
                torch.zeros(1),
                scale=scale,
            )


def test_the_declared_vacuous_rounding_is_none() -> None:
    """bf16 rows are moved into a bf16 cache."""
    assert set(changes(find("kv_append"))) == {"truncate-stored"}
