"""The prefix cache in the scheduler: hits, who waits for whom, what a failure takes with it, what goes first."""

import random

import pytest

from tests.engine.books import BLOCK_SIZE, admit, cached, compute, finish, scheduler, warm
from tests.multimodal.parts import image, masked, random_parts, text


def test_an_equal_prompt_begins_behind_its_full_blocks() -> None:
    books = scheduler()
    first = warm(books, 0, [text(18)])
    second = cached(1, [text(18)])
    admit(books, second)
    assert (second.num_cached, second.num_computed) == (16, 16)
    assert second.blocks[:4] == first.blocks[:4]
    (told,) = compute(books, second)
    assert (len(told.blocks), told.tokens_begin, told.tokens_end, told.last) == (5, 0, 18, True)
    assert [block.generation for block in told.blocks[:4]] == [1] * 4
    gauges = books.gauges()
    assert (gauges["prefix_lookup_tokens_total"], gauges["prefix_hit_tokens_total"]) == (36, 16)


def test_one_token_at_least_is_computed() -> None:
    books = scheduler()
    warm(books, 0, [text(16)])
    second = cached(1, [text(16)])
    admit(books, second)
    assert second.num_cached == 12


def test_what_was_only_begun_can_be_found_as_far_as_it_got() -> None:
    books = scheduler(prefill_chunk_tokens=9)
    first = cached(0, [text(30)])
    admit(books, first)
    compute(books, first, until=9)
    books.drop_prefill(first.request_id)
    second = cached(1, [text(30)])
    admit(books, second)
    assert second.num_cached == 8


def test_another_image_option_place_or_tenant_is_no_hit() -> None:
    books = scheduler(num_blocks=256)
    warm(books, 0, [text(4), image(3, 3, media=1), text(9)])
    others = [
        cached(1, [text(4), image(3, 3, media=2), text(9)]),
        cached(2, [text(8), image(3, 3, media=1), text(9)]),
        cached(3, [text(4), image(3, 3, media=1), text(9)], salt=b"tenant"),
        cached(4, [text(4), masked((True,) * 9), text(9)]),
    ]
    admit(books, *others)
    assert [other.num_cached for other in others] == [4, 4, 0, 4]


def test_covered_items_need_neither_landing_memory_nor_rows() -> None:
    books = scheduler()
    parts = [text(4), image(2, 2, media=1), image(2, 2, media=2), text(5)]
    warm(books, 0, parts)
    second = cached(1, [*parts[:2], image(2, 2, media=3), text(5)])
    books.add_prefill(second)
    ((_, window),) = books.admit().windows
    assert (window.items, window.cached_tokens, window.last) == ((1,), 8, True)
    assert books.landing_bytes == 4 * 8
    assert second.ready_items == {0}


def test_an_item_covered_in_part_is_needed_whole() -> None:
    books = scheduler()
    warm(books, 0, [text(4), image(3, 3), text(1)])
    second = cached(1, [text(4), image(3, 3), text(30)])
    books.add_prefill(second)
    ((_, window),) = books.admit().windows
    assert (second.num_cached, window.items) == (12, (0,))
    assert second.num_ready == 12
    books.check()
    second.mark_ready(0)
    (chunk,) = books.plan().chunks
    (piece,) = second.rows.pieces(chunk.begin, chunk.end)
    assert (piece.row_begin, piece.row_end) == (8, 9)


@pytest.mark.parametrize("seed", range(80))
def test_a_hit_never_ends_inside_an_atomic_span(seed: int) -> None:
    rng = random.Random(seed)
    books = scheduler(num_blocks=200, landing_bytes=8000)
    parts = [text(rng.randrange(9)), *random_parts(seed), image(3, 4, atomic=True), text(rng.randrange(1, 9))]
    warm(books, 0, [*parts[: rng.randrange(2, len(parts) + 1)], text(rng.randrange(1, 6), first=500)])
    second = cached(1, parts)
    admit(books, second)
    assert second.num_cached % BLOCK_SIZE == 0
    for run in second.layout.atomic:
        assert not run.start < second.num_cached < run.end
    finish(books, second)


def test_a_hit_is_given_up_as_far_as_an_atomic_span_reaches_over_its_end() -> None:
    books = scheduler()
    warm(books, 0, [text(6), image(3, 3, atomic=True), text(1)])
    second = cached(1, [text(6), image(3, 3, atomic=True), text(20, first=700)])
    admit(books, second)
    assert second.num_cached == 4, "12 tokens are there, the span takes 6 to 15"


