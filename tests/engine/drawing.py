"""Logits as draws want them, adjusted and drawn from as a step does, a part of their histories on the device alone."""

from collections.abc import Sequence

import torch
from torch import Tensor

from triptych.engine.device import Numbers, Stage
from triptych.engine.penalties import Draw, adjust, adjustments
from triptych.engine.sampler import Drawn, choose, read, wishes

NO_IDS = torch.empty(0, dtype=torch.int64)


def on_device(numbers: dict[str, Numbers]) -> dict[str, Tensor]:
    return dict(zip(numbers, Stage(torch.device("cpu")).send(list(numbers.values())), strict=True))


def adjusted(
    logits: Tensor, draws: Sequence[Draw], pending: Sequence[int] | None = None, last_ids: Tensor = NO_IDS
) -> Tensor:
    """One row of logits per draw; pending: where in last_ids each one's last token is, -1: its history is whole."""
    wanted = adjustments(draws, pending or [-1] * len(draws))
    return adjust(logits, on_device(wanted), last_ids)


def drawn(logits: Tensor, draws: Sequence[Draw], pending: Sequence[int], last_ids: Tensor) -> list[Drawn]:
    wanted = on_device(wishes(draws, range(len(draws)), len(logits), pending))
    return read(choose(logits, wanted, draws, last_ids)[1], draws)
