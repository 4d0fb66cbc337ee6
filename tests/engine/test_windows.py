"""Windows: a prompt's items get landing memory part by part, whole parts, in order."""

import itertools
import random

import pytest

from tests.engine.books import ROW_BYTES, cached, prompt, scheduler, warm
from tests.multimodal.parts import image, masked, random_parts, text
from triptych.engine.jobs import Window
from triptych.engine.scheduler import Scheduler
from triptych.engine.sequence import PrefillSequence
from triptych.engine.windows import group_items, num_rows, pack_windows
from triptych.errors import MediaTooLarge
from triptych.journey import Item, Run
from triptych.multimodal.layout import lay_out


def items_of(*rows: int) -> tuple[Item, ...]:
    return lay_out([image(1, count) for count in rows]).items


def packed(rows: list[int], landing_bytes: int, row_bytes: int = 1) -> list[list[int]]:
    groups = group_items(items_of(*rows), ())
    return [[item.rows for item in window] for window in pack_windows(groups, row_bytes, landing_bytes)]


def test_windows_are_filled_in_prompt_order_up_to_half_the_memory() -> None:
    assert packed([3, 4, 5, 1, 2], 16) == [[3, 4], [5, 1, 2]]
    assert packed([3, 4, 5, 1, 2], 32, row_bytes=2) == [[3, 4], [5, 1, 2]]
    assert packed([], 16) == []


def test_the_largest_item_sets_the_size_where_it_is_over_half() -> None:
    assert packed([2, 9, 8, 1, 1, 3], 10) == [[2], [9], [8, 1], [1, 3]]