def test_equal_prompts_at_once_are_computed_once() -> None:
    books = scheduler(prefill_chunk_tokens=8)
    prompts = [cached(number, [text(22)]) for number in range(8)]
    assert admit(books, *prompts) == prompts[:1]
    assert books.ledger.pool.num_free_blocks == 64 - 6, "who waits holds nothing"
    compute(books, prompts[0], until=16)
    assert books.admit().prefills == ()
    compute(books, prompts[0])
    assert list(books.admit().prefills) == prompts[1:]
    assert [prompt.num_cached for prompt in prompts] == [0] + [20] * 7


def test_who_waits_for_another_holds_up_nobody() -> None:
    books = scheduler()
    first, second, other = cached(0, [text(22)]), cached(1, [text(22)]), cached(2, [text(22, first=300)])
    assert admit(books, first, second, other) == [first, other]


def test_a_prompt_waits_only_for_what_it_needs() -> None:
    books = scheduler(prefill_chunk_tokens=8)
    first = cached(0, [text(8), text(20, first=300)])
    second = cached(1, [text(8), text(20, first=600)])
    assert admit(books, first, second) == [first]
    compute(books, first, until=8)
    assert list(books.admit().prefills) == [second]
    assert second.num_cached == 8


@pytest.mark.parametrize("spoiled", [False, True], ids=["cancelled", "failed"])
def test_when_a_producer_goes_one_of_those_who_waited_takes_over(spoiled: bool) -> None:
    books = scheduler(prefill_chunk_tokens=8)
    prompts = [cached(number, [text(22)]) for number in range(4)]
    admit(books, *prompts)
    compute(books, prompts[0], until=8)
    books.drop_prefill(prompts[0].request_id, spoiled)
    assert list(books.admit().prefills) == prompts[1:2]
    assert prompts[1].num_cached == (0 if spoiled else 8)
    compute(books, prompts[1])
    assert list(books.admit().prefills) == prompts[2:]


def test_a_waiting_prompt_may_leave() -> None:
    books = scheduler()
    first, second = cached(0, [text(22)]), cached(1, [text(22)])
    admit(books, first, second)
    books.drop_prefill(second.request_id)
    finish(books, first)
    assert books.is_idle()


def test_nothing_that_was_built_upon_a_failed_prompt_is_found_again() -> None:
    books = scheduler(prefill_chunk_tokens=8)
    first, second = cached(0, [text(22)]), cached(1, [text(16), text(20, first=400)])
    admit(books, first)
    compute(books, first, until=16)
    assert admit(books, second) == [second]
    assert second.num_cached == 16
    compute(books, second, until=24)
    books.drop_prefill(first.request_id, spoiled=True)
    books.check()
    assert books.gauges()["kv_cached_blocks"] == 0
    third = cached(2, [text(16), text(20, first=400)])
    assert admit(books, third) == [third], "the second is not waited for: it cannot publish any more"
    assert third.num_cached == 0
    compute(books, third, until=16)
    compute(books, second)
    compute(books, third)
    fourth = cached(3, [text(16), text(21, first=400)])
    admit(books, fourth)
    assert fourth.blocks[:9] == third.blocks[:9]
    assert not set(fourth.blocks) & set(second.blocks)


def test_cached_blocks_are_free_room_and_go_when_it_is_needed() -> None:
    books = scheduler(num_blocks=6)
    warm(books, 0, [text(16)])
    gauges = books.gauges()
    assert (gauges["kv_free_blocks"], gauges["kv_cached_blocks"]) == (6, 4)
    other = cached(1, [text(16, first=300)])
    assert admit(books, other) == [other]
    assert books.gauges()["kv_cached_blocks"] == 2, "two blocks held nothing, two more were taken: the prompt's last"
    books.drop_prefill(other.request_id)
    again = cached(2, [text(16)])
    admit(books, again)
    assert again.num_cached == 8


def test_blocks_that_are_found_are_not_counted_as_room_for_the_rest() -> None:
    books = scheduler(num_blocks=6)
    warm(books, 0, [text(17)])
    holder, second = cached(1, [text(4, first=900)]), cached(2, [text(24)])
    assert admit(books, holder) == [holder]
    assert admit(books, second) == [], "4 found and 2 more are 6, 5 are free"
    books.drop_prefill(holder.request_id)
    assert list(books.admit().prefills) == [second]
    assert second.num_cached == 16


def test_lent_blocks_that_come_back_beginning_first_are_still_evicted_from_the_end() -> None:
    books = scheduler(num_blocks=4, prefill_chunk_tokens=4)
    sequence = cached(0, [text(16)])
    admit(books, sequence)
    told = compute(books, sequence)
    books.drop_prefill(sequence.request_id)
    for announcement in told:
        books.take_back([block.id for block in announcement.blocks])
    other = cached(1, [text(4, first=900)])
    admit(books, other)
    books.drop_prefill(other.request_id)
    again = cached(2, [text(16)])
    admit(books, again)
    assert again.num_cached == 12
