"""Who makes room when blocks run out, and who goes on first once there is room again."""

from tests.engine.books import cached, reservation
from tests.engine.decoding import admit, ask, begin, decode, planned, say, small
from tests.multimodal.parts import text
from triptych.engine.plan import Swap
from triptych.engine.sequence import DecodeSequence, Reservation
from triptych.journey import RequestId


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


def test_two_that_make_room_do_not_keep_for_each_other_what_neither_uses() -> None:
    books = small(num_blocks=10)
    first = ask(books, 0, tokens=6)
    held = [reservation(number, 9, max_tokens=20) for number in (1, 2)]
    for each in held:
        each.keys = cached(0, [text(9)]).keys
    books.add_reservation(held[0])
    admit(books)
    branch, others = begin(books, first), []
    books.prompt_landed(held[0])
    books.add_reservation(held[1])
    admit(books)
    assert held[1].num_cached_blocks == 2
    others = [begin(books, each) for each in held]
    while branch.may_go_on:
        assert planned(books)[:1] == [0], "though the others' beginning takes two blocks"
        say(branch, 1)
        admit(books)
    assert len(branch.blocks) == 10
    assert [len(other.blocks) for other in others] == [0, 0]
    assert books.gauges()["preempted_sequences"] == 2
