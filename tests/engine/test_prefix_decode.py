"""Blocks of a prompt that are there already where it is going to be decoded: found, shared, published, forgotten."""

from collections.abc import Sequence

import pytest

from tests.engine.books import BLOCK_SIZE, admit, branches, cached, compute, finish, reservation, scheduler, warm
from tests.multimodal.parts import image, text
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import PrefillSequence, Reservation
from triptych.multimodal.layout import ItemPart, TextPart

Parts = Sequence[TextPart | ItemPart]


def ask(number: int, parts: Parts, count: int = 1, salt: bytes = b"", generated: tuple[int, ...] = ()) -> Reservation:
    """A reservation that is looked up; its prompt is computed elsewhere."""
    sequence = cached(number, parts, generated, salt=salt)
    held = reservation(number, sequence.num_tokens, max_tokens=5, branches=count)
    held.keys = sequence.keys
    return held


def grant(books: Scheduler, *asked: Reservation) -> list[Reservation]:
    for held in asked:
        books.add_reservation(held)
    granted = list(books.admit().reservations)
    books.check()
    return granted


def begin(books: Scheduler, held: Reservation, parts: Parts) -> None:
    """Its KV has landed, and it is decoded."""
    books.prompt_landed(held)
    books.start_decode(branches(held, cached(99, parts).layout, range(held.branches)))
    books.check()


def answer(books: Scheduler, number: int, parts: Parts, generated: tuple[int, ...] = ()) -> Reservation:
    """A whole request that has come and gone."""
    held = ask(number, parts, generated=generated)
    assert grant(books, held) == [held]
    begin(books, held, parts)
    books.drop_decode(held.request_id)
    return held


def test_a_second_request_shares_the_full_blocks_of_the_first() -> None:
    books = scheduler()
    first = answer(books, 0, [text(18)])
    second = ask(1, [text(18)], count=2)
    books.add_reservation(second)
    admitted = books.admit()
    assert second.num_cached_blocks == 4
    assert second.blocks[:4] == first.blocks[:4]
    assert [block.id for block in admitted.new_blocks] == list(second.blocks[4:]), "what is shared is not stamped anew"
    assert second.table(1)[:4] == first.blocks[:4]
    third = ask(2, [text(18)])
    grant(books, third)
    assert third.blocks[:4] == first.blocks[:4], "also while others hold them"
    for held in (second, third):
        books.drop_decode(held.request_id)
    assert books.is_idle()


@pytest.mark.parametrize("num_tokens", [15, 16, 17])
def test_a_block_at_least_is_always_left_to_be_sent(num_tokens: int) -> None:
    books = scheduler()
    answer(books, 0, [text(num_tokens)])
    second = ask(1, [text(num_tokens)])
    grant(books, second)
    assert second.num_cached_blocks * BLOCK_SIZE < num_tokens
    assert second.num_cached_blocks == (num_tokens - 1) // BLOCK_SIZE


def test_what_has_not_landed_cannot_be_found() -> None:
    books = scheduler()
    first, second = ask(0, [text(18)]), ask(1, [text(18)])
    grant(books, first)
    grant(books, second)
    assert second.num_cached_blocks == 0
    books.drop_decode(first.request_id)
    third = ask(2, [text(18)])
    grant(books, third)
    assert third.num_cached_blocks == 0


def test_another_image_place_or_tenant_is_no_hit() -> None:
    books = scheduler(num_blocks=128)
    answer(books, 0, [text(4), image(3, 3, media=1), text(9)])
    others = [
        ask(1, [text(4), image(3, 3, media=2), text(9)]),
        ask(2, [text(8), image(3, 3, media=1), text(9)]),
        ask(3, [text(4), image(3, 3, media=1), text(9)], salt=b"tenant"),
    ]
    grant(books, *others)
    assert [held.num_cached_blocks for held in others] == [1, 1, 0]


def test_a_hit_does_not_end_inside_an_atomic_span() -> None:
    books = scheduler()
    answer(books, 0, [text(6), image(3, 3, atomic=True), text(1)])
    second = ask(1, [text(6), image(3, 3, atomic=True), text(20, first=700)])
    grant(books, second)
    assert second.num_cached_blocks == 1, "12 tokens are there, the span takes 6 to 15"


