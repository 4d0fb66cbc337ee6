"""The scheduler: what goes into a step, and who holds what meanwhile."""

from typing import Any

import pytest

from tests.engine.books import ROW_BYTES, branches, prompt, reservation, scheduler
from tests.multimodal.parts import image, masked, text
from triptych.engine.plan import Announcement, StepPlan
from triptych.engine.sequence import finish_reason
from triptych.errors import ConfigError, ContextTooLong
from triptych.grammar.spec import Grammar
from triptych.multimodal.layout import lay_out
from triptych.sampling import Sampling


def spans(plan: StepPlan) -> list[tuple[int, int]]:
    return [(chunk.begin, chunk.end) for chunk in plan.chunks]


def test_prompts_share_a_step_in_order_of_arrival() -> None:
    books = scheduler()
    for number in range(3):
        books.add_prefill(prompt(number, [text(10)]))
    books.admit()
    assert spans(books.plan()) == [(0, 10), (0, 6)]


def test_prompts_get_fewer_tokens_of_a_step_in_which_answers_are_decoded() -> None:
    books = scheduler(prefill_chunk_tokens=16, mixed_chunk_tokens=5)
    books.add_prefill(prompt(0, [text(40)]))
    books.add_reservation(reservation(1, 6))
    (held,) = books.admit().reservations
    assert spans(books.plan()) == [(0, 16)], "reserved blocks decode nothing yet"
    books.start_decode(branches(held, lay_out([text(6)]), (0,)))
    assert spans(books.plan()) == [(0, 5)]
    books.drop_decode(held.request_id)
    assert spans(books.plan()) == [(0, 16)]


def test_text_before_the_first_image_does_not_wait_for_it() -> None:
    books = scheduler()
    sequence = prompt(0, [text(5), image(2, 2), text(3)])
    books.add_prefill(sequence)
    books.admit()
    plan = books.plan()
    assert spans(plan) == [(0, 5)]
    books.advance(plan.chunks[0])
    assert spans(books.plan()) == []
    sequence.mark_ready(0)
    assert spans(books.plan()) == [(5, 12)]


def test_a_chunk_may_end_inside_an_ordinary_image() -> None:
    books = scheduler(prefill_chunk_tokens=7)
    sequence = prompt(0, [text(5), image(2, 2), text(3)])
    sequence.mark_ready(0)
    books.add_prefill(sequence)
    books.admit()
    assert spans(books.plan()) == [(0, 7)]


def test_a_chunk_never_ends_inside_an_atomic_span() -> None:
    books = scheduler(prefill_chunk_tokens=7)
    sequence = prompt(0, [text(5), image(2, 2, atomic=True), text(3)])
    sequence.mark_ready(0)
    books.add_prefill(sequence)
    books.admit()
    chunks = []
    while plan := books.plan().chunks:
        chunks += [(chunk.begin, chunk.end) for chunk in plan]
        books.advance(plan[0])
    assert chunks == [(0, 5), (5, 12)]


def test_an_atomic_span_larger_than_the_budget_gets_a_larger_chunk() -> None:
    books = scheduler(prefill_chunk_tokens=7)
    first, second = prompt(0, [text(3)]), prompt(1, [image(3, 3, atomic=True), text(3)])
    second.mark_ready(0)
    books.add_prefill(first)
    books.add_prefill(second)
    books.admit()
    plan = books.plan()
    assert spans(plan) == [(0, 3)], "only an empty step is enlarged"
    books.advance(plan.chunks[0])
    books.drop_prefill(first.request_id)
    assert spans(books.plan()) == [(0, 9)]


def test_a_step_takes_one_token_of_each_running_branch_up_to_the_limit() -> None:
    books = scheduler(max_sequences=3)
    layout = lay_out([text(6)])
    for number in range(2):
        books.add_reservation(reservation(number, 6, branches=2))
    for held in books.admit().reservations:
        books.start_decode(branches(held, layout, (0, 1)))
    plan = books.plan()
    assert [(sequence.request_id[-1], sequence.branch) for sequence in plan.decodes] == [(0, 0), (0, 1), (1, 0)]
    books.finish_branch(plan.decodes[1])
    assert [(sequence.request_id[-1], sequence.branch) for sequence in books.plan().decodes] == [(0, 0), (1, 0), (1, 1)]
    books.check()


def test_branches_share_full_prompt_blocks_and_own_the_rest() -> None:
    held = reservation(0, prompt_tokens=10, max_tokens=5, branches=2)
    assert (held.num_shared_blocks, held.num_own_blocks, held.num_blocks) == (2, 2, 6)
    held.blocks = (10, 11, 20, 21, 30, 31)
    assert held.prompt_blocks == (10, 11, 20)
    assert held.table(0) == (10, 11, 20, 21)
    assert held.table(1) == (10, 11, 30, 31)
    assert held.tail_copies([0, 1]) == [(20, 30)]
    assert held.tail_copies([0]) == []


def test_a_prompt_of_full_blocks_has_no_tail_to_copy() -> None:
    held = reservation(0, prompt_tokens=8, max_tokens=5, branches=2)
    held.blocks = tuple(range(6))
    assert held.prompt_blocks == (0, 1)
    assert held.table(1) == (0, 1, 4, 5)
    assert held.tail_copies([0, 1]) == []


