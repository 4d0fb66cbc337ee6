"""The mix of kinds in training, and what it holds when: easy before hard, and answers that rest on others."""

from itertools import pairwise
from random import Random

import pytest

from tools.tiny_vl.album_scenes import pair_of_signs
from tools.tiny_vl.conversations import draw_training_sample
from tools.tiny_vl.draw import processor_size
from tools.tiny_vl.families import FAMILIES, KINDS
from tools.tiny_vl.questions_pages import invent_chart
from tools.tiny_vl.scenes import LetterGrid, Picture, Sign
from tools.tiny_vl.setting import Setting, training_setting


def test_weights_of_all_kinds_add_up_to_one() -> None:
    assert sum(kind.weight for kind in KINDS.values()) == pytest.approx(1)
    assert sum(kind.early_weight for kind in KINDS.values()) == pytest.approx(1)
    assert [kind for family in FAMILIES.values() for kind in family] == list(KINDS.values())


def test_unlike_texts_are_near_misses_in_no_more_than_half_of_the_cases() -> None:
    rng = Random(12)
    pairs = [[sign.text for sign in pair_of_signs(False, rng, Setting()) if isinstance(sign, Sign)] for _ in range(400)]
    near = sum(
        len(one) == len(two) and sum(a != b for a, b in zip(one, two, strict=True)) == 1 and len(one) > 2
        for one, two in pairs
    )
    assert all(one != two for one, two in pairs)
    assert 100 < near < 210


def test_training_starts_easy_and_ends_with_every_kind() -> None:
    rng = Random(9)
    start = [draw_training_sample(rng, 0.0) for _ in range(120)]
    assert max(len(p.scene.text) for s in start for p in s.pictures if isinstance(p.scene, Sign)) <= 2
    assert max(len(sample.pictures) for sample in start) == 1
    later = [draw_training_sample(rng, 0.9) for _ in range(1400)]
    assert {turn.kind for sample in later for turn in sample.turns} == set(KINDS)
    lost = sum(any(picture.lost for picture in sample.pictures) for sample in later)
    assert 0.005 < lost / len(later) < 0.03
    assert all(s.turns[-1].answer == "nothing" for s in later if len(s.pictures) == 1 and s.pictures[0].lost)
    assert sum(len(sample.turns) > 1 for sample in later) > 0.25 * len(later)


def test_charts_and_albums_are_easy_before_they_are_hard() -> None:
    rng = Random(13)

    def share_of_two(progress: float) -> float:
        samples = [draw_training_sample(rng, progress) for _ in range(800)]
        pairs = [len(s.pictures) == 2 for s in samples if s.turns[0].kind in ("same-text", "same-shape", "same-colour")]
        return sum(pairs) / len(pairs)

    assert share_of_two(0.15) > share_of_two(0.9)
    assert training_setting(0.0)[0].ease > 0.5
    assert training_setting(0.9)[0].ease == Setting().ease == 0


@pytest.mark.parametrize("kinds", [{"same-text"}, {"which-says"}, {"tallest", "shortest"}, {"price-of"}])
def test_most_hard_questions_stand_alone_but_some_follow_a_reading(kinds: set[str]) -> None:
    rng = Random(14)
    alone = after_reading = 0
    for sample in (draw_training_sample(rng, 0.9) for _ in range(1500)):
        asked = [turn.kind for turn in sample.turns]
        if not kinds & set(asked):
            continue
        before = asked[: next(place for place, kind in enumerate(asked) if kind in kinds)]
        reads = {*before} & {"bar-order", "bar-labels", "items", "prices", "all-say", "nth-says"}
        after_reading, alone = after_reading + bool(reads), alone + (not reads)
    assert 0 < after_reading < alone


def test_a_chart_to_begin_with_has_few_bars_far_apart() -> None:
    rng = Random(15)
    for heights in (sorted(invent_chart(rng, easy=True).heights) for _ in range(100)):
        assert len(heights) <= 3
        assert all(upper - lower >= 0.29 for lower, upper in pairwise(heights))


def test_in_training_a_grid_that_the_tower_is_told_wrongly_shows_nothing() -> None:
    rng = Random(9)
    met = 0
    for _ in range(3000):
        sample = draw_training_sample(rng, 0.9)
        for turn in sample.turns:
            for picture in (part for part in turn.parts if isinstance(part, Picture) and part.told):
                met += 1
                width, height = processor_size(picture.image.size)
                assert picture.told is not None
                lines, columns = picture.told
                assert lines * columns == width // 28 * (height // 28)
                assert (lines, columns) != (height // 28, width // 28)
                assert isinstance(picture.scene, LetterGrid)
                assert turn.answer == "nothing"
    assert 20 < met < 90