def test_a_continuation_finds_the_prompt_and_a_second_one_what_was_generated_too() -> None:
    books = scheduler()
    said = tuple(range(40, 50))
    answer(books, 0, [text(18)])
    second = ask(1, [text(18)], generated=said)
    grant(books, second)
    assert second.num_cached_blocks == 4
    begin(books, second, [text(18)])
    third = ask(2, [text(18)], generated=(*said, 77))
    grant(books, third)
    assert third.num_cached_blocks == 7
    assert third.blocks[:7] == second.blocks[:7]
    other = ask(3, [text(18)], generated=(*said[:5], 77, 78, 79, 80))
    grant(books, other)
    assert other.num_cached_blocks == 5


def test_blocks_that_are_found_leave_room_for_others_but_are_not_room_themselves() -> None:
    books = scheduler(num_blocks=8)
    answer(books, 0, [text(16)])  # 4 + 2 blocks
    holder = reservation(9, 3, max_tokens=1)
    second, third = ask(1, [text(17)]), ask(2, [text(17)])
    assert grant(books, holder) == [holder]
    assert grant(books, second, third) == [second], "four found that rested and two more, of seven; then one is free"
    assert second.num_cached_blocks == 4
    books.drop_decode(holder.request_id)
    assert grant(books) == [third], "four shared, two more"
    assert third.num_cached_blocks == 4


def test_cached_blocks_go_when_room_is_needed_the_ends_of_prompts_first() -> None:
    books = scheduler(num_blocks=8)
    answer(books, 0, [text(16)])
    other = reservation(1, 20, max_tokens=4)
    assert grant(books, other) == [other]
    books.drop_decode(other.request_id)
    again = ask(2, [text(16)])
    grant(books, again)
    assert again.num_cached_blocks == 2


def test_room_for_the_rest_of_a_request_is_not_made_of_what_it_has_found() -> None:
    books = scheduler(num_blocks=8)
    first = answer(books, 0, [text(16)])
    answer(books, 1, [text(16, first=300)])
    again = ask(2, [text(17)])
    assert grant(books, again) == [again]
    assert again.blocks[: again.num_cached_blocks] == first.blocks[: again.num_cached_blocks]
    assert again.num_cached_blocks > 0


def test_of_equal_requests_at_once_the_one_that_lands_first_is_found() -> None:
    books = scheduler()
    first, second = ask(0, [text(18)]), ask(1, [text(18)])
    grant(books, first, second)
    begin(books, second, [text(18)])
    begin(books, first, [text(18)])
    third = ask(2, [text(18)])
    grant(books, third)
    assert third.blocks[:4] == second.blocks[:4]


def test_a_block_that_a_prompt_here_computes_next_is_left_to_it() -> None:
    books = scheduler(prefill_chunk_tokens=8)
    first = ask(0, [text(18)])
    grant(books, first)
    prompt = cached(1, [text(18)])
    admit(books, prompt)
    begin(books, first, [text(18)])
    compute(books, prompt)
    second = ask(2, [text(18)])
    grant(books, second)
    assert second.blocks[:4] == prompt.blocks[:4]


def test_a_failed_decode_step_takes_its_blocks_and_all_below_them_out_of_the_cache() -> None:
    books = scheduler()
    answer(books, 0, [text(10)])
    first, longer = ask(1, [text(18)]), ask(2, [text(26)])
    grant(books, first)
    begin(books, first, [text(18)])
    grant(books, longer)
    begin(books, longer, [text(26)])
    books.drop_decode(first.request_id, spoiled=True)
    books.check()
    again = ask(3, [text(26)])
    grant(books, again)
    assert again.num_cached_blocks == 0
    books.drop_decode(longer.request_id)
    assert books.gauges()["kv_cached_blocks"] == 0


def test_a_reservation_that_began_with_what_a_failed_step_has_read_knows_it() -> None:
    books = scheduler()
    first, second, other = ask(0, [text(18)]), ask(1, [text(18)]), ask(2, [text(18, first=300)])
    grant(books, first)
    begin(books, first, [text(18)])
    grant(books, second, other)
    books.drop_decode(first.request_id, spoiled=True)
    books.check()
    assert books.baseless() == [second.request_id]


