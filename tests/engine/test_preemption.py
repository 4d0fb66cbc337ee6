"""Who gets the next block, who makes room for it, and who goes on first once there is room again.

Blocks have four tokens; a prompt of six, and the one token that is reserved behind it, take two.
"""

from collections.abc import Sequence

import pytest

from tests.engine.books import BLOCK_SIZE, branches, cached, reservation, scheduler
from tests.multimodal.parts import text
from triptych.engine.plan import Admitted, Swap
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import DecodeSequence, Reservation
from triptych.errors import ContextTooLong
from triptych.journey import RequestId
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


def test_a_branch_gets_a_block_when_its_last_one_is_full() -> None:
    books = small(num_blocks=8)
    (branch,) = decode(books, 6)
    assert len(branch.blocks) == 2
    say(branch, 1)
    assert admit(books).new_blocks == ()
    say(branch, 1)
    assert books.plan().decodes == (), "its next token has no block yet"
    (new,) = admit(books).new_blocks
    assert branch.blocks.tolist()[2:] == [new.id]
    assert books.plan().decodes == (branch,)


def test_a_token_on_its_way_is_counted() -> None:
    books = small(num_blocks=8)
    (branch,) = decode(books, 7)
    branch.num_inflight = 1
    assert len(admit(books).new_blocks) == 1


def test_no_block_is_given_for_tokens_that_never_come() -> None:
    books = small(num_blocks=4)
    (branch,) = decode(books, 6)
    say(branch, 6)
    admit(books)
    assert len(branch.blocks) == 4
    say(branch, 3)
    assert admit(books).new_blocks == ()
    assert books.plan().decodes == ()
    assert not branch.may_go_on, "it has said all it may"


def test_whose_last_token_is_on_its_way_is_in_no_step() -> None:
    books = small(num_blocks=4)
    (branch,) = decode(books, 6)
    say(branch, 8)
    admit(books)
    assert books.plan().decodes == (branch,)
    branch.num_inflight = 1
    assert books.plan().decodes == ()


def test_newcomers_leave_a_block_to_each_that_may_grow() -> None:
    books = small(num_blocks=5)
    decode(books, 6)
    fits = ask(books, 1)
    assert admit(books).reservations == (fits,), "2 + 1 + 2 are 5"
    books.drop_decode(fits.request_id)
    ask(books, 2, tokens=10)
    assert admit(books).reservations == (), "2 + 1 + 3 are more"


def test_the_youngest_makes_room_and_comes_back_with_its_kv() -> None:
    books = small(num_blocks=6)
    first, second = decode(books, 6, 6)
    say(second, 2)
    admit(books)
    say(first, 2)
    admit(books)
    assert (len(first.blocks), len(second.blocks)) == (3, 3)
    theirs = tuple(second.blocks.tolist())
    say(first, 4)
    admitted = admit(books)
    assert admitted.moves == (Swap(theirs[:2], second.slots, out=True),), "in the third nothing is written yet"
    assert planned(books) == [0]
    assert books.gauges()["preempted_sequences"] == 1
    assert books.gauges()["swap_free_bytes"] == 62
    slots = second.slots
    books.finish_branch(first)
    admitted = admit(books)
    assert admitted.moves == (Swap(tuple(second.blocks.tolist()[:2]), slots, out=False),)
    assert {block.id for block in admitted.new_blocks} == set(second.blocks.tolist()), "to be stamped"
    assert planned(books) == [1]
    assert books.gauges()["preemption_resumes_total"] == 1
    assert books.gauges()["swap_free_bytes"] == 64


def test_blocks_without_a_token_are_not_copied() -> None:
    books = small(num_blocks=7, margin_tokens=8)
    first, second = decode(books, 2, 6)
    assert (len(first.blocks), len(second.blocks)) == (3, 4)
    say(first, 10)
    (move,) = admit(books).moves
    assert len(move.blocks) == 2, "six tokens have KV"
    assert len(second.blocks) == 0


