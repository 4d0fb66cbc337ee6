"""Which rows a prefill worker reads, gives back or refuses."""

import random

import pytest

from tests.multimodal.parts import image, random_parts, text
from triptych.engine.jobs import Window
from triptych.errors import LayoutMismatch
from triptych.journey import EmbeddingRef, Endpoint, Item, Shard, new_claim_id
from triptych.multimodal.layout import lay_out
from triptych.services.prefill.awaited import AwaitedRows

LAYOUT = lay_out([text(3), image(2, 2, media=1), text(2), image(1, 3, media=2), image(2, 1, media=3), text(1)])


def ref(item: Item, rows: int | None = None, digest: bytes | None = None) -> EmbeddingRef:
    return EmbeddingRef(
        claim_id=new_claim_id(),
        owner=Endpoint("127.0.0.1:1", 1),
        item_digest=digest or item.digest,
        rows=rows or item.rows,
        width=8,
        dtype="float32",
        shards=(Shard(0, 1, 0),),
        generation=1,
        lease_seconds=30,
    )


def test_rows_are_read_once_and_given_back_after_that() -> None:
    awaited = AwaitedRows(LAYOUT)
    awaited.grant(Window((0, 1, 2)))
    assert [awaited.take(1, ref(LAYOUT.items[1])) for _ in range(3)] == [True, False, False]


def test_rows_before_their_window_are_refused_and_welcome_behind_it() -> None:
    awaited = AwaitedRows(LAYOUT)
    with pytest.raises(LayoutMismatch, match="rows of item 0 came, which no window has granted yet"):
        awaited.take(0, ref(LAYOUT.items[0]))
    awaited.grant(Window((0,), last=False))
    with pytest.raises(LayoutMismatch) as refusal:
        awaited.take(1, ref(LAYOUT.items[1]))
    assert refusal.value.item_index == 1
    awaited.grant(Window((1, 2)))
    assert awaited.take(1, ref(LAYOUT.items[1]))


def test_rows_of_an_item_whose_kv_is_cached_are_given_back() -> None:
    awaited = AwaitedRows(LAYOUT)
    end = LAYOUT.items[0].runs[-1].end
    awaited.grant(Window((1, 2), cached_tokens=end))
    assert awaited.cached_tokens == end
    assert not awaited.take(0, ref(LAYOUT.items[0]))
    assert awaited.take(1, ref(LAYOUT.items[1]))


def test_an_item_that_is_cached_in_part_is_read_whole() -> None:
    awaited = AwaitedRows(LAYOUT)
    awaited.grant(Window((0, 1, 2), cached_tokens=LAYOUT.items[0].runs[-1].end - 1))
    assert awaited.take(0, ref(LAYOUT.items[0]))


def test_rows_that_the_layout_does_not_expect_are_refused_with_both_sides() -> None:
    awaited = AwaitedRows(LAYOUT)
    awaited.grant(Window((0, 1, 2)))
    first = LAYOUT.items[0]
    with pytest.raises(LayoutMismatch, match=r"expects 4 rows of .*offers 3 rows"):
        awaited.take(0, ref(first, rows=3))
    with pytest.raises(LayoutMismatch, match="offers 4 rows of 09090909"):
        awaited.take(0, ref(first, digest=b"\x09" * 32))
    with pytest.raises(LayoutMismatch, match="rows came for item 3, the prompt has 3 items"):
        awaited.take(3, ref(first))
    assert awaited.take(0, ref(first)), "a refused ref leaves its place open"


@pytest.mark.parametrize("seed", range(40))
def test_every_item_is_read_exactly_once_in_any_order_of_windows_and_repeats(seed: int) -> None:
    rng = random.Random(seed)
    layout = lay_out(random_parts(seed))
    awaited, read = AwaitedRows(layout), []
    cached = rng.randrange(layout.num_tokens + 1)
    needed = [item.index for item in layout.items if item.runs[-1].end > cached]
    while needed:
        count = rng.randint(1, len(needed))
        window, needed = needed[:count], needed[count:]
        awaited.grant(Window(tuple(window), cached, last=not needed))
        arrivals = window * 2
        rng.shuffle(arrivals)
        read += [index for index in arrivals if awaited.take(index, ref(layout.items[index]))]
        for item in layout.items:
            if item.index in needed:
                with pytest.raises(LayoutMismatch):
                    awaited.take(item.index, ref(item))
    wanted = [item.index for item in layout.items if item.runs[-1].end > cached]
    assert sorted(read) == wanted