def test_a_reservation_knows_it_too_of_blocks_that_its_prompt_has_found_since() -> None:
    books = scheduler()
    held, other = ask(0, [text(18)]), cached(2, [text(26)])
    grant(books, held)
    warm(books, 1, [text(18)])
    admit(books, cached(0, [text(18)]), other)
    books.check()
    assert held.num_cached_blocks == 4
    books.drop_prefill(other.request_id, spoiled=True)
    books.check()
    assert books.baseless() == [held.request_id]


def test_a_prompt_is_not_computed_over_shared_blocks_that_it_does_not_find() -> None:
    books = scheduler()
    first, second = ask(0, [text(18)]), ask(1, [text(18)])
    grant(books, first)
    begin(books, first, [text(18)])
    grant(books, second)
    books.drop_decode(first.request_id, spoiled=True)
    prompt = cached(1, [text(18)])
    admit(books, prompt)
    assert prompt.num_cached == 0
    assert not set(prompt.blocks) & set(second.blocks)
    finish(books, prompt)


@pytest.mark.parametrize("other", [cached(1, [text(18, first=300)]), cached(1, [text(18)], salt=b"tenant")])
def test_a_prompt_that_is_not_the_reserved_one_stays_out_of_its_blocks(other: PrefillSequence) -> None:
    books = scheduler()
    answer(books, 0, [text(18)])
    held = ask(1, [text(18)])
    grant(books, held)
    admit(books, other)
    assert not set(other.blocks) & set(held.blocks)
    finish(books, other)


def test_in_one_engine_the_prompt_begins_with_the_shared_blocks_and_is_computed_behind_them() -> None:
    books = scheduler(num_blocks=16)
    first = warm(books, 0, [text(16)])
    held = ask(1, [text(16), text(10, first=300)])
    grant(books, held)
    assert held.num_cached_blocks == 4
    warm(books, 2, [text(16), text(5, first=300)])
    prompt = cached(1, [text(16), text(10, first=300)])
    prompt.num_announced_blocks = 4
    free = books.ledger.pool.num_free_blocks
    assert admit(books, prompt) == [prompt]
    assert prompt.num_cached == 20, "one more block than the reservation began with"
    assert prompt.blocks == held.prompt_blocks
    assert prompt.blocks[:4] == first.blocks[:4]
    assert books.ledger.pool.num_free_blocks == free, "one block was given up, one that rested taken"
    told = compute(books, prompt)
    assert [(one.tokens_begin, one.tokens_end) for one in told] == [(16, 26)]
    books.take_back([block.id for one in told for block in one.blocks])
    books.drop_prefill(prompt.request_id)
    begin(books, held, [text(16), text(10, first=300)])
    books.drop_decode(held.request_id)
    assert books.is_idle()


def test_what_somebody_copies_into_is_kept_and_so_are_the_shared_blocks_before_it() -> None:
    books = scheduler()
    parts = [text(16), text(10, first=300)]
    first = warm(books, 0, [text(16)])
    held = ask(1, parts)
    grant(books, held)
    own = held.prompt_blocks
    warm(books, 2, parts)
    books.ledger.lend(own)
    prompt = cached(1, parts)
    admit(books, prompt)
    assert (prompt.num_cached, prompt.blocks) == (16, own), "24 are there by now"
    assert own[:4] == first.blocks[:4]
    finish(books, prompt)
    books.take_back(own)


def test_blocks_that_decode_has_are_not_announced_whatever_is_cached_here() -> None:
    books = scheduler(prefill_chunk_tokens=6)
    for number, warmed in enumerate((0, 10, 26)):
        if warmed:
            warm(books, 10 + number, [text(warmed)])
        prompt = cached(number, [text(26)])
        prompt.num_announced_blocks = 3
        admit(books, prompt)
        told = compute(books, prompt)
        assert (told[0].tokens_begin, told[-1].tokens_end, told[-1].last) == (12, 26, True)
        assert [one.tokens_begin for one in told[1:]] == [one.tokens_end for one in told[:-1]]
        for one in told:
            books.take_back([block.id for block in one.blocks])
        books.drop_prefill(prompt.request_id)
