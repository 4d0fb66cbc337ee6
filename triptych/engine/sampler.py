"""Chooses tokens on the device: all rows of a step at once, and what came of it in one piece for the host."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from triptych.engine.device import Numbers, Stage
from triptych.engine.penalties import Draw, adjust, adjustments
from triptych.engine.randomness import uniforms

__all__ = ["Draw", "Drawn", "choose", "choose_largest", "read", "sample", "wishes"]


class Drawn(NamedTuple):
    """A chosen token; logprobs are those of the model's own distribution, before temperature, filters and penalties."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (id, logprob), most likely first


def sample(logits: Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[Drawn]:
    """One token per draw, all of whose histories are known; waits for the device.

    logits: [any, vocab] float32
    rows:   which of them each draw is from; branches of one prompt share theirs
    Temperature 0 takes the largest adjusted logit, the first of equals. Otherwise the adjusted distribution at that
    temperature is filtered (top_k, then top_p of what is left, then min_p) and inverted at
    uniform(seed, choice, position). A row's result does not depend on the rows beside it.
    Rows from which nothing can be chosen, before or after they are adjusted (NaN, +inf, nothing but -inf), give a
    token whose logprob is NaN: the caller must look, its id means nothing, though the vocabulary has it.
    """
    wanted = wishes(draws, rows, len(logits), [-1] * len(draws))
    shipped = dict(zip(wanted, Stage(logits.device).send(list(wanted.values())), strict=True))
    _, report = choose(logits, shipped, draws, torch.empty(0, dtype=torch.int64, device=logits.device))
    return read(report, draws)


def wishes(
    draws: Sequence[Draw], rows: Sequence[int] | None, num_rows: int, pending: Sequence[int]
) -> dict[str, Numbers]:
    """What `choose` needs to know of these draws; empty where each takes the largest logit of its own row.

    rows:    of num_rows rows of logits, those that the draws are from; None: each in turn
    pending: of each draw, where among the device's last ids the token is that follows its history; -1: nowhere
    """
    wanted: dict[str, Numbers] = {}
    if rows is not None and (len(rows) != num_rows or list(rows) != list(range(num_rows))):
        wanted["rows"] = np.array(rows, dtype=np.int64)
    if all(draw.is_plain for draw in draws):
        return wanted
    wanted |= adjustments(draws, pending)
    warm = [place for place, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if warm:
        drawn = [draws[place] for place in warm]
        positions = [draws[place].position + (pending[place] >= 0) for place in warm]
        points = uniforms([draw.sampling.seed for draw in drawn], [draw.choice for draw in drawn], positions)
        wanted["warm"] = np.array(warm, dtype=np.int64)
        wanted["points"] = np.stack([np.array([draw.sampling.temperature for draw in drawn]), points])
        wanted |= _filters(drawn)
    return wanted


def choose(
    logits: Tensor, wanted: Mapping[str, Tensor], draws: Sequence[Draw], last_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Ids [draws] int64, and a report of them for `read`, both on the device; does not wait for it.

    wanted:   `wishes`, on the device, and `Guidance.masks` of the draws under a grammar
    last_ids: [any] int64, in which the pending tokens are
    """
    raw = logits[wanted["rows"]] if "rows" in wanted else logits
    scores = adjust(raw, {name: each for name, each in wanted.items() if name not in _OURS}, last_ids)
    if "masked" in wanted:
        scores = _allowed(scores, wanted["masked"], wanted["masks"])
    chosen, sound = _largest(scores)
    if "warm" in wanted:
        at = wanted["warm"]
        chosen.index_copy_(0, at, _invert(scores[at], wanted))
    sound &= chosen < raw.shape[1]
    most = min(max(draw.sampling.top_logprobs for draw in draws), raw.shape[1])
    return _report(raw, chosen, sound, most)


def choose_largest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """As `choose` where nothing is wanted; the same for any number of rows, so that it can be recorded."""
    return _report(logits, *_largest(logits), most=0)


def read(report: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """What a report says; waits where it is not on the host yet."""
    lines = report.tolist()
    if report.shape[1] == 2:
        return [Drawn(int(id), logprob, ()) for id, logprob in lines]
    most = (report.shape[1] - 2) // 2
    drawn: list[Drawn] = []
    for (id, own, *rest), draw in zip(lines, draws, strict=True):
        wanted = min(draw.sampling.top_logprobs, most)
        ids, values = rest[:wanted], rest[most : most + wanted]
        drawn.append(Drawn(int(id), own, tuple(zip(map(int, ids), values, strict=True))))
    return drawn


_OURS = frozenset({"rows", "warm", "points", "filtered", "filters", "masked", "masks"})


def _filters(drawn: Sequence[Draw]) -> dict[str, Numbers]:
    """Which of these draws filter their distribution, and how; nothing when none does."""
    sampling = [draw.sampling for draw in drawn]
    filtered = [place for place, each in enumerate(sampling) if each.top_k > 0 or each.top_p < 1 or each.min_p > 0]
    if not filtered:
        return {}
    numbers = [(sampling[place].top_k or np.inf, sampling[place].top_p, sampling[place].min_p) for place in filtered]
    return {"filtered": np.array(filtered, dtype=np.int64), "filters": np.array(numbers, dtype=np.float64).T.copy()}


def _allowed(scores: Tensor, rows: Tensor, masks: Tensor) -> Tensor:
    """Scores [draws, vocab], in these rows only where the bit of the id is set; masks: [rows, words] int32."""
    bits = (masks.unsqueeze(2) >> torch.arange(32, dtype=torch.int32, device=masks.device)) & 1
    forbidden = bits.view(len(masks), -1)[:, : scores.shape[1]] == 0
    return scores.index_copy(0, rows, scores[rows].masked_fill(forbidden, -torch.inf))


def _largest(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The id of each row's largest score, and whether that vouches for the row."""
    chosen = scores.argmax(dim=-1)
    # NaN counts as largest: a largest score that is finite vouches for its whole row.
    return chosen, scores.gather(1, chosen.unsqueeze(1)).isfinite().squeeze(1)


def _invert(scores: Tensor, wanted: Mapping[str, Tensor]) -> Tensor:
    """Ids [draws] int64 drawn from scores [draws, vocab] by inverse CDF; vocab where there is nothing to draw from.

    In float64, and summed in order of ids rather than of likelihood: rounding in the model moves a boundary between
    two ids by next to nothing, but it may swap two neighbours in a sorted order, and the token with them.
    """
    temperature, point = wanted["points"].unsqueeze(2).unbind()
    probabilities = (scores.double() / temperature).softmax(dim=-1)
    if "filtered" in wanted:
        at = wanted["filtered"]
        probabilities.index_copy_(0, at, probabilities[at] * _kept(probabilities[at], wanted["filters"]))
    mass = probabilities.cumsum(dim=-1)
    return torch.searchsorted(mass, point * mass[:, -1:], right=True).squeeze(1)


def _kept(probabilities: Tensor, filters: Tensor) -> Tensor:
    """Mask [draws, vocab] of the ids that pass top_k, top_p and min_p; the likeliest always does."""
    top_k, top_p, min_p = filters.unsqueeze(2).unbind()
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    kept = torch.arange(probabilities.shape[1], device=ordered.device) < top_k
    ordered = ordered * kept
    likelier = ordered.cumsum(dim=-1) - ordered  # mass of the ids before each
    kept &= (likelier < top_p * ordered.sum(dim=-1, keepdim=True)) | (top_p >= 1)
    kept &= ordered >= min_p * ordered[:, :1]
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _report(raw: Tensor, chosen: Tensor, sound: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Chosen ids, all in the vocabulary, and beside them their logprobs and those of the most likely alternatives.

    sound:  [draws] bool; the others' logprobs are NaN
    report: [draws, 2 + 2 * most] float64, which holds every id exactly: one tensor takes ids and logprobs
    """
    logprobs = raw.log_softmax(dim=-1)
    ids = chosen.where(sound, 0)
    logprob = logprobs.gather(1, ids.unsqueeze(1)).double().where(sound.unsqueeze(1), torch.nan)
    columns = [ids.double().unsqueeze(1), logprob]
    if most:
        top = logprobs.topk(most, dim=-1)
        columns += [top.indices.double(), top.values.double()]
    return ids, torch.cat(columns, dim=1)