def test_a_finished_branch_frees_its_own_blocks_at_once() -> None:
    books = scheduler(num_blocks=8)
    books.add_reservation(reservation(0, 6, branches=2))
    (held,) = books.admit().reservations
    books.start_decode(branches(held, lay_out([text(6)]), (0, 1)))
    first, second = books.plan().decodes
    books.finish_branch(first)
    assert books.ledger.pool.num_free_blocks == 8 - 1 - held.num_own_blocks
    books.check()
    books.finish_branch(second)
    assert books.is_idle()


def test_a_branch_that_ended_with_its_first_token_never_holds_blocks() -> None:
    books = scheduler(num_blocks=8)
    books.add_reservation(reservation(0, 6, branches=2))
    (held,) = books.admit().reservations
    books.start_decode(branches(held, lay_out([text(6)]), (1,)))
    books.check()
    assert books.ledger.pool.num_free_blocks == 8 - 1 - held.num_own_blocks


def test_a_prompt_is_computed_in_the_blocks_its_request_has_reserved() -> None:
    books = scheduler(num_blocks=4)
    books.add_reservation(reservation(0, 10, max_tokens=4))
    (held,) = books.admit().reservations
    sequence = prompt(0, [text(10)])
    books.add_prefill(sequence)
    admitted = books.admit()
    assert admitted.prefills == (sequence,)
    assert admitted.new_blocks == ()
    assert sequence.blocks == held.prompt_blocks
    books.drop_prefill(sequence.request_id)
    books.check()
    assert books.ledger.pool.num_free_blocks == 0, "the reservation goes on"


def test_a_prompt_of_another_length_than_reserved_keeps_away_from_those_blocks() -> None:
    books = scheduler()
    books.add_reservation(reservation(0, 11))
    (held,) = books.admit().reservations
    sequence = prompt(0, [text(10)])
    books.add_prefill(sequence)
    books.admit()
    assert not set(sequence.blocks) & set(held.blocks)


def test_blocks_are_announced_once_full_and_the_tail_with_the_last() -> None:
    books = scheduler(prefill_chunk_tokens=6)
    sequence = prompt(0, [text(10)], generated=(1, 2, 3, 4))
    books.add_prefill(sequence)
    books.admit()
    told: list[tuple[int, int, int, bool] | None] = []
    while plan := books.plan().chunks:
        told.append(facts(books.advance(plan[0])))
    assert told == [(1, 0, 4, False), (2, 4, 12, False), (1, 12, 14, True)]
    lent = [block for block in sequence.blocks if books.ledger.pool.shares(block) == 2]
    assert lent == list(sequence.blocks)


def test_a_chunk_that_fills_no_block_announces_nothing() -> None:
    books = scheduler(prefill_chunk_tokens=3)
    books.add_prefill(prompt(0, [text(7)]))
    books.admit()
    told = []
    while plan := books.plan().chunks:
        told.append(facts(books.advance(plan[0])))
    assert told == [None, (1, 0, 4, False), (1, 4, 7, True)]


def test_kv_that_nobody_will_decode_is_not_announced() -> None:
    books = scheduler()
    books.add_prefill(prompt(0, [text(7)], keep_kv=False))
    books.admit()
    assert books.advance(books.plan().chunks[0]) is None


def test_what_no_empty_pool_could_take_is_refused_with_both_numbers() -> None:
    books = scheduler(num_blocks=4)
    with pytest.raises(ContextTooLong, match="17 tokens need 5 KV blocks of 4 tokens, there are 4"):
        books.add_prefill(prompt(0, [text(17)]))
    with pytest.raises(ContextTooLong, match=r"4 \+ 2 x 10 tokens need 7 KV blocks of 4 tokens, there are 4"):
        books.add_reservation(reservation(0, 4, max_tokens=10, branches=2))
    assert books.is_idle()


def test_limits_name_the_setting_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match=r"language\.prefill_chunk_tokens is 0, expected at least 1"):
        scheduler(prefill_chunk_tokens=0)


@pytest.mark.parametrize(
    ("token_id", "position", "changes", "reason"),
    [
        (5, 0, {}, ""),
        (9, 0, {}, "stop"),
        (9, 0, {"ignore_eos": True}, ""),
        (9, 0, {"ignore_eos": True, "grammar": Grammar("regex", "a")}, "stop"),
        (5, 2, {}, ""),
        (5, 3, {}, "length"),
        (9, 3, {}, "stop"),
        (5, 2, {"max_tokens": 99}, ""),
        (5, 3, {"max_tokens": 99}, "length"),  # 6 + 4 tokens are the whole context
    ],
)
def test_an_answer_ends_with(token_id: int, position: int, changes: dict[str, Any], reason: str) -> None:
    sampling = Sampling(**{"max_tokens": 4, "stop_token_ids": (9,)} | changes)
    assert finish_reason(token_id, position, sampling, prompt_tokens=6, max_model_len=10) == reason


def test_masked_items_take_only_their_rows() -> None:
    """Separators inside an item's span are text: they are computed with it, and take no landing memory."""
    books = scheduler()
    sequence = prompt(0, [text(2), masked((False, True, True, False)), text(1)])
    books.add_prefill(sequence)
    books.admit()
    assert books.landing_bytes == 2 * ROW_BYTES
    assert spans(books.plan()) == [(0, 3)]


def facts(announcement: Announcement | None) -> tuple[int, int, int, bool] | None:
    if announcement is None:
        return None
    return len(announcement.blocks), announcement.tokens_begin, announcement.tokens_end, announcement.last
