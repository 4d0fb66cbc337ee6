"""What a request asks to change about its logits before a token is chosen: penalties, biases, forbidden ends.

Its history is what the host knows of it, and at most one more token that is known to the device alone: that of the
step before, which is still on its way to the host.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from triptych.engine.device import Numbers
from triptych.engine.history import History
from triptych.journey import Int32Array, Int64Array
from triptych.sampling import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """Tokens to be chosen for one branch: the next one each time.

    prompt_ids: [prompt_tokens] int32, placeholders included as in transformers' own input ids
    generated:  ids of the tokens before this one, as far as the host knows them; may grow
    """

    sampling: Sampling
    choice: int
    prompt_ids: Int32Array
    generated: Sequence[int]
    is_plain: bool = field(init=False)  # takes the largest of the model's own logits, and asks for nothing else
    minds_history: bool = field(init=False)
    history: History | None = field(init=False)  # None where neither history nor bias changes logits

    def __post_init__(self) -> None:
        sampling = self.sampling
        minds = sampling.repetition_penalty != 1 or bool(sampling.presence_penalty or sampling.frequency_penalty)
        changes = minds or bool(sampling.logit_bias)
        asks = changes or sampling.temperature or sampling.top_logprobs or self.forbids_ends(0)
        object.__setattr__(self, "minds_history", minds)
        object.__setattr__(self, "is_plain", not asks and sampling.grammar is None)
        object.__setattr__(self, "history", History(sampling, self.prompt_ids) if changes else None)

    @property
    def position(self) -> int:
        """Of the token, among the generated ones, where the host knows all before it."""
        return len(self.generated)

    def forbids_ends(self, position: int) -> bool:
        sampling = self.sampling
        if sampling.grammar is not None:  # which minds it itself: an answer must be able to end where it has to
            return False
        return position < sampling.min_tokens and not sampling.ignore_eos


def adjustments(draws: Sequence[Draw], pending: Sequence[int]) -> dict[str, Numbers]:
    """What `adjust` needs to know of these draws; empty where none wants a change.

    pending: of each draw, where among the device's last ids the token is that follows its history; -1: nowhere
    """
    found: dict[str, Numbers] = {}
    told = [(row, draw.history) for row, draw in enumerate(draws) if draw.history is not None]
    for row, history in told:
        history.hear(draws[row].generated)
    repeating = [(row, history) for row, history in told if history.factor != 1]
    if repeating:
        found["repeated"] = _places([(row, history.repeated) for row, history in repeating])
        factors = np.array([history.factor for _, history in repeating], dtype=np.float32)
        found["factor"] = np.repeat(factors, [len(history.repeated) for _, history in repeating])
    adding = [(row, history) for row, history in told if len(history.ids)]
    if adding:
        found["added"] = _places([(row, history.ids) for row, history in adding])
        found["change"] = np.concatenate([history.changes for _, history in adding]).astype(np.float32)
    late = [(row, history) for row, history in told if draws[row].minds_history and pending[row] >= 0]
    if late:
        found |= _late(late, pending)
    ends = [(row, draw) for row, draw in enumerate(draws) if draw.forbids_ends(draw.position + (pending[row] >= 0))]
    forbidden = [(row, np.array(draw.sampling.stop_token_ids, dtype=np.int64)) for row, draw in ends]
    if any(len(ids) for _, ids in forbidden):
        found["forbidden"] = _places(forbidden)
    return found


def adjust(logits: Tensor, wanted: Mapping[str, Tensor], last_ids: Tensor) -> Tensor:
    """Logits [draws, vocab] as these draws want them; the same tensor, untouched, where none wants a change.

    wanted:   `adjustments`, on the device
    last_ids: [any] int64, in which the pending tokens are

    In this order: repetition penalty over prompt and generated tokens (as transformers: positive logits divided,
    negative ones multiplied), presence and frequency penalties over generated tokens (as OpenAI), logit_bias, and
    end tokens forbidden up to min_tokens.
    """
    if not wanted:
        return logits
    raw, logits = logits, logits.clone()
    if "repeated" in wanted:
        where = wanted["repeated"].unbind()
        logits[where] = _repelled(logits[where], wanted["factor"])
    if "added" in wanted:
        logits.index_put_(wanted["added"].unbind(), wanted["change"].to(logits.dtype), accumulate=True)
    if "late_rows" in wanted:
        late = wanted["late_rows"], last_ids[wanted["late_at"]]
        # Its logit is made anew from the raw one: what its earlier occurrences have changed there counts anew, too.
        logits.index_put_(late, _once_more(raw[late], late[1], wanted))
    if "forbidden" in wanted:
        logits.index_put_(wanted["forbidden"].unbind(), logits.new_full((), -torch.inf))
    return logits


def _repelled(logits: Tensor, factor: Tensor) -> Tensor:
    return torch.where(logits < 0, logits * factor, logits / factor)


def _once_more(raw: Tensor, ids: Tensor, wanted: Mapping[str, Tensor]) -> Tensor:
    """The raw logits [late] of tokens that their draws' histories have once more than the host knows."""
    presence, frequency, factor = wanted["late_penalties"].unbind()
    same = wanted["late_ids"] == ids[:, None]
    known, bias = (same * wanted["late_known"]).sum(dim=-1)
    # Operation by operation what `History.changes` does, so that a token weighs the same wherever it is known.
    change = bias - (presence + frequency * (known + 1))
    weighed: Tensor = _repelled(raw, factor.to(raw.dtype)) + change.to(raw.dtype)
    return weighed


def _late(late: Sequence[tuple[int, History]], pending: Sequence[int]) -> dict[str, Numbers]:
    """What is known of the draws whose last token the device alone knows, by id."""
    ids = np.full((len(late), max(1, *(len(history.ids) for _, history in late))), -1, dtype=np.int64)
    known = np.zeros((2, *ids.shape))  # how often each was generated, and its bias
    for line, (_, history) in enumerate(late):
        count = len(history.ids)
        ids[line, :count] = history.ids
        known[0, line, :count], known[1, line, :count] = history.counts, history.biases
    penalties = [(history.presence, history.frequency, history.factor) for _, history in late]
    return {
        "late_rows": np.array([row for row, _ in late], dtype=np.int64),
        "late_at": np.array([pending[row] for row, _ in late], dtype=np.int64),
        "late_ids": ids,
        "late_known": known,
        "late_penalties": np.array(penalties, dtype=np.float64).T.copy(),
    }


def _places(ids: Sequence[tuple[int, Int64Array]]) -> Int64Array:
    """(row, id) of every id of every row, [2, n]."""
    rows = np.repeat([row for row, _ in ids], [len(each) for _, each in ids])
    return np.stack([rows, np.concatenate([each for _, each in ids])])
