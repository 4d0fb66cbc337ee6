"""How far two models' logits for the same tokens are apart, and how many answers they get right; no model in here."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tools.tiny_vl.intervals import Tally, wilson


@dataclass(frozen=True, slots=True, eq=False)
class Foretold:
    """What a model makes of one prompt's answer.

    logits: [tokens of the answer, vocab] float32, on the CPU
    answer: [tokens of the answer] int64, what would be right
    """

    family: str
    logits: Tensor
    answer: Tensor

    @property
    def is_right(self) -> bool:
        """Whether greedy decoding would give the answer to the last token: each of them is the likeliest."""
        return torch.equal(self.logits.argmax(1), self.answer)


def logit_figures(found: Sequence[Foretold], reference: Sequence[Foretold]) -> dict[str, float]:
    """Differences over all tokens of all answers; see bench/fp8_accuracy.py for what each is."""
    differences, spreads, nats, overturned, equal = [], [], [], [0.0], []
    for each, wanted in zip(found, reference, strict=True):
        differences.append((each.logits - wanted.logits).double())
        spreads.append(wanted.logits.double().std(1))
        ours, theirs = each.logits.double().log_softmax(1), wanted.logits.double().log_softmax(1)
        nats.append((theirs.exp() * (theirs - ours)).sum(1))
        same = each.logits.argmax(1) == wanted.logits.argmax(1)
        equal.append(same)
        best = wanted.logits.topk(2, dim=1).values
        overturned += (best[:, 0] - best[:, 1])[~same].tolist()
    apart, per_token = torch.cat(differences), torch.cat(nats)
    return {
        "tokens": len(apart),
        "logit_error_max": float(apart.abs().max()),
        "logit_error_rms": float(apart.square().mean().sqrt()),
        "logit_error_relative": float((apart.square().mean(1).sqrt() / torch.cat(spreads)).mean()),
        "kl_mean_nats": float(per_token.mean()),
        "kl_max_nats": float(per_token.max()),
        "top1_agreement": float(torch.cat(equal).double().mean()),
        "largest_gap_overturned": max(overturned),
    }


def exact_figures(found: Iterable[Foretold]) -> dict[str, Any]:
    """Shares of answers that greedy decoding would give to the letter, by family and in all, with 95 % intervals."""
    right: defaultdict[str, list[bool]] = defaultdict(list)
    for each in found:
        right[each.family].append(each.is_right)
    families = {family: Tally(sum(answers), len(answers)) for family, answers in right.items()}
    whole = Tally(sum(each.right for each in families.values()), sum(each.total for each in families.values()))
    return {"all": _figures(whole), "families": {name: _figures(tally) for name, tally in families.items()}}


def _figures(tally: Tally) -> dict[str, float]:
    low, high = wilson(tally)
    return {
        "right": tally.right,
        "total": tally.total,
        **{name: round(value, 4) for name, value in {"share": tally.share, "low": low, "high": high}.items()},
    }
