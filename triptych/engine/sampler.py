"""Chooses tokens: all rows of a step at once, one transfer to the host at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triptych.engine.device import ship
from triptych.engine.penalties import Draw, adjust
from triptych.engine.randomness import uniform

__all__ = ["Draw", "Drawn", "sample", "uniform"]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A chosen token; logprobs are those of the model's own distribution, before temperature, filters and penalties."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (id, logprob), most likely first


def sample(logits: Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[Drawn]:
    """One token per draw.

    logits: [any, vocab] float32
    rows:   which of them each draw is from; branches of one prompt share theirs
    Temperature 0 takes the largest adjusted logit, the first of equals. Otherwise the adjusted distribution at that
    temperature is filtered (top_k, then top_p of what is left, then min_p) and inverted at
    uniform(seed, choice, position). A row's result does not depend on the rows beside it.
    Rows from which nothing can be chosen, before or after they are adjusted (NaN, +inf, nothing but -inf), give a
    token whose logprob is NaN: the caller must look, its id means nothing.
    """
    raw = logits[_ship(rows, logits.device)]
    scores = adjust(raw, draws)
    chosen = scores.argmax(dim=-1)
    # NaN counts as largest: a largest score that is finite vouches for its whole row.
    sound = scores.gather(1, chosen.unsqueeze(1)).isfinite().squeeze(1)
    warm = [place for place, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if warm:
        at = _ship(warm, logits.device)
        chosen.index_copy_(0, at, _invert(scores[at], [draws[place] for place in warm]))
    sound &= chosen < raw.shape[1]
    return _report(raw, chosen, sound, draws)


def _invert(scores: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Ids [draws] int64 drawn from scores [draws, vocab] by inverse CDF; vocab where there is nothing to draw from.

    In float64, and summed in order of ids rather than of likelihood: rounding in the model moves a boundary between
    two ids by next to nothing, but it may swap two neighbours in a sorted order, and the token with them.
    """
    numbers = [(draw.sampling.temperature, uniform(draw.sampling.seed, draw.choice, draw.position)) for draw in draws]
    temperature, point = _columns(numbers, scores.device)
    probabilities = (scores.double() / temperature).softmax(dim=-1)
    filtered = [place for place, draw in enumerate(draws) if _filters(draw)]
    if filtered:
        at = _ship(filtered, scores.device)
        kept = _kept(probabilities[at], [draws[place] for place in filtered])
        probabilities.index_copy_(0, at, probabilities[at] * kept)
    mass = probabilities.cumsum(dim=-1)
    return torch.searchsorted(mass, point * mass[:, -1:], right=True).squeeze(1)


def _filters(draw: Draw) -> bool:
    sampling = draw.sampling
    return sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0


def _kept(probabilities: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Mask [draws, vocab] of the ids that pass top_k, top_p and min_p; the likeliest always does."""
    vocab = probabilities.shape[1]
    numbers = [(draw.sampling.top_k or vocab, draw.sampling.top_p, draw.sampling.min_p) for draw in draws]
    top_k, top_p, min_p = _columns(numbers, probabilities.device)
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    kept = torch.arange(vocab, device=ordered.device) < top_k
    ordered = ordered * kept
    likelier = ordered.cumsum(dim=-1) - ordered  # mass of the ids before each
    kept &= (likelier < top_p * ordered.sum(dim=-1, keepdim=True)) | (top_p >= 1)
    kept &= ordered >= min_p * ordered[:, :1]
    return torch.zeros_like(kept).scatter(-1, order, kept)


def _report(raw: Tensor, chosen: Tensor, sound: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """Chosen ids with their logprobs and the most likely alternatives, fetched in one transfer.

    sound: [draws] bool; the others' logprobs are NaN
    """
    logprobs = raw.log_softmax(dim=-1)
    most = min(max(draw.sampling.top_logprobs for draw in draws), raw.shape[1])
    top = logprobs.topk(most, dim=-1)
    at = chosen.where(sound, 0).unsqueeze(1)  # within bounds, whatever the row
    logprob = logprobs.gather(1, at).double().where(sound.unsqueeze(1), torch.nan)
    # float64 holds every id exactly, so that one tensor takes ids and logprobs.
    columns = [at.double(), logprob, top.indices.double(), top.values.double()]
    drawn: list[Drawn] = []
    for (id, own, *rest), draw in zip(torch.cat(columns, dim=1).tolist(), draws, strict=True):
        wanted = min(draw.sampling.top_logprobs, most)
        ids, values = rest[:wanted], rest[most : most + wanted]
        drawn.append(Drawn(int(id), own, tuple(zip(map(int, ids), values, strict=True))))
    return drawn


def _ship(values: Sequence[int], device: torch.device) -> Tensor:
    return ship(torch.tensor(values, dtype=torch.int64), device)


def _columns(numbers: Sequence[tuple[float, ...]], device: torch.device) -> tuple[Tensor, ...]:
    """The columns of a table with one line per draw, [draws, 1] float64 each."""
    return ship(torch.tensor(numbers, dtype=torch.float64), device).unsqueeze(2).unbind(dim=1)
