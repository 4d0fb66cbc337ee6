"""What the draws of a step may choose from, where a grammar has a say in it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from triptych.engine.device import Numbers
from triptych.engine.mailbox import as_triptych
from triptych.engine.penalties import Draw
from triptych.engine.prefill_desk import PrefillDesk
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, PrefillSequence
from triptych.errors import TriptychError
from triptych.grammar.matcher import GrammarMatcher, MaskMaker


@dataclass(frozen=True, slots=True, eq=False)
class Guided:
    """Draws of a step under a grammar: one of a branch, or all that a prompt begins its answers with.

    rows:   of the draws, in the step's order
    tokens: all before those that are drawn
    """

    rows: range
    matcher: GrammarMatcher
    tokens: Sequence[int]


class Guidance:
    """Used by the engine's thread."""

    def __init__(self, scheduler: Scheduler, prefills: PrefillDesk) -> None:
        self._scheduler = scheduler
        self._prefills = prefills
        self._maker = MaskMaker()

    def guided(
        self, branches: Sequence[DecodeSequence], prompts: Sequence[tuple[PrefillSequence, Sequence[Draw]]]
    ) -> list[Guided]:
        """Under the lock: those of a step's draws, of branches and then of prompts, that have not ended meanwhile."""
        holds = self._scheduler.holds_branch
        found = [
            Guided(range(row, row + 1), branch.matcher, branch.tokens)
            for row, branch in enumerate(branches)
            if branch.matcher is not None and holds(branch)
        ]
        row = len(branches)
        for sequence, draws in prompts:
            matcher = self._prefills.matcher(sequence)
            if matcher is not None and draws:
                found.append(Guided(range(row, row + len(draws)), matcher, draws[0].generated))
            row += len(draws)
        return found

    def masks(self, guided: Sequence[Guided]) -> tuple[Mapping[str, Numbers], Mapping[int, TriptychError]]:
        """What `sampler.choose` has to know, and, by first row, why a grammar cannot be followed: those stay free."""
        failures: dict[int, TriptychError] = {}
        followed = [each for each in guided if _try(failures, each, partial(each.matcher.follow, each.tokens))]
        if not followed:
            return {}, failures
        masks = self._maker.masks([each.matcher for each in followed])
        pairs = list(zip(followed, masks, strict=True))
        sound = [(each, mask) for each, mask in pairs if _try(failures, each, partial(each.matcher.finish, mask))]
        kept = [(row, mask) for each, mask in sound for row in each.rows]
        if not kept:
            return {}, failures
        rows = np.array([row for row, _ in kept], dtype=np.int64)
        return {"masked": rows, "masks": np.stack([mask for _, mask in kept])}, failures


def _try(failures: dict[int, TriptychError], guided: Guided, do: Callable[[], None]) -> bool:
    try:
        do()
    except Exception as error:
        failures[guided.rows.start] = as_triptych(error)
        return False
    return True