def test_what_others_use_stays_where_it_is() -> None:
    books = small(num_blocks=6)
    asked = []
    for number in range(2):
        held = reservation(number, 9, max_tokens=15)
        held.keys = cached(number, [text(9)]).keys
        books.add_reservation(held)
        admit(books)
        asked.append(begin(books, held) if number == 0 else held)
    first, late = asked
    assert isinstance(first, DecodeSequence)
    assert isinstance(late, Reservation)
    second = begin(books, late)
    shared = first.blocks.tolist()[:2]
    assert second.blocks.tolist()[:2] == shared
    say(first, 7)
    admit(books)
    assert (len(first.blocks), len(second.blocks)) == (5, 3)
    say(first, 4)
    tail = second.blocks.tolist()[2:]
    (move,) = admit(books).moves
    assert move.blocks == tuple(tail)
    assert second.blocks.tolist() == shared
    books.finish_branch(first)
    admit(books)
    assert second.blocks.tolist()[:2] == shared
    assert planned(books) == [1]


def test_without_room_on_the_host_the_youngest_ends_and_keeps_its_place() -> None:
    books = small(num_blocks=4, num_swap_slots=1)
    first, second = decode(books, 6, 6)
    waiting = ask(books, 2)
    say(first, 2)
    admitted = admit(books)
    assert admitted.ended == (second.request_id,)
    assert not books.is_decoding(second.request_id)
    assert not books.holds_branch(second)
    again = reservation(1, 7, max_tokens=9)
    again.request_id = RequestId(again.request_id + b"next attempt")
    books.add_reservation(again)
    books.finish_branch(first)
    assert admit(books).reservations == (again, waiting), "it was here before the one that waits"


def test_a_lower_priority_makes_room_before_a_younger_one() -> None:
    books = small(num_blocks=6)
    first, _, third = decode(books, 6, 6, 6, priorities=(1, 0, 0))
    say(third, 2)
    admit(books)
    assert first.slots
    assert planned(books) == [1, 2]


def test_a_lower_priority_that_needs_a_block_makes_room_itself_when_one_before_it_waits() -> None:
    books = small(num_blocks=4)
    first, second = decode(books, 6, 6, priorities=(0, 1))
    say(second, 2)
    admit(books)
    assert planned(books) == [0], "it stands still"
    assert (len(second.blocks), second.slots) == (2, ())
    say(first, 2)
    admit(books)
    assert planned(books) == [0]
    assert second.slots


def test_lower_numbers_are_served_first_then_earlier_ones() -> None:
    books = small(num_blocks=4, margin_tokens=1000)
    for number, priority in enumerate([0, 5, 0, -3, -3]):
        ask(books, number, priority=priority)
    order = []
    while books.decode_ids():
        for held in admit(books).reservations:
            order.append(held.request_id[-1])
            books.drop_decode(held.request_id)
    assert order == [3, 4, 0, 2, 1]


def test_only_who_goes_before_it_is_let_in_before_one_that_has_made_room() -> None:
    books = small(num_blocks=8)
    first, second = decode(books, 14, 14)
    say(first, 2)
    admit(books)
    assert second.slots
    ask(books, 2, tokens=1)
    assert admit(books).reservations == (), "though there is room for it"
    urgent = ask(books, 3, tokens=1, priority=-1)
    assert admit(books).reservations == (urgent,)


def test_one_with_a_token_on_its_way_comes_back_when_that_is_there() -> None:
    books = small(num_blocks=4)
    first, second = decode(books, 6, 7)
    say(first, 2)
    second.num_inflight = 1
    admit(books)
    assert len(second.slots) == 2, "what the launched step writes is saved, too"
    books.drop_decode(first.request_id)
    admit(books)
    assert books.plan().decodes == ()
    say(second, 1)
    second.num_inflight = 0
    admit(books)
    assert books.plan().decodes == (second,)


def test_a_last_token_may_come_to_one_that_has_made_room() -> None:
    books = small(num_blocks=4)
    first, second = decode(books, 6, 6)
    say(first, 2)
    second.num_inflight = 1
    admit(books)
    assert second.slots
    books.finish_branch(second)
    books.check()
    assert books.gauges()["swap_free_bytes"] == 64
    assert not books.is_decoding(second.request_id)


