"""What is asked is answerable, and answered right."""

from collections import Counter
from collections.abc import Set
from itertools import pairwise
from random import Random

import pytest

from tools.tiny_vl.conversations import draw_sample
from tools.tiny_vl.families import KINDS
from tools.tiny_vl.question import Question, leaks
from tools.tiny_vl.questions import ask, invent
from tools.tiny_vl.questions_figures import FIGURE_KINDS, figure_kinds, invent_figures
from tools.tiny_vl.questions_pages import CHART_KINDS, RECEIPT_KINDS
from tools.tiny_vl.scenes import (
    COLOURS,
    SHAPES,
    BarChart,
    Figure,
    Figures,
    LetterGrid,
    Receipt,
    Sample,
    Scene,
    Sign,
)
from tools.tiny_vl.texts import near_miss, readable_text

NAMES = {f"{colour} {shape}" for colour in COLOURS for shape in SHAPES}
ORDINALS = {"first", "second", "third", "fourth", "fifth", "sixth"}
ANSWERS: dict[str, Set[str]] = {
    "name": NAMES,
    "shape-of": set(SHAPES),
    "shape-of-colour": set(SHAPES),
    "colour-of": set(COLOURS),
    "colour-of-shape": set(COLOURS),
    **dict.fromkeys(("left-of", "right-of", "above", "below", "between", "edge"), NAMES),
    **dict.fromkeys(("count-all", "count-shape", "count-colour", "how-many-images"), frozenset("0123456")),
    "count-bars": set("2345"),
    **dict.fromkeys(("is-where", "exists", "same-text", "same-shape", "same-colour"), frozenset(("yes", "no"))),
    **dict.fromkeys(("which-says", "which-shows"), ORDINALS),
    "blank": {"nothing"},
}
NEIGHBOURS = [("left-of", "x", -1), ("right-of", "x", 1), ("above", "y", -1), ("below", "y", 1)]
YES_OR_NO = ("is-where", "exists", "same-text", "same-shape", "same-colour")


def drawn(kind: str, count: int, held_out_phrasing: bool = False) -> list[Sample]:
    return [draw_sample(kind, Random(f"{kind} {number}"), held_out_phrasing) for number in range(count)]


def asked(kind: str, count: int) -> list[tuple[Figures, Question]]:
    """Questions about figures, with their scenes."""
    rng = Random(kind)
    found = [invent(kind, rng) for _ in range(count)]
    return [(scene, question) for scene, question in found if isinstance(scene, Figures)]


def meant(scene: Figures, reference: str) -> Figure:
    """The one figure that the words can mean."""
    words = reference.split()
    fits = [
        figure
        for figure in scene.figures
        if all(word in (figure.shape, figure.colour) for word in words if word in SHAPES + COLOURS)
    ]
    assert len(fits) == 1, f"{reference!r} could mean {fits}"
    return fits[0]


def words_of(sample: Sample) -> str:
    return " ".join(part for turn in sample.turns for part in turn.parts if isinstance(part, str))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_of_its_kind_and_the_same_for_the_same_seed(kind: str) -> None:
    for sample, again in zip(drawn(kind, 3), drawn(kind, 3), strict=True):
        assert sample.kind == kind
        assert sample.turns[-1].answer in ANSWERS.get(kind, {sample.turns[-1].answer})
        assert not any(picture.lost or picture.handed for picture in sample.pictures)
        assert (words_of(sample), sample.turns[-1].answer) == (words_of(again), again.turns[-1].answer)
        assert [p.image.tobytes() for p in sample.pictures] == [p.image.tobytes() for p in again.pictures]


@pytest.mark.parametrize("kind", YES_OR_NO)
def test_yes_is_as_frequent_as_no(kind: str) -> None:
    answers = Counter(sample.turns[-1].answer for sample in drawn(kind, 100))
    assert 33 <= answers["yes"] <= 67


@pytest.mark.parametrize(
    ("kind", "along", "step"), [("left-of", "x", -1), ("right-of", "x", 1), ("above", "y", -1), ("below", "y", 1)]
)
def test_a_neighbour_is_the_next_figure_on_that_side(kind: str, along: str, step: int) -> None:
    for scene, question in asked(kind, 200):
        there = getattr(meant(scene, question.fields["a"]), along)
        beyond = [figure for figure in scene.figures if (getattr(figure, along) - there) * step > 0]
        assert question.answer == min(beyond, key=lambda figure: abs(getattr(figure, along) - there)).name


