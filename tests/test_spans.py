"""Runs of bytes of a storage."""

import torch

from contract.engines.spans import Spans, extent


def test_runs_that_meet_become_one() -> None:
    spans = Spans()
    for start, end in ((8, 12), (0, 4), (20, 24), (4, 8), (30, 30), (22, 40)):
        spans.add(start, end)
    assert spans.runs == [(0, 12), (20, 40)]
    assert spans.cover(1, 12)
    assert spans.cover(13, 13)
    assert not spans.cover(11, 21)
    spans.add(2, 30)
    assert spans.runs == [(0, 40)]


def test_where_a_tensor_lies() -> None:
    whole = torch.zeros(4, 6)
    assert extent(whole) == (0, 96, True)
    assert extent(whole.t()) == (0, 96, True)
    assert extent(whole[1:3]) == (24, 72, True)
    assert extent(whole[:, 1:2]) == (4, 80, False)
    assert extent(whole[2:2])[2]