def test_who_leaves_while_it_makes_room_leaves_nothing() -> None:
    books = small(num_blocks=4)
    first, second = decode(books, 6, 6)
    say(first, 2)
    admit(books)
    assert second.slots
    for branch in (second, first):
        books.drop_decode(branch.request_id)
        books.check()
    assert books.is_idle()
    assert books.gauges()["swap_free_bytes"] == 64


def test_several_choices_get_all_they_may_need_and_are_left_in_peace() -> None:
    books = small(num_blocks=16)
    held = reservation(0, 6, max_tokens=12, branches=2)
    held.priority = 9
    books.add_reservation(held)
    other = ask(books, 1)
    admit(books)
    assert held.num_blocks == held.most_blocks == 1 + 2 * 4
    choices = branches(held, lay_out([text(6)]), [0, 1])
    books.start_decode(choices)
    branch = begin(books, other)
    for _ in range(22):
        say(branch, 1)
        admit(books)
    assert planned(books) == [0, 0], "the other stands still: it has no block"
    assert [choice.slots for choice in choices] == [(), ()]
    for choice in choices:
        books.finish_branch(choice)
    admit(books)
    assert planned(books) == [1]


def test_the_first_stands_still_while_a_reservation_holds_the_rest_and_then_goes_first() -> None:
    books = small(num_blocks=4)
    asked = [ask(books, 0), ask(books, 1)]
    admit(books)
    first = begin(books, asked[0])
    say(first, 2)
    admit(books)
    assert planned(books) == []
    assert (len(first.blocks), first.slots) == (2, ()), "with all its KV"
    assert books.gauges()["preemptions_stalled_total"] == 1
    second = begin(books, asked[1])
    admit(books)
    assert planned(books) == [0]
    assert second.slots


def test_a_running_place_is_not_kept_by_one_that_stands_still() -> None:
    books = small(num_blocks=16, max_sequences=1)
    held = reservation(1, 6, max_tokens=8, branches=2)
    single = ask(books, 0)
    books.add_reservation(held)
    admit(books)
    branch = begin(books, single)
    books.plan()
    while planned(books) == [0]:
        say(branch, 1)
        admit(books)
    assert len(branch.blocks) == 16 - held.num_blocks
    books.start_decode(branches(held, lay_out([text(6)]), [0, 1]))
    admit(books)
    assert planned(books) == [1], "whose end the other waits for"


def test_a_lone_request_always_gets_to_its_end() -> None:
    books = small(num_blocks=12, num_swap_slots=0)
    (branch,) = decode(books, 7)
    while branch.may_go_on:
        admit(books)
        assert books.plan().decodes == (branch,)
        say(branch, 1)
    assert len(branch.blocks) == 12


def test_what_may_become_too_much_for_an_empty_pool_is_refused_at_once() -> None:
    books = small(num_blocks=12)
    books.add_reservation(reservation(0, 8, max_tokens=40))
    with pytest.raises(ContextTooLong, match=r"9 \+ 1 x 40 tokens need 13 KV blocks of 4 tokens, there are 12"):
        books.add_reservation(reservation(1, 9, max_tokens=40))


def test_who_finds_no_block_makes_room_itself_for_one_before_it_that_waits() -> None:
    books = small(num_blocks=12)
    asked = [ask(books, 0), ask(books, 1)]
    several = reservation(2, 3, max_tokens=5, branches=2)
    books.add_reservation(several)
    asked.append(ask(books, 3))
    admit(books)
    first, second = (begin(books, held) for held in asked[:2])
    for tokens in (2, 4, 4):
        say(first, tokens)
        admit(books)
    assert second.slots
    last = begin(books, asked[2])
    say(last, 2)
    admit(books)
    assert planned(books) == [0, 3]
    say(last, 4)
    admit(books)
    assert planned(books) == [0]
    assert last.slots, "it does not sit on blocks that the second waits for"
