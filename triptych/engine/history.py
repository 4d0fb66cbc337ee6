"""What one branch has said, kept as its penalties are worked out from: told of each token once."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from triptych.journey import Int32Array, Int64Array
from triptych.sampling import Sampling

Float64Array = NDArray[np.float64]

_FIRST_IDS = 64


class History:
    """Of a branch with penalties or biases. The arrays that it hands out are views, good until it hears more."""

    def __init__(self, sampling: Sampling, prompt_ids: Int32Array) -> None:
        self.presence = sampling.presence_penalty
        self.frequency = sampling.frequency_penalty
        self.factor = sampling.repetition_penalty  # 1: nobody minds what was said before
        self._num_heard = 0
        self._place_of: dict[int, int] = {}  # of each id with a bias or a count
        self._ids = np.zeros(_FIRST_IDS, dtype=np.int64)
        self._numbers = np.zeros((2, _FIRST_IDS))  # counts, biases
        for id, bias in sampling.logit_bias.items():
            place = self._place(id)
            self._numbers[1, place] = bias
        self._said = set[int]()
        self._repeated = np.zeros(0, dtype=np.int64)
        if self.factor != 1:
            self._repeated = np.unique(prompt_ids).astype(np.int64)
            self._said.update(self._repeated.tolist())

    def hear(self, generated: Sequence[int]) -> None:
        """All tokens so far; those heard before come first."""
        fresh = generated[self._num_heard :]
        self._num_heard = len(generated)
        if self.presence or self.frequency:
            for id in fresh:
                place = self._place(id)  # first: the numbers may move for it
                self._numbers[0, place] += 1
        if self.factor != 1 and (unsaid := [id for id in dict.fromkeys(fresh) if id not in self._said]):
            self._said.update(unsaid)
            self._repeated = np.append(self._repeated, unsaid)

    @property
    def repeated(self) -> Int64Array:
        """Distinct ids under the repetition penalty, of prompt and answer."""
        return self._repeated

    @property
    def ids(self) -> Int64Array:
        """Those whose logits change by something."""
        return self._ids[: len(self._place_of)]

    @property
    def counts(self) -> Float64Array:
        """How often each of `ids` was said, where presence or frequency matter."""
        return self._numbers[0, : len(self._place_of)]

    @property
    def biases(self) -> Float64Array:
        return self._numbers[1, : len(self._place_of)]

    @property
    def changes(self) -> Float64Array:
        """What is added to the logit of each of `ids`."""
        penalties = self.presence + self.frequency * self.counts
        changed: Float64Array = np.where(self.counts > 0, self.biases - penalties, self.biases)
        return changed

    def _place(self, id: int) -> int:
        place = self._place_of.setdefault(id, len(self._place_of))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)], axis=1)
        self._ids[place] = id
        return place
