"""Who gets the next block while blocks last, who waits for one, and who is let in beside those that grow."""

import pytest

from tests.engine.books import branches, reservation
from tests.engine.decoding import admit, ask, begin, decode, planned, say, small
from tests.multimodal.parts import text
from triptych.errors import ContextTooLong
from triptych.multimodal.layout import lay_out


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