@pytest.mark.parametrize("seed", range(50))
def test_no_window_is_over_the_limit_and_none_could_take_the_next_item(seed: int) -> None:
    rng = random.Random(seed)
    rows = [rng.randrange(1, 20) for _ in range(rng.randrange(1, 30))]
    room = rng.randrange(20, 100)
    windows = packed(rows, room)
    limit = max(room // 2, *rows)
    assert [count for window in windows for count in window] == rows
    assert all(sum(window) <= limit for window in windows)
    assert all(sum(window) + after[0] > limit for window, after in itertools.pairwise(windows))


def test_items_under_one_atomic_span_are_never_parted() -> None:
    items = items_of(2, 2, 2, 2)
    groups = group_items(items, [Run(0, 1), Run(3, 3)])
    assert [[item.index for item in group] for group in groups] == [[0], [1, 2], [3]]
    assert [[item.index for item in window] for window in pack_windows(groups, 1, 4)] == [[0], [1, 2], [3]]


def granted(books: Scheduler) -> list[tuple[int, Window]]:
    return [(sequence.request_id[-1], window) for sequence, window in books.admit().windows]


def fuse(books: Scheduler, sequence: PrefillSequence, *items: int) -> None:
    """These items' rows land, everything before the next ones is computed, and their memory is free."""
    for index in items:
        sequence.mark_ready(index)
    for chunk in books.plan().chunks:
        if chunk.sequence is sequence:
            books.advance(chunk)
    rows = sum(sequence.layout.items[index].rows for index in items)
    books.release_landing(sequence.request_id, rows * ROW_BYTES)
    books.check()


def test_a_prompt_with_more_rows_than_fit_is_computed_window_by_window() -> None:
    books = scheduler(landing_bytes=8 * ROW_BYTES, prefill_chunk_tokens=100)
    sequence = prompt(0, [text(3), *(image(2, 2) for _ in range(5)), text(2)])
    books.add_prefill(sequence)
    assert granted(books) == [(0, Window((0,), last=False)), (0, Window((1,), last=False))], "two at once: half each"
    assert books.gauges()["prefill_windows_waiting"] == 3
    fuse(books, sequence, 0)
    assert sequence.num_computed == 7
    assert granted(books) == [(0, Window((2,), last=False))]
    fuse(books, sequence, 1, 2)
    assert granted(books) == [(0, Window((3,), last=False)), (0, Window((4,), last=True))]
    fuse(books, sequence, 3, 4)
    assert sequence.is_computed
    assert books.gauges()["prefill_windows_waiting"] == 0


def test_a_window_is_granted_whole_or_not_at_all() -> None:
    books = scheduler(landing_bytes=10 * ROW_BYTES, prefill_chunk_tokens=100)
    sequence = prompt(0, [image(2, 2), image(1, 1), image(2, 2), image(1, 1), text(1)])
    books.add_prefill(sequence)
    assert granted(books) == [(0, Window((0, 1), last=False)), (0, Window((2, 3), last=True))]
    other = prompt(1, [image(1, 1), image(2, 1), text(1)])
    books.add_prefill(other)
    fuse(books, sequence, 0)
    sequence.mark_ready(1)
    assert granted(books) == [(1, Window((0, 1), last=True))]
    assert books.landing_bytes == 9 * ROW_BYTES


def test_who_goes_on_comes_before_who_comes_new() -> None:
    books = scheduler(landing_bytes=8 * ROW_BYTES, prefill_chunk_tokens=100)
    first = prompt(0, [image(2, 2), image(1, 6), text(1)])
    second, third = prompt(1, [image(1, 3), text(1)]), prompt(2, [text(5)])
    books.add_prefill(first)
    assert granted(books) == [(0, Window((0,), last=False))]
    books.add_prefill(second)
    books.add_prefill(third)
    assert granted(books) == [], "three rows are free, and kept for the six that the first waits for"
    fuse(books, first, 0)
    assert granted(books) == [(0, Window((1,)))]
    fuse(books, first, 1)
    assert granted(books) == [(1, Window((0,))), (2, Window(()))]


def test_a_holder_that_waits_closes_landing_memory_for_newcomers() -> None:
    books = scheduler(landing_bytes=8 * ROW_BYTES, prefill_chunk_tokens=100)
    first = prompt(0, [image(2, 2), image(2, 2), image(2, 2), text(1)])
    books.add_prefill(first)
    assert len(granted(books)) == 2
    fuse(books, first, 0)
    small = prompt(1, [image(1, 1), text(1)])
    books.add_prefill(small)
    assert granted(books) == [(0, Window((2,), last=True))], "the room that came free is the holder's"
    fuse(books, first, 1)
    assert granted(books) == [(1, Window((0,), last=True))]


def test_text_and_covered_prompts_pass_a_full_landing_memory() -> None:
    books = scheduler(landing_bytes=4 * ROW_BYTES, prefill_chunk_tokens=100)
    parts = [image(2, 2), text(5)]
    warm(books, 0, parts)
    full = prompt(1, [image(2, 2, media=1), image(2, 2, media=2), text(1)])
    books.add_prefill(full)
    assert granted(books) == [(1, Window((0,), last=False))]
    again = cached(2, parts)
    books.add_prefill(again)
    books.add_prefill(prompt(3, [text(4)]))
    assert granted(books) == [(2, Window((), cached_tokens=8)), (3, Window(()))]


def test_every_window_names_the_cached_tokens_of_the_whole_prompt() -> None:
    books = scheduler(landing_bytes=8 * ROW_BYTES, prefill_chunk_tokens=100)
    warm(books, 0, [text(8), image(1, 1), text(1)])
    second = cached(1, [text(8), *(image(2, 2) for _ in range(2)), text(1)])
    books.add_prefill(second)
    assert granted(books) == [(1, Window((0,), 8, last=False)), (1, Window((1,), 8, last=True))]


def test_an_item_that_no_landing_memory_takes_is_refused_with_both_numbers() -> None:
    books = scheduler(landing_bytes=8 * ROW_BYTES)
    with pytest.raises(MediaTooLarge, match="9 rows needs 72 bytes of landing memory, there are 64") as refused:
        books.add_prefill(prompt(0, [image(2, 2), image(3, 3), text(1)]))
    assert refused.value.item_index == 1
    assert books.is_idle()


def test_a_prompt_that_leaves_gives_all_its_windows_back() -> None:
    books = scheduler(landing_bytes=8 * ROW_BYTES)
    first, second = (prompt(number, [image(2, 2), image(2, 2), image(2, 2), text(1)]) for number in range(2))
    books.add_prefill(first)
    books.add_prefill(second)
    assert granted(books) == [(0, Window((0,), last=False)), (1, Window((0,), last=False))]
    books.drop_prefill(first.request_id)
    assert granted(books) == [(1, Window((1,), last=False))]
    books.check()


@pytest.mark.parametrize("seed", range(30))
def test_every_prompt_gets_through_a_landing_memory_of_its_largest_item(seed: int) -> None:
    rng = random.Random(seed)
    prompts = [prompt(number, random_parts(rng.randrange(10_000))) for number in range(12)]
    largest = max((item.rows for one in prompts for item in one.layout.items), default=1)
    books = scheduler(num_blocks=400, landing_bytes=largest * ROW_BYTES, prefill_chunk_tokens=rng.choice([3, 50]))
    for one in prompts:
        books.add_prefill(one)
    open_items: dict[bytes, set[int]] = {one.request_id: set() for one in prompts}
    for _ in range(2000):
        for sequence, window in books.admit().windows:
            open_items[sequence.request_id] |= set(window.items)
        for sequence in prompts:
            for index in open_items[sequence.request_id]:
                if rng.random() < 0.5:
                    sequence.mark_ready(index)
        for chunk in books.plan().chunks:
            books.advance(chunk)
            release_fused(books, chunk.sequence, open_items[chunk.sequence.request_id])
        books.check()
    assert all(one.is_computed for one in prompts)
    assert books.landing_bytes == 0


def release_fused(books: Scheduler, sequence: PrefillSequence, waiting: set[int]) -> None:
    fused = {index for index in waiting if sequence.layout.items[index].runs[-1].end <= sequence.num_computed}
    rows = num_rows([sequence.layout.items[index] for index in fused])
    books.release_landing(sequence.request_id, rows * ROW_BYTES)
    waiting -= fused
    if sequence.is_computed:
        books.drop_prefill(sequence.request_id)


def test_an_item_with_separators_counts_its_rows_alone() -> None:
    groups = group_items(lay_out([masked((True, False, True)), image(1, 2)]).items, ())
    assert [num_rows(window) for window in pack_windows(groups, 1, 4)] == [2, 2]
