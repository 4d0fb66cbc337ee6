"""What a request asks to change about its logits before a token is chosen: penalties, biases, forbidden ends."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from triptych.engine.device import ship
from triptych.journey import Int32Array
from triptych.sampling import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One token to be chosen.

    prompt_ids: [prompt_tokens] int32, placeholders included as in transformers' own input ids
    generated:  ids of the tokens before this one; their number is this one's position
    """

    sampling: Sampling
    choice: int
    prompt_ids: Int32Array
    generated: Sequence[int]

    @property
    def position(self) -> int:
        return len(self.generated)


def adjust(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Logits [draws, vocab] as these draws want them; the same tensor, untouched, where none wants a change.

    In this order: repetition penalty over prompt and generated tokens (as transformers: positive logits divided,
    negative ones multiplied), presence and frequency penalties over generated tokens (as OpenAI), logit_bias, and
    end tokens forbidden up to min_tokens.
    """
    repeated = [_repeated(draw) for draw in draws]
    added = [_added(draw) for draw in draws]
    forbidden = [_forbidden(draw) for draw in draws]
    if not any(map(len, (*repeated, *added, *forbidden))):
        return logits
    logits = logits.clone()
    if where := _places(repeated, logits.device):
        factors = [draw.sampling.repetition_penalty for draw in draws]
        factor = ship(torch.tensor(factors, dtype=logits.dtype), logits.device)[where[0]]
        found = logits[where]
        logits[where] = torch.where(found < 0, found * factor, found / factor)
    if where := _places([list(changes) for changes in added], logits.device):
        change = [value for changes in added for value in changes.values()]
        logits.index_put_(where, ship(torch.tensor(change, dtype=logits.dtype), logits.device), accumulate=True)
    if where := _places(forbidden, logits.device):
        logits.index_put_(where, logits.new_full((), -torch.inf))
    return logits


def _repeated(draw: Draw) -> Sequence[int]:
    """Distinct ids under the repetition penalty."""
    if draw.sampling.repetition_penalty == 1.0:
        return ()
    generated = np.array(draw.generated, dtype=np.int32)
    ids: list[int] = np.unique(np.concatenate([draw.prompt_ids, generated])).tolist()
    return ids


def _added(draw: Draw) -> dict[int, float]:
    """What is added to which id."""
    sampling = draw.sampling
    added = dict(sampling.logit_bias)
    if sampling.presence_penalty or sampling.frequency_penalty:
        for id, count in Counter(draw.generated).items():
            penalty = sampling.presence_penalty + sampling.frequency_penalty * count
            added[id] = added.get(id, 0.0) - penalty
    return added


def _forbidden(draw: Draw) -> Sequence[int]:
    sampling = draw.sampling
    return () if sampling.ignore_eos or draw.position >= sampling.min_tokens else sampling.stop_token_ids


def _places(ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor] | None:
    """(row, id) of every id of every draw, as an index on the device; nothing when there is none."""
    rows = np.repeat(np.arange(len(ids)), [len(row) for row in ids])
    if not len(rows):
        return None
    columns = np.fromiter((id for row in ids for id in row), dtype=np.int64, count=len(rows))
    places = ship(torch.from_numpy(np.stack([rows, columns])), device)
    return places[0], places[1]
