"""Faults spoil what they should and nothing else, and cases are those that they must change."""

import itertools
from collections import Counter
from pathlib import Path

import pytest
import torch

from tests.tiny_vl import cases
from tests.tiny_vl.measure_faults import changed
from tests.tiny_vl.spoil import Fault, Switch, spoil_rows, swapped_pair, wrong_grid
from tools.tiny_vl.exam import Reply, distance, draw_question
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.intervals import Tally
from triptych.journey import Grid
from triptych.models.card import load_card


def rows(*counts: int) -> list[torch.Tensor]:
    return [torch.arange(count * 3.0).view(count, 3) + 100 * item for item, count in enumerate(counts)]


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.SEQUENTIAL, Fault.GRID])
def test_rows_are_left_alone_by_other_faults(fault: Fault) -> None:
    items = rows(4, 4)
    spoil_rows(fault, items)
    assert all(map(torch.equal, items, rows(4, 4)))


def test_the_first_two_items_of_equal_length_are_swapped() -> None:
    items, before = rows(2, 5, 3, 5, 5), rows(2, 5, 3, 5, 5)
    spoil_rows(Fault.SWAPPED, items)
    assert all(map(torch.equal, items, [before[i] for i in (0, 3, 2, 1, 4)]))
    assert swapped_pair([1, 2, 3]) is None


def test_a_drop_takes_the_first_item_and_a_rotation_all() -> None:
    dropped, rotated, before = rows(2, 3), rows(2, 3), rows(2, 3)
    spoil_rows(Fault.DROPPED, dropped)
    spoil_rows(Fault.ROTATED, rotated)
    assert not dropped[0].any()
    assert torch.equal(dropped[1], before[1])
    assert torch.equal(rotated[1], before[1][[2, 0, 1]])


def test_a_wrong_grid_is_another_one_of_as_many_whole_cells() -> None:
    for h, w in itertools.product(range(2, 34, 2), repeat=2):
        wrong = wrong_grid(Grid(1, h, w))
        assert wrong.patches == h * w
        assert (wrong.h % 2, wrong.w % 2) == (0, 0)
        assert (wrong == Grid(1, h, w)) == (h == w == 2)


def test_a_switch_that_was_never_set_is_off(tmp_path: Path) -> None:
    switch = Switch(tmp_path / "fault")
    assert switch.fault is Fault.NONE
    switch.set(Fault.GRID)
    assert Switch(tmp_path / "fault").fault is Fault.GRID


def test_a_swap_changes_what_the_asked_picture_shows() -> None:
    card = load_card("tiny-vl", "auto")
    for question in cases.changed_by_swap(12, 1, card):
        counts = [card.adapter.plan(*image.size, {}).rows for image in question.images]
        pair = swapped_pair(counts)
        assert pair is not None
        assert cases.asked_picture(question.sample) in pair
        assert counts[pair[0]] == counts[pair[1]]


@pytest.mark.parametrize("number", [5, 30, 31])
def test_questions_that_a_drop_changes_are_spread_evenly(number: int) -> None:
    questions = cases.changed_by_drop(number, 1)
    assert len(questions) == number
    alone, of_several = questions[: number - number // 2], questions[number - number // 2 :]
    families = Counter(KINDS[question.sample.kind].family for question in alone)
    kinds = Counter(question.sample.kind for question in of_several)
    assert len(families) == min(len(alone), 12)
    for counts in (families, kinds):
        assert max(counts.values()) - min(counts.values()) <= 1


def test_only_right_answers_count_as_changed() -> None:
    sample = draw_question("who-are-you", 1, 0).sample
    answer = sample.turns[-1].answer
    right, wrong, other = (Reply(sample, text, True, {}) for text in (answer, "a", "b"))
    assert changed([right, right, wrong], [other, right, other], 0.95) == Tally(1, 2, 0.95)
    assert changed([wrong], [other], 0.95).total == 0


def test_the_same_question_is_drawn_again_and_every_seed_has_its_own() -> None:
    first, again, other = draw_question("read", 1, 0), draw_question("read", 1, 0), draw_question("read", 2, 0)
    assert first.images == again.images
    assert first.sample.turns[-1].answer == again.sample.turns[-1].answer
    assert first.images != other.images


def test_a_reply_is_right_only_to_the_letter_and_when_the_model_ended_it() -> None:
    sample = draw_question("who-are-you", 1, 0).sample
    answer = sample.turns[-1].answer
    assert Reply(sample, answer, True, {}).is_right
    assert not Reply(sample, answer, False, {}).is_right
    assert not Reply(sample, answer + " ", True, {}).is_right


def test_distance_counts_what_only_one_reply_lists_as_no_likelier_than_the_others_last() -> None:
    sample = draw_question("who-are-you", 1, 0).sample
    one = Reply(sample, "", True, {b"a": -0.1, b"b": -3.0})
    other = Reply(sample, "", True, {b"a": -0.3, b"c": -5.0})
    assert distance(one, one) == 0
    assert distance(one, other) == distance(other, one) == pytest.approx(2.0)
