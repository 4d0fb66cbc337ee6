"""Requests that are decoded over a scheduler whose blocks run out; its books are checked after every admission.

Blocks have four tokens; a prompt of six, and the one token that is reserved behind it, take two.
"""

from collections.abc import Sequence

from tests.engine.books import BLOCK_SIZE, branches, reservation, scheduler
from tests.multimodal.parts import text
from triptych.engine.plan import Admitted
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, Reservation
from triptych.multimodal.layout import lay_out


def small(num_blocks: int, **limits: int) -> Scheduler:
    """The host has room for whatever comes."""
    return scheduler(num_blocks, **{"margin_tokens": 1, "num_swap_slots": 64, "block_bytes": 1} | limits)


def ask(books: Scheduler, number: int, tokens: int = 6, priority: int = 0) -> Reservation:
    """For an answer as long as an empty pool takes it."""
    held = reservation(number, tokens, max_tokens=books.ledger.pool.num_blocks * BLOCK_SIZE - tokens)
    held.priority = priority
    books.add_reservation(held)
    return held


def begin(books: Scheduler, held: Reservation) -> DecodeSequence:
    books.prompt_landed(held)
    (branch,) = branches(held, lay_out([text(held.prompt_tokens)]), [0])
    books.start_decode([branch])
    return branch


def decode(books: Scheduler, *tokens: int, priorities: Sequence[int] = (0, 0, 0, 0)) -> list[DecodeSequence]:
    """Requests 0, 1, … with prompts of so many tokens, all reserved before any is decoded."""
    asked = [ask(books, number, count, priorities[number]) for number, count in enumerate(tokens)]
    assert set(admit(books).reservations) == set(asked)
    return [begin(books, held) for held in asked]


def say(branch: DecodeSequence, tokens: int) -> None:
    branch.tokens += [1] * tokens


def admit(books: Scheduler) -> Admitted:
    admitted = books.admit()
    books.check()
    return admitted


def planned(books: Scheduler) -> list[int]:
    return [branch.request_id[-1] for branch in books.plan().decodes]