def test_what_is_between_lies_between() -> None:
    for scene, question in asked("between", 200):
        (answer,) = [figure for figure in scene.figures if figure.name == question.answer]
        if question.topic == "between":
            one, other = (meant(scene, question.fields[slot]) for slot in "ab")
            assert min(one.x, other.x) < answer.x < max(one.x, other.x) or min(one.y, other.y) < answer.y < max(
                one.y, other.y
            )


def test_the_edge_is_the_outermost_figure() -> None:
    most = {"left": (min, "x"), "right": (max, "x"), "top": (min, "y"), "bottom": (max, "y")}
    for scene, question in asked("edge", 200):
        outermost, along = most[question.topic.removeprefix("edge-")]
        assert question.answer == outermost(scene.figures, key=lambda figure: getattr(figure, along)).name


def test_is_where_tells_the_order_of_places() -> None:
    for scene, question in asked("is-where", 200):
        a, b = (meant(scene, question.fields[slot]) for slot in "ab")
        true = {"is-left": a.x < b.x, "is-right": a.x > b.x, "is-above": a.y < b.y, "is-below": a.y > b.y}
        assert question.answer == ("yes" if true[question.topic] else "no")


def test_counts_count() -> None:
    for kind in ("count-all", "count-shape", "count-colour"):
        for scene, question in asked(kind, 150):
            wanted = question.fields.get("a", "")
            counted = [
                figure for figure in scene.figures if wanted in ("", figure.colour) or wanted.startswith(figure.shape)
            ]
            assert question.answer == str(len(counted))


def test_an_absent_figure_is_often_a_near_miss() -> None:
    near = 0
    for scene, question in asked("exists", 300):
        words = [word for word in question.fields["a"].split() if word in SHAPES + COLOURS]
        present = any(all(word in figure.name.split() for word in words) for figure in scene.figures)
        assert question.answer == ("yes" if present else "no")
        near += not present and any(word in figure.name.split() for word in words for figure in scene.figures)
    assert near > 60


def test_bindings_name_the_one_figure() -> None:
    for scene, question in asked("colour-of-shape", 150):
        assert meant(scene, question.fields["a"]).colour == question.answer
    for scene, question in asked("shape-of-colour", 150):
        assert meant(scene, question.fields["a"]).shape == question.answer


def test_bars_differ_to_the_eye_and_totals_add_up() -> None:
    rng = Random(5)
    for kind in sorted(CHART_KINDS | RECEIPT_KINDS) * 50:
        scene, question = invent(kind, rng)
        if isinstance(scene, BarChart):
            heights = sorted(scene.heights)
            assert heights[-1] == 1
            assert all(upper - lower >= 0.12 for lower, upper in pairwise(heights))
            assert question.answer == told_of_chart(scene, question)
        else:
            assert isinstance(scene, Receipt)
            assert question.answer == told_of_receipt(scene, question)


def told_of_chart(chart: BarChart, question: Question) -> str:
    label_by_height = dict(zip(chart.heights, chart.labels, strict=True))
    rising = [label_by_height[height] for height in sorted(label_by_height)]
    return {
        "tallest": rising[-1],
        "shortest": rising[0],
        "bar-labels": ", ".join(chart.labels),
        "bars-rising": ", ".join(rising),
        "bars-falling": ", ".join(reversed(rising)),
        "count-bars": str(len(rising)),
    }[question.topic]


def told_of_receipt(receipt: Receipt, question: Question) -> str:
    prices = {name: f"{cents / 100:.2f}" for name, cents in receipt.items}
    return {
        "total": f"{receipt.total / 100:.2f}",
        "price-of": prices.get(question.fields.get("a", "")),
        "items": ", ".join(prices),
        "prices": ", ".join(f"{name} {price}" for name, price in prices.items()),
    }[question.topic] or ""


def test_grid_neighbours_differ_so_that_a_shifted_row_shows() -> None:
    rng = Random(6)
    for _ in range(100):
        scene, question = invent("grid-dense", rng)
        assert isinstance(scene, LetterGrid)
        text = "".join(scene.rows)
        assert all(one != other for one, other in pairwise(text))
        assert question.answer in text


