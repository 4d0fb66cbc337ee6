"""Which fixed shape a batch is padded to, so that work captured for that shape serves it: arithmetic alone.

A batch needs tokens, and contexts of each kind that the tower attends inside of (frames and windows, say). Contexts too
few are made up by empty ones; tokens too few by dummy contexts, which attend to themselves and whose rows nobody reads.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from triptych.journey import Int32Array, Int64Array

_SMALLEST_TOKENS = 256
_LARGEST_WASTE = 0.12  # of a bucket's tokens, by a batch that has just outgrown the next smaller one
# Large batches keep the device busy however they are launched, so what they gain must not be lost to padding.
_LARGEST_STEP = 512


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """What a batch needs, or what captured work has room for. Ordered by tokens, then contexts kind by kind."""

    tokens: int
    contexts: tuple[int, ...]  # of each kind

    def covers(self, need: "Bucket") -> bool:
        """Whether a batch of that need fits: as many tokens and contexts or fewer."""
        counts = zip(self.contexts, need.contexts, strict=True)
        return self.tokens >= need.tokens and all(room >= wanted for room, wanted in counts)


def choose(buckets: Iterable[Bucket], need: Bucket) -> Bucket | None:
    """The smallest bucket that covers the need, by tokens before contexts; None where none does."""
    return min((bucket for bucket in buckets if bucket.covers(need)), default=None)


def token_steps(most: int, grain: int) -> tuple[int, ...]:
    """Ascending token counts up to `most`, each a multiple of `grain` (patches of one row), close enough together.

    A batch of at least the first count wastes no more than 12 % of the smallest one that it fits.
    """
    if most < grain:
        raise ValueError(f"steps of {grain} tokens up to {most}")
    steps, smallest = [most // grain * grain], _SMALLEST_TOKENS // grain * grain
    while steps[-1] > smallest:
        waste = min(int(steps[-1] * _LARGEST_WASTE), _LARGEST_STEP)
        below = -(-(steps[-1] - waste) // grain) * grain
        steps.append(max(smallest, min(below, steps[-1] - grain)))
    return tuple(reversed(steps))


@dataclass(frozen=True, slots=True)
class Frame:
    """The fixed shape of one bucket: its room, and behind it at least one dummy context of each kind.

    tokens:   the bucket's, and the patches of one row more, so that a full batch leaves its dummy one too
    contexts: of each kind, the bucket's and as many dummies as the tokens of an otherwise empty batch need
    longest:  of each kind, tokens that no context has more of
    """

    bucket: Bucket
    tokens: int
    contexts: tuple[int, ...]
    longest: tuple[int, ...]


def frame(bucket: Bucket, longest: Sequence[int | None], grain: int) -> Frame:
    """longest: of each kind, None where a context can be as long as a batch"""
    tokens = bucket.tokens + grain
    limits = tuple(min(limit or tokens, tokens) for limit in longest)
    dummies = (-(-tokens // limit) for limit in limits)
    contexts = tuple(room + more for room, more in zip(bucket.contexts, dummies, strict=True))
    return Frame(bucket, tokens, contexts, limits)


def pad_contexts(lengths: Int64Array, tokens: int, contexts: int, longest: int) -> Int64Array:
    """Lengths [contexts] that add up to `tokens`: the real ones, then dummies of at most `longest`, then empty ones.

    With one context of 300 in 513 tokens: 300, 213.
    """
    assert lengths.max(initial=0) <= longest, f"contexts of up to {longest} tokens, got {lengths}"
    spare = tokens - int(lengths.sum())
    dummies = [longest] * (spare // longest) + [spare % longest] * (spare % longest > 0)
    empty = contexts - len(lengths) - len(dummies)
    assert min(spare - 1, empty) >= 0, f"{lengths} do not fit {contexts} contexts and {tokens} tokens"
    return np.concatenate([lengths, np.array(dummies + [0] * empty, np.int64)])


def boundaries(lengths: Int64Array) -> Int32Array:
    """[contexts + 1] where each context begins, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]).astype(np.int32)
