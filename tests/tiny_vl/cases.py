"""Questions whose right answer a fault changes: told by what the pictures show, never by what a model answers."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from tests.tiny_vl.spoil import swapped_pair
from tools.tiny_vl.exam import Question, draw_question
from tools.tiny_vl.families import FAMILIES
from tools.tiny_vl.scenes import Figures, Picture, Sample, Sign
from triptych.models.card import ModelCard

_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_NAMING_ONE = ("nth-says", "nth-shows", "first-last", "earlier-turn")  # its answer is what one shows
_POINTING = ("which-says", "which-shows")  # its answer is an ordinal
_WITHOUT_PICTURES = ("text-only",)
_SHOWING_NOTHING = ("blank",)  # rows that are all alike: no order or place of theirs can be wrong

Seeing = Callable[[Question], bool]


def families_with_pictures() -> dict[str, tuple[str, ...]]:
    """Kinds by family, of all that are about something to be seen."""
    left_out = (*_WITHOUT_PICTURES, *_SHOWING_NOTHING)
    return {family: tuple(kind.name for kind in kinds) for family, kinds in FAMILIES.items() if family not in left_out}


def of_every_family(per_family: int, seed: int) -> dict[str, list[Question]]:
    """Questions by family, evenly of its kinds, each with a picture at least."""
    return {
        family: _take(per_family, kinds, seed, lambda question: bool(question.images))
        for family, kinds in families_with_pictures().items()
    }


def of_kind(kind: str, number: int, seed: int) -> list[Question]:
    return [draw_question(kind, seed, index) for index in range(number)]


def changed_by_swap(number: int, seed: int, card: ModelCard) -> list[Question]:
    """Questions about one of several pictures that `swapped_pair` moves, where another is in its place then."""

    def changes(question: Question) -> bool:
        sample = question.sample
        pair = swapped_pair([_rows(image.size, card) for image in question.images])
        asked = asked_picture(sample)
        if pair is None or asked not in pair:
            return False
        if sample.kind in _POINTING:
            return True  # the one that is asked for has another place now
        other = sample.pictures[pair[0] if asked == pair[1] else pair[1]]
        return shown(other) != sample.turns[-1].answer

    return _take(number, (*_NAMING_ONE, *_POINTING), seed, changes)


def changed_by_drop(number: int, seed: int) -> list[Question]:
    """Half about the only picture there is, evenly of every family with such questions; half about the first of
    several, evenly of the kinds whose answer is what one picture shows.
    """

    def only(question: Question) -> bool:
        return len(question.images) == 1

    def first_of_several(question: Question) -> bool:
        return len(question.images) > 1 and asked_picture(question.sample) == 0

    families = families_with_pictures()
    alone = [kinds for family, kinds in families.items() if family not in ("multi-image", "which-image")]
    named = [(kind,) for kind in _NAMING_ONE]
    return [
        *_evenly(number - number // 2, alone, seed, only),
        *_evenly(number // 2, named, seed, first_of_several),
    ]


def asked_picture(sample: Sample) -> int | None:
    """The one picture that the answer is about; None where there is none such, or it cannot be told."""
    answer = sample.turns[-1].answer
    if sample.kind in _POINTING:
        return _ORDINALS.index(answer)
    showing = [index for index, picture in enumerate(sample.pictures) if shown(picture) == answer]
    return showing[0] if sample.kind in _NAMING_ONE and len(showing) == 1 else None


def shown(picture: Picture) -> str | None:
    """The right answer to what a picture says or shows, where that is one thing."""
    scene = picture.scene
    if isinstance(scene, Sign):
        return scene.text
    if isinstance(scene, Figures) and len(scene.figures) == 1:
        return scene.figures[0].name
    return None


def _evenly(number: int, groups: Sequence[Sequence[str]], seed: int, wanted: Seeing) -> list[Question]:
    """So many in all, of each group of kinds as many as of any other, or one more."""
    each, more = divmod(number, len(groups))
    return [
        question for place, kinds in enumerate(groups) for question in _take(each + (place < more), kinds, seed, wanted)
    ]


def _take(number: int, kinds: Sequence[str], seed: int, wanted: Seeing) -> list[Question]:
    """The first so many that are wanted, the kinds taking turns."""
    return list(itertools.islice(filter(wanted, _in_turn(kinds, seed)), number))


def _in_turn(kinds: Sequence[str], seed: int) -> Iterator[Question]:
    for index in itertools.count():
        for kind in kinds:
            yield draw_question(kind, seed, index)


def _rows(size: tuple[int, int], card: ModelCard) -> int:
    return card.adapter.plan(*size, {}).rows
