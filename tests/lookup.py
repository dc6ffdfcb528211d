"""Rows of an embedding table judged by their contract."""

from __future__ import annotations

from typing import Any

import torch

import contract


def judge(name: str, out: Any, ids: list[int], **given: Any) -> None:
    contract.assert_allowed(
        name, torch.as_tensor(out).bfloat16(), ids=torch.tensor(ids).int(), **given
    )
