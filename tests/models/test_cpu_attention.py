"""Long segments get what torch's attention gives them, among short ones, and from views of one product."""

import numpy as np
import pytest
import torch

from triptych.models.cpu_attention import LONG, attend
from triptych.models.segment_attention import segment

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "lengths", [[LONG], [LONG - 1], [LONG + 77, 9, LONG], [3, LONG, 3, LONG], [LONG + 256, LONG + 256]], ids=str
)
def test_every_segment_attends_to_itself_alone(lengths: list[int]) -> None:
    draw = torch.Generator().manual_seed(len(lengths))
    query, key, value = torch.randn(sum(lengths), 3, 2, 16, generator=draw).unbind(1)
    found = attend(query, key, value, segment(np.array(lengths), CPU, torch.float32))
    assert found.shape == query.shape
    assert found.is_contiguous()
    begin = 0
    for length in lengths:
        span = slice(begin, begin + length)
        weights = torch.einsum("qhd,khd->hqk", query[span].double(), key[span].double()).div(16**0.5).softmax(-1)
        expected = torch.einsum("hqk,khd->qhd", weights, value[span].double())
        assert (found[span] - expected).abs().max() <= 2e-6, (begin, length)
        begin += length


def test_large_scores_do_not_overflow() -> None:
    query = torch.full((LONG, 1, 16), 40.0)
    value = torch.arange(LONG, dtype=torch.float32)[:, None, None].expand(LONG, 1, 16)
    found = attend(query, query, value, segment(np.array([LONG]), CPU, torch.float32))
    torch.testing.assert_close(found, torch.full_like(found, (LONG - 1) / 2))
