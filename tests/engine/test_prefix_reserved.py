"""The prefix cache where prompts are computed into blocks that their requests have reserved for decoding."""

from tests.engine.books import admit, cached, compute, finish, reservation, scheduler, warm
from tests.multimodal.parts import text


def test_a_prompt_takes_found_blocks_in_place_of_those_its_request_has_reserved() -> None:
    books = scheduler(num_blocks=16)
    first = warm(books, 0, [text(18)])
    books.add_reservation(reservation(1, 18, max_tokens=4, branches=2))
    (held,) = books.admit().reservations
    before, own = books.ledger.pool.num_free_blocks, held.blocks
    second = cached(1, [text(18)])
    assert admit(books, second) == [second]
    assert second.num_cached == 16
    assert second.blocks == held.prompt_blocks == (*first.blocks[:4], own[4])
    assert held.table(1)[:4] == first.blocks[:4]
    assert books.ledger.pool.num_free_blocks == before, "four found ones rested, and were free"
    books.check()
    finish(books, second)
    books.drop_decode(held.request_id)
    assert books.is_idle()


def test_reserved_blocks_that_a_hit_frees_serve_who_waits_in_the_same_turn() -> None:
    books = scheduler(num_blocks=11)
    producer = cached(0, [text(17)])
    admit(books, producer)
    books.add_reservation(reservation(1, 17, max_tokens=3))
    books.admit()
    compute(books, producer)
    books.add_reservation(reservation(2, 8, max_tokens=8))
    second = cached(1, [text(17)])
    books.add_prefill(second)
    admitted = books.admit()
    assert admitted.prefills == (second,)
    assert len(admitted.reservations) == 1, "four reserved blocks came free"
    books.check()


def test_reserved_blocks_somebody_copies_into_are_not_given_up() -> None:
    books = scheduler()
    warm(books, 0, [text(18)])
    books.add_reservation(reservation(1, 18))
    (held,) = books.admit().reservations
    own = held.prompt_blocks
    books.ledger.lend(own[:1])
    second = cached(1, [text(18)])
    admit(books, second)
    assert (second.num_cached, second.blocks) == (0, own)
    finish(books, second)
    books.take_back(own[:1])
    third = cached(2, [text(18)])
    admit(books, third)
    assert not set(third.blocks) & set(own), "equal blocks that came second are not found"


def test_no_branch_writes_into_a_block_that_others_find() -> None:
    for prompt_tokens in range(1, 24):
        books = scheduler()
        warm(books, 0, [text(prompt_tokens)])
        books.add_reservation(reservation(1, prompt_tokens, max_tokens=9, branches=2))
        (held,) = books.admit().reservations
        second = cached(1, [text(prompt_tokens)])
        admit(books, second)
        finish(books, second)
        written = {
            held.table(branch)[place // 4] for branch in (0, 1) for place in range(prompt_tokens, prompt_tokens + 9)
        }
        third = cached(2, [text(prompt_tokens), text(30, first=800)])
        admit(books, third)
        assert third.num_cached == prompt_tokens // 4 * 4
        assert not set(third.blocks) & written
