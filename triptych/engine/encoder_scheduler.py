"""Which prepared items the encoder takes into its next batch. Decisions only: no tensors, no clock, no threads."""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from triptych.errors import InvariantViolation


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


@dataclass(slots=True, eq=False)
class WaitingItem:
    """One item ready to be encoded."""

    arrival: int  # place in the order of arrival, unique; what the caller knows the item by
    encoder_tokens: int
    units: int  # of the arena, in a row
    rank: tuple[int, int]  # the smaller one goes first
    refused_since: float | None = None  # when it first found no room

    def waits_for_room(self, now: float) -> float:
        """Seconds since it first found no room."""
        return 0.0 if self.refused_since is None else now - self.refused_since


@dataclass(frozen=True, slots=True)
class Batch:
    """What to encode now. `blocked`: the item for which room must be made, if one has waited for it too long."""

    items: tuple[WaitingItem, ...] = ()
    blocked: WaitingItem | None = None


@dataclass(slots=True)
class _Draft:
    """A batch in the making."""

    budget: BatchBudget
    items: list[WaitingItem] = field(default_factory=list)
    encoder_tokens: int = 0
    refused_units: int | None = None  # the smallest request for room that was refused

    @property
    def full(self) -> bool:
        return len(self.items) == self.budget.max_items

    def allows(self, item: WaitingItem) -> bool:
        return not self.items or self.encoder_tokens + item.encoder_tokens <= self.budget.max_encoder_tokens

    def might_place(self, item: WaitingItem) -> bool:
        """Room only shrinks while a batch is drawn up, so whoever needs more than was refused needs not ask."""
        return self.refused_units is None or item.units < self.refused_units

    def take(self, item: WaitingItem) -> None:
        self.items.append(item)
        self.encoder_tokens += item.encoder_tokens

    def refuse(self, item: WaitingItem, now: float) -> None:
        item.refused_since = now if item.refused_since is None else item.refused_since
        self.refused_units = item.units if self.refused_units is None else min(self.refused_units, item.units)


class EncoderScheduler:
    """First come, first served, under three limits: items, encoder tokens, and room in the arena.

    Later items fill what an earlier one cannot use. One that finds no room in the arena is overtaken for
    `patience_seconds` only; from then on nobody behind it starts, so that what comes free is its. Not thread-safe.
    """

    def __init__(self, budget: BatchBudget) -> None:
        self.budget = budget
        self._waiting: list[WaitingItem] = []  # ascending by rank

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting_tokens(self) -> int:
        return sum(item.encoder_tokens for item in self._waiting)

    def add(self, arrival: int, encoder_tokens: int, units: int, rank: tuple[int, int] | None = None) -> None:
        """Let an item wait, in order of its rank; without one, in order of arrival."""
        if min(encoder_tokens, units) <= 0:
            raise ValueError(f"item {arrival} has {encoder_tokens} encoder tokens in {units} units, both must be > 0")
        item = WaitingItem(arrival, encoder_tokens, units, (arrival, 0) if rank is None else rank)
        insort(self._waiting, item, key=lambda item: (item.rank, item.arrival))

    def remove(self, arrival: int) -> None:
        """Forget an item that is wanted no more; one that does not wait is none of our business."""
        self._waiting = [item for item in self._waiting if item.arrival != arrival]

    def next_batch(self, now: float, place: Callable[[WaitingItem], bool]) -> Batch:
        """The items to encode now; they wait no more. `place` takes room for one, or says that there is none."""
        draft, blocked = _Draft(self.budget), None
        for item in self._waiting:
            allowed = draft.allows(item)
            if allowed and draft.might_place(item) and place(item):
                draft.take(item)
                if draft.full:
                    break
                continue
            if allowed:
                draft.refuse(item, now)
            if item.waits_for_room(now) >= self.budget.patience_seconds:
                blocked = item if allowed else None
                break
        taken = {item.arrival for item in draft.items}
        self._waiting = [item for item in self._waiting if item.arrival not in taken]
        return Batch(tuple(draft.items), blocked)

    def check(self) -> None:
        """Raises InvariantViolation naming the first rule that does not hold."""
        places = [(item.rank, item.arrival) for item in self._waiting]
        if places != sorted(places) or len({arrival for _, arrival in places}) != len(places):
            raise InvariantViolation(f"items wait in the order {places}, expected ascending and each once")