def test_a_cell_is_the_one_that_its_row_and_column_name() -> None:
    rng = Random(17)
    met = Counter[str]()
    for _ in range(1500):
        scene, question = invent("grid-loose", rng)
        assert isinstance(scene, LetterGrid)
        fields, last = question.fields, (len(scene.rows) - 1, len(scene.rows[0]) - 1)
        if question.topic == "corner":
            row, column = (last[0] * ("bottom" in fields["a"]), last[1] * ("right" in fields["a"]))
        else:
            row, column = placed(fields["rth"], last[0]), placed(fields["cth"], last[1])
            assert {fields["r"], fields["c"]} <= {*"12345678", "one", "two", "three", "four", "five", "six"}
        assert question.answer == scene.rows[row][column]
        met[question.topic] += 1
    assert met["corner"] > 50


def placed(name: str, last: int) -> int:
    """The place, from 0, that a row's or a column's name means."""
    ordinals = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
    if name in ordinals:
        return ordinals.index(name)
    if name[0].isdigit():
        return int(name[0]) - 1
    return 0 if name in ("top", "leftmost") else last


def test_which_image_names_the_only_one() -> None:
    for sample in drawn("which-says", 60):
        texts = [picture.scene.text if isinstance(picture.scene, Sign) else "" for picture in sample.pictures]
        place = ("first", "second", "third", "fourth", "fifth", "sixth").index(sample.turns[-1].answer)
        assert texts[place] in words_of(sample)
        assert sum(texts[place] in text for text in texts) == 1


def test_same_text_means_the_same_text() -> None:
    for sample in drawn("same-text", 60):
        texts = [picture.scene.text for picture in sample.pictures if isinstance(picture.scene, Sign)]
        if len(sample.pictures) == 2:
            assert sample.turns[-1].answer == ("yes" if texts[0] == texts[1] else "no")


def test_all_pictures_are_told_in_order() -> None:
    for kind in ("all-say", "all-show"):
        for sample in drawn(kind, 40):
            shown = [
                scene.text if isinstance(scene, Sign) else scene.figures[0].name
                for scene in (picture.scene for picture in sample.pictures)
                if isinstance(scene, Sign | Figures)
            ]
            assert sample.turns[-1].answer == ", ".join(shown)


def test_later_questions_are_not_answered_by_earlier_ones() -> None:
    rng = Random(7)
    figures = invent_figures("left-of", rng)
    binding = Question("colour-of-shape", "colour-of-shape", "red", {"a": "star"}, frozenset({0}), frozenset({0}))
    assert leaks([binding], Question("edge", "edge-left", "red star", needs=frozenset({0}), orders=True))
    assert not leaks([binding], Question("edge", "edge-right", "blue ring", needs=frozenset({1}), orders=True))
    everything = ask("list", figures, rng)
    assert everything is None or leaks([everything], Question("count-all", "count-all", "2"))


def test_a_lone_figure_is_counted_too_and_absent_ones_are_none() -> None:
    answers = Counter(
        (len(scene.figures) == 1, question.answer)
        for kind in ("count-shape", "count-colour")
        for scene, question in asked(kind, 300)
    )
    assert answers[True, "1"] > answers[True, "0"] > 0
    assert answers[False, "0"] > 20


def test_many_prices_are_small_and_a_few_are_large() -> None:
    rng = Random(16)
    cents = [item[1] for _ in range(300) for item in receipt_of(invent("total", rng)[0]).items]
    assert max(cents) <= 9999
    assert sum(cent > 2000 for cent in cents) > 20
    assert sum(cent < 2000 for cent in cents) > 0.8 * len(cents)


def receipt_of(scene: Scene) -> Receipt:
    assert isinstance(scene, Receipt)
    return scene


def test_figures_allow_the_kinds_they_promise() -> None:
    rng = Random(8)
    for kind in sorted(FIGURE_KINDS):
        figures = invent_figures(kind, rng)
        assert set(figure_kinds(figures)) <= FIGURE_KINDS
        assert any(ask(other, figures, rng) for other in figure_kinds(figures))


def test_a_near_miss_differs_in_one_character() -> None:
    rng = Random(11)
    for text in (readable_text(10, rng) for _ in range(200)):
        other = near_miss(text, rng)
        assert sum(one != two for one, two in zip(text, other, strict=True)) == 1
