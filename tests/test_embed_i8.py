"""Int8 embedding lookups: literal rows, and what is checked when a table is loaded."""

from __future__ import annotations

import pytest
import torch
from lookup import judge

from contract.errors import NotAllowed
from contract.kernels.embed_i8 import check_embed_i8, embed_i8_torch


@pytest.mark.parametrize("profile", ["once", "fp16_scales"])
def test_a_code_is_times_the_scale_of_its_row(profile: str) -> None:
    codes = torch.tensor([[1, 2, 3], [-128, 127, 0]], dtype=torch.int8)
    scales = torch.tensor([2.0, 0.0999755859375])
    scales = scales if profile == "once" else scales.half()
    given = {"codes": codes, "row_scales": scales, "profile": profile}
    # -12.796875 and 12.69689... in bf16
    right = [[-12.8125, 12.6875, 0.0], [2.0, 4.0, 6.0]]
    judge("embed_i8", right, [1, 0], **given)
    assert embed_i8_torch(torch.tensor([1, 0]), codes, scales).tolist() == right
    # the scale in bf16 first: 0.10009765625 * 127 = 12.7124 -> 12.6875, * 128 = 12.8125
    for wrong in (
        [[12.8125, 12.6875, 0.0], right[1]],
        [[-256.0, 254.0, 0.0], right[1]],
        [[-12.6875, 12.6875, 0.0], right[1]],
    ):
        with pytest.raises(NotAllowed):
            judge("embed_i8", wrong, [1, 0], **given)


def test_an_int8_table_is_checked_when_it_is_loaded() -> None:
    codes, scales = torch.zeros(3, 4, dtype=torch.int8), torch.ones(3)
    check_embed_i8(codes, scales)
    for given, said in [
        ((codes.float(), scales), "codes are torch.float32; use torch.int8"),
        ((codes, scales[:2]), r"\(2,\) scales for 3 rows; one each"),
        ((codes, torch.tensor([1.0, float("nan"), 1.0])), "scale of row 1 is nan"),
    ]:
        with pytest.raises(ValueError, match=said):
            check_embed_i8(*given)
