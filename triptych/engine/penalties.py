"""What a request asks to change about its logits before a token is chosen: penalties, biases, forbidden ends.

Its history is what the host knows of it, and at most one more token that is known to the device alone: that of the
step before, which is still on its way to the host.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from triptych.engine.device import Numbers
from triptych.journey import Int32Array, Int64Array
from triptych.sampling import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One token to be chosen.

    prompt_ids: [prompt_tokens] int32, placeholders included as in transformers' own input ids
    generated:  ids of the tokens before this one, as far as the host knows them
    """

    sampling: Sampling
    choice: int
    prompt_ids: Int32Array
    generated: Sequence[int]
    is_greedy: bool = field(init=False)  # and takes the logits as they are, but for ends that min_tokens forbids
    minds_history: bool = field(init=False)

    def __post_init__(self) -> None:
        sampling = self.sampling
        minds = sampling.repetition_penalty != 1 or bool(sampling.presence_penalty or sampling.frequency_penalty)
        greedy = sampling.temperature == 0 and not minds and not sampling.logit_bias
        object.__setattr__(self, "minds_history", minds)
        object.__setattr__(self, "is_greedy", greedy)

    @property
    def position(self) -> int:
        """Of the token, among the generated ones, where the host knows all before it."""
        return len(self.generated)

    def forbids_ends(self, position: int) -> bool:
        sampling = self.sampling
        return position < sampling.min_tokens and not sampling.ignore_eos


def adjustments(draws: Sequence[Draw], pending: Sequence[int]) -> dict[str, Numbers]:
    """What `adjust` needs to know of these draws; empty where none wants a change.

    pending: of each draw, where among the device's last ids the token is that follows its history; -1: nowhere
    """
    found: dict[str, Numbers] = {}
    _put_places(found, "repeated", [_repeated(draw) for draw in draws])
    added = [_added(draw) for draw in draws]
    _put_places(found, "added", [list(changes) for changes in added])
    forbidden = [_forbidden(draw, source >= 0) for draw, source in zip(draws, pending, strict=True)]
    _put_places(found, "forbidden", forbidden)
    if "repeated" in found:
        factors = np.array([draw.sampling.repetition_penalty for draw in draws], dtype=np.float32)
        found["factor"] = factors[found["repeated"][0]]
    if "added" in found:
        found["change"] = np.array([value for changes in added for value in changes.values()], dtype=np.float32)
    late = [row for row, draw in enumerate(draws) if draw.minds_history and pending[row] >= 0]
    if late:
        found |= _late(draws, late, pending)
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
    # Operation by operation what `_added` does, so that a token weighs the same wherever it is known.
    change = bias - (presence + frequency * (known + 1))
    return _repelled(raw, factor.to(raw.dtype)) + change.to(raw.dtype)


def _late(draws: Sequence[Draw], rows: Sequence[int], pending: Sequence[int]) -> dict[str, Numbers]:
    """What is known of the draws whose last token the device alone knows, by id."""
    counts = [Counter(draws[row].generated) for row in rows]
    tables = [sorted({*count, *draws[row].sampling.logit_bias}) for row, count in zip(rows, counts, strict=True)]
    ids = np.full((len(rows), max(1, *map(len, tables))), -1, dtype=np.int64)
    known = np.zeros((2, *ids.shape))  # how often each was generated, and its bias
    for line, (row, count, table) in enumerate(zip(rows, counts, tables, strict=True)):
        bias = draws[row].sampling.logit_bias
        ids[line, : len(table)] = table
        known[0, line, : len(table)] = [count[id] for id in table]
        known[1, line, : len(table)] = [bias.get(id, 0.0) for id in table]
    sampling = [draws[row].sampling for row in rows]
    penalties = [(each.presence_penalty, each.frequency_penalty, each.repetition_penalty) for each in sampling]
    return {
        "late_rows": np.array(rows, dtype=np.int64),
        "late_at": np.array([pending[row] for row in rows], dtype=np.int64),
        "late_ids": ids,
        "late_known": known,
        "late_penalties": np.array(penalties, dtype=np.float64).T.copy(),
    }


def _repeated(draw: Draw) -> Sequence[int]:
    """Distinct ids under the repetition penalty."""
    if draw.sampling.repetition_penalty == 1.0:
        return ()
    generated = np.array(draw.generated, dtype=np.int32)
    ids: list[int] = np.unique(np.concatenate([draw.prompt_ids, generated])).tolist()
    return ids


def _added(draw: Draw) -> Mapping[int, float]:
    """What is added to which id."""
    sampling = draw.sampling
    if not (sampling.presence_penalty or sampling.frequency_penalty):
        return sampling.logit_bias
    added = dict(sampling.logit_bias)
    for id, count in Counter(draw.generated).items():
        penalty = sampling.presence_penalty + sampling.frequency_penalty * count
        added[id] = added.get(id, 0.0) - penalty
    return added


def _forbidden(draw: Draw, is_late: bool) -> Sequence[int]:
    return draw.sampling.stop_token_ids if draw.forbids_ends(draw.position + is_late) else ()


def _put_places(found: dict[str, Numbers], name: str, ids: Sequence[Sequence[int]]) -> None:
    """(row, id) of every id of every draw, [2, n]; nothing when there is none."""
    counts = [len(row) for row in ids]
    if not any(counts):
        return
    rows: Int64Array = np.repeat(np.arange(len(ids)), counts)
    columns = np.fromiter((id for row in ids for id in row), dtype=np.int64, count=len(rows))
    found[name] = np.stack([rows, columns])
