"""Which prepared items the encoder takes into its next batch. Decisions only: no tensors, no clock, no threads."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from triptych.engine.encoder_waiting import Rank, WaitingColumns, WaitingItem, WaitingView

__all__ = ["Batch", "BatchBudget", "EncoderScheduler", "WaitingItem", "choose_batch"]

# Items of ever smaller sizes could each be asked for and refused; so many refusals say that there is hardly any room.
_MOST_REFUSALS = 64

Place = Callable[[WaitingItem], bool]  # takes room for an item, or says that there is none


@dataclass(frozen=True, slots=True)
class BatchBudget:
    """How much one batch may hold.

    An item is never split: a first item larger than the token budget raises it for its batch, and goes alone.
    """

    max_items: int
    max_encoder_tokens: int  # pre-merge patches
    patience_seconds: float = 1.0  # how long an item that finds no room lets later ones go first

    def __post_init__(self) -> None:
        if min(self.max_items, self.max_encoder_tokens) <= 0 or self.patience_seconds < 0:
            raise ValueError(
                f"a batch of at most {self.max_items} items and {self.max_encoder_tokens} encoder tokens "
                f"with {self.patience_seconds} s patience; items and tokens must be > 0, patience >= 0"
            )


@dataclass(frozen=True, slots=True)
class Batch:
    """What to encode now. `blocked`: the item for which room must be made, if one has waited for it too long."""

    items: tuple[WaitingItem, ...] = ()
    blocked: WaitingItem | None = None


class _Draft:
    """A batch in the making: one pass along the view, from each item that gets an answer to the next."""

    def __init__(self, view: WaitingView, budget: BatchBudget, now: float) -> None:
        self.items: list[WaitingItem] = []
        self.blocked: WaitingItem | None = None
        self.refused = np.zeros(len(view), np.bool_)
        self._view = view
        self._budget = budget
        waits = np.where(np.isnan(view.refused_since), 0.0, now - view.refused_since)
        self._impatient = waits >= budget.patience_seconds
        self._tokens_left: float = np.inf  # the first item may have any number of tokens
        self._refusals = 0
        self._units_refused: float = np.inf  # the smallest request for room that was refused

    def draw_up(self, place: Place) -> None:
        begin: int | None = 0
        while begin is not None:
            begin = self._go_on(begin, place)

    def _go_on(self, begin: int, place: Place) -> int | None:
        """Pass over what cannot come in and ask for room for the first that can; where to go on, None at the end."""
        allowed = self._view.tokens[begin:] <= self._tokens_left
        # Room only shrinks while a batch is drawn up, so whoever needs no less than was refused needs not ask.
        asks = allowed & (self._view.units[begin:] < self._units_refused)
        stops = asks | self._impatient[begin:]
        length = int(stops.argmax()) if stops.any() else len(stops)
        self.refused[begin : begin + length] = allowed[:length]
        if length == len(stops):
            return None
        index = begin + length
        if asks[length] and place(self._view.item(index)):
            self._take(index)
            return None if len(self.items) == self._budget.max_items else index + 1
        if allowed[length]:
            self._refuse(index)
        if not self._impatient[index]:
            return index + 1 if self._refusals < _MOST_REFUSALS else None
        # Nobody behind it starts any more, so that what comes free is its own.
        self.blocked = self._view.item(index) if allowed[length] else None
        return None

    def _take(self, index: int) -> None:
        item = self._view.item(index)
        tokens = sum(taken.encoder_tokens for taken in self.items) + item.encoder_tokens
        self._tokens_left = self._budget.max_encoder_tokens - tokens
        self.items.append(item)

    def _refuse(self, index: int) -> None:
        self.refused[index] = True
        self._refusals += 1
        self._units_refused = min(self._units_refused, int(self._view.units[index]))


def choose_batch(view: WaitingView, budget: BatchBudget, now: float, place: Place) -> tuple[Batch, NDArray[np.bool_]]:
    """The batch to encode now, and which items [items of the view] have found no room.

    Items go in the view's order; later ones fill what an earlier one cannot use. One that finds no room is overtaken
    for the budget's patience only. One that finds its batch too full needs none: with each batch it moves up, and
    whoever is first in a batch may come in.
    """
    draft = _Draft(view, budget, now)
    draft.draw_up(place)
    return Batch(tuple(draft.items), draft.blocked), draft.refused


class EncoderScheduler:
    """First come, first served, under three limits: items, encoder tokens, and room in the arena.

    Later items fill what an earlier one cannot use. One that finds no room in the arena is overtaken for
    `patience_seconds` only; from then on nobody behind it starts, so that what comes free is its. Not thread-safe.
    """

    def __init__(self, budget: BatchBudget) -> None:
        self.budget = budget
        self._waiting = WaitingColumns()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, arrival: int, encoder_tokens: int, units: int, rank: Rank | None = None) -> None:
        """Let an item wait, in order of its rank; without one, in order of arrival."""
        if min(encoder_tokens, units) <= 0:
            raise ValueError(f"item {arrival} has {encoder_tokens} encoder tokens in {units} units, both must be > 0")
        self._waiting.add(WaitingItem(arrival, encoder_tokens, units, (arrival, 0) if rank is None else rank))

    def rerank(self, arrival: int, rank: Rank) -> None:
        """Give an item that waits another place in the order."""
        self._waiting.rerank(arrival, rank)

    def remove(self, arrival: int) -> None:
        """Forget an item that is wanted no more; one that does not wait is none of our business."""
        self._waiting.remove(arrival)

    def next_batch(self, now: float, place: Place) -> Batch:
        """The items to encode now; they wait no more. `place` takes room for one, or says that there is none."""
        view = self._waiting.view()
        batch, refused = choose_batch(view, self.budget, now, place)
        self._waiting.refuse(view.places[refused], now)
        for item in batch.items:
            self._waiting.remove(item.arrival)
        return batch

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        self._waiting.check()
