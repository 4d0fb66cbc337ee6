"""Scenes of coloured shapes, and questions about them."""

from collections.abc import Callable
from random import Random

from tools.tiny_vl.draw import arrange
from tools.tiny_vl.question import Question
from tools.tiny_vl.scenes import COLOURS, SHAPES, Figures

Name = tuple[str, str]  # shape, colour
Asker = Callable[[Figures, Random], Question | None]


def plural(shape: str) -> str:
    return shape + ("es" if shape.endswith("s") else "s")


def _distinct_names(count: int, rng: Random) -> list[Name]:
    """No two alike; often all shapes or all colours differ, or both, so that either can stand for the figure."""
    sort = rng.random()
    shapes = rng.sample(SHAPES, count) if sort < 0.75 else rng.choices(SHAPES, k=count)
    colours = rng.sample(COLOURS, count) if sort > 0.25 else rng.choices(COLOURS, k=count)
    return list(zip(shapes, colours, strict=True))


def _crowd(count: int, rng: Random) -> list[Name]:
    """Names of few shapes and colours, so that counting one of them has something to count."""
    shapes, colours = rng.sample(SHAPES, rng.randint(1, 3)), rng.sample(COLOURS, rng.randint(1, 3))
    return [(rng.choice(shapes), rng.choice(colours)) for _ in range(count)]


_ANY = ("row", "column", "scattered")
_NONE, _FIRST = frozenset[int](), frozenset({0})
_ABSENT = 0.15  # share of questions that count what is not there
_SCENE_BY_KIND: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
    "name": ((1, 1), ("single",)),
    "shape-of": ((1, 1), ("single",)),
    "colour-of": ((1, 1), ("single",)),
    "list": ((2, 3), ("row", "column")),
    "left-of": ((2, 4), ("row",)),
    "right-of": ((2, 4), ("row",)),
    "above": ((2, 4), ("column",)),
    "below": ((2, 4), ("column",)),
    "between": ((3, 4), ("row", "column")),
    "edge": ((2, 4), ("row", "column")),
    "is-where": ((2, 4), ("row", "column")),
    "exists": ((1, 4), _ANY),
    "colour-of-shape": ((2, 4), _ANY),
    "shape-of-colour": ((2, 4), _ANY),
    "count-all": ((1, 6), _ANY),
    "count-shape": ((1, 6), _ANY),
    "count-colour": ((1, 6), _ANY),
}
FIGURE_KINDS = frozenset(_SCENE_BY_KIND)
_NEAREST = {"left-of": "next-left", "right-of": "next-right", "above": "next-above", "below": "next-below"}


def invent_figures(kind: str, rng: Random) -> Figures:
    """A scene that the kind of question can be asked about."""
    (fewest, most), arrangements = _SCENE_BY_KIND[kind]
    count = rng.randint(fewest, most)
    arrangement = "single" if count == 1 else "scattered" if count > 4 else rng.choice(arrangements)
    crowded = kind.startswith("count") or (kind == "exists" and rng.random() < 0.3)
    return arrange((_crowd if crowded else _distinct_names)(count, rng), arrangement, rng)


def single_figure(rng: Random) -> Figures:
    return invent_figures("name", rng)


def ask_figures(kind: str, figures: Figures, rng: Random) -> Question | None:
    """A question of that kind, None where the scene does not allow one."""
    return _ASKERS[kind](figures, rng)


def figure_kinds(figures: Figures) -> tuple[str, ...]:
    """Kinds worth trying on the scene; see ask_figures."""
    if figures.arrangement == "single":
        return ("shape-of", "colour-of", "exists", "count-all", "count-shape", "count-colour", "name")
    binding = ("colour-of-shape", "shape-of-colour")
    weighted = ("count-all", "count-shape", "count-colour", "exists", *binding, *binding)
    if figures.arrangement == "row":
        return (*weighted, "left-of", "right-of", "between", "edge", "is-where", "list")
    if figures.arrangement == "column":
        return (*weighted, "above", "below", "between", "edge", "is-where", "list")
    return weighted


def _reference(figures: Figures, place: int, rng: Random) -> tuple[str, bool] | None:
    """What to call a figure so that no other can be meant, and whether that tells both shape and colour."""
    figure = figures.figures[place]
    others = figures.figures[:place] + figures.figures[place + 1 :]
    ways: list[tuple[str, bool]] = []
    if all(other.name != figure.name for other in others):
        ways.append((figure.name, True))
    if all(other.shape != figure.shape for other in others):
        ways += [(figure.shape, False)] * 2
    if all(other.colour != figure.colour for other in others):
        ways.append((f"{figure.colour} {rng.choice(('shape', 'figure', 'object', 'one'))}", False))
    return rng.choice(ways) if ways else None


def _everything(kind: str) -> Asker:
    def ask(figures: Figures, rng: Random) -> Question | None:
        if kind == "list" and not 2 <= len(figures.figures) <= 3:
            return None
        return Question(kind, kind, ", ".join(figure.name for figure in figures.figures), tells_all=True)

    return ask


def _shape_of(figures: Figures, rng: Random) -> Question:
    return Question("shape-of", "shape-of", figures.figures[0].shape, needs=_FIRST)


def _colour_of(figures: Figures, rng: Random) -> Question:
    return Question("colour-of", "colour-of", figures.figures[0].colour, needs=_FIRST)


def _count_all(figures: Figures, rng: Random) -> Question:
    return Question("count-all", "count-all", str(len(figures.figures)))


def _count_shape(figures: Figures, rng: Random) -> Question:
    present = [figure.shape for figure in figures.figures]
    shape = rng.choice(SHAPES) if rng.random() < _ABSENT else rng.choice(present)
    return _counted("count-shape", present, shape, plural(shape))


def _count_colour(figures: Figures, rng: Random) -> Question:
    present = [figure.colour for figure in figures.figures]
    colour = rng.choice(COLOURS) if rng.random() < _ABSENT else rng.choice(present)
    return _counted("count-colour", present, colour, colour)


def _counted(kind: str, present: list[str], wanted: str, called: str) -> Question:
    count = present.count(wanted)
    # Of a lone figure, the question that counts it names it.
    return Question(kind, kind, str(count), {"a": called}, reveals=_FIRST if count == len(present) == 1 else _NONE)


def _next_to(kind: str, step: int) -> Asker:
    """step: where the answer lies in the list, seen from the figure that is mentioned."""

    def ask(figures: Figures, rng: Random) -> Question | None:
        places = range(max(0, -step), len(figures.figures) - max(0, step))
        if not places:
            return None
        place = rng.choice(places)
        reference = _reference(figures, place, rng)
        if reference is None:
            return None
        reveals = {place + step} | ({place} if reference[1] else set())
        answer = figures.figures[place + step].name
        needs = frozenset({place + step})
        # Further figures lie on that side too: the words may say that the nearest is meant.
        beyond = place if step < 0 else len(figures.figures) - 1 - place
        topic = _NEAREST[kind] if rng.random() < (0.5 if beyond > 1 else 0.1) else kind
        return Question(kind, topic, answer, {"a": reference[0]}, needs, frozenset(reveals), orders=True)

    return ask


def _between(figures: Figures, rng: Random) -> Question | None:
    count = len(figures.figures)
    if count < 3:
        return None
    middle = rng.randint(1, count - 2)
    answer, needs = figures.figures[middle].name, frozenset({middle})
    if count == 3 and rng.random() < 0.25:
        return Question("between", "middle", answer, {}, needs, needs, orders=True)
    ends = [middle - 1, middle + 1]
    rng.shuffle(ends)
    one, other = (_reference(figures, end, rng) for end in ends)
    if one is None or other is None:
        return None
    told = {end for end, reference in zip(ends, (one, other), strict=True) if reference[1]}
    return Question("between", "between", answer, {"a": one[0], "b": other[0]}, needs, needs | told, orders=True)


def _edge(figures: Figures, rng: Random) -> Question | None:
    if len(figures.figures) < 2:
        return None
    first = rng.random() < 0.5
    sides = ("left", "right") if figures.arrangement == "row" else ("top", "bottom")
    place = 0 if first else len(figures.figures) - 1
    needs = frozenset({place})
    return Question("edge", f"edge-{sides[not first]}", figures.figures[place].name, {}, needs, needs, orders=True)


def _is_where(figures: Figures, rng: Random) -> Question | None:
    if len(figures.figures) < 2:
        return None
    one, other = rng.sample(range(len(figures.figures)), 2)
    a, b = _reference(figures, one, rng), _reference(figures, other, rng)
    if a is None or b is None:
        return None
    sides = ("left", "right") if figures.arrangement == "row" else ("above", "below")
    second = rng.random() < 0.5
    reveals = frozenset(place for place, reference in ((one, a), (other, b)) if reference[1])
    answer = "yes" if (one > other) == second else "no"
    return Question("is-where", f"is-{sides[second]}", answer, {"a": a[0], "b": b[0]}, reveals=reveals)


def _exists(figures: Figures, rng: Random) -> Question:
    place = rng.randrange(len(figures.figures))
    figure = figures.figures[place]
    shape, colour = figure.shape, figure.colour
    part = rng.choices(("both", "shape", "colour"), (70, 15, 15))[0]
    yes = rng.random() < 0.5
    if not yes:
        shape, colour = _missing(figures, part, place, rng)
    noun = rng.choice(("shape", "figure", "object")) if part == "colour" else shape
    thing = noun if part == "shape" else f"{colour} {noun}"
    fields = {"a": ("an " if thing[0] in "aeiou" else "a ") + thing, "many": thing[: -len(noun)] + plural(noun)}
    told = frozenset({place}) if yes and part == "both" else frozenset[int]()
    return Question("exists", "exists", "yes" if yes else "no", fields, told, told)


def _missing(figures: Figures, part: str, place: int, rng: Random) -> Name:
    """A name that is not there, close to one that is: right colour, wrong shape, or the other way round."""
    shapes = {figure.shape for figure in figures.figures}
    colours = {figure.colour for figure in figures.figures}
    names = {(figure.shape, figure.colour) for figure in figures.figures}
    figure = figures.figures[place]
    if part == "both" and rng.random() < 0.8:
        swapped = [(shape, colour) for shape in sorted(shapes) for colour in sorted(colours)]
        near = [(shape, figure.colour) for shape in SHAPES] + [(figure.shape, colour) for colour in COLOURS]
        free = [name for name in swapped if name not in names]
        return rng.choice(free if free and rng.random() < 0.5 else [name for name in near if name not in names])
    absent_shape = rng.choice([shape for shape in SHAPES if shape not in shapes])
    absent_colour = rng.choice([colour for colour in COLOURS if colour not in colours])
    return absent_shape, absent_colour


def _colour_of_shape(figures: Figures, rng: Random) -> Question | None:
    shapes = [figure.shape for figure in figures.figures]
    places = [place for place, shape in enumerate(shapes) if shapes.count(shape) == 1]
    if not places:
        return None
    told = frozenset({place := rng.choice(places)})
    answer = figures.figures[place].colour
    return Question("colour-of-shape", "colour-of-shape", answer, {"a": shapes[place]}, told, told)


def _shape_of_colour(figures: Figures, rng: Random) -> Question | None:
    colours = [figure.colour for figure in figures.figures]
    places = [place for place, colour in enumerate(colours) if colours.count(colour) == 1]
    if not places:
        return None
    told = frozenset({place := rng.choice(places)})
    answer = figures.figures[place].shape
    return Question("shape-of-colour", "shape-of-colour", answer, {"a": colours[place]}, told, told)


_ASKERS: dict[str, Asker] = {
    "name": _everything("name"),
    "list": _everything("list"),
    "shape-of": _shape_of,
    "colour-of": _colour_of,
    "count-all": _count_all,
    "count-shape": _count_shape,
    "count-colour": _count_colour,
    "left-of": _next_to("left-of", -1),
    "right-of": _next_to("right-of", 1),
    "above": _next_to("above", -1),
    "below": _next_to("below", 1),
    "between": _between,
    "edge": _edge,
    "is-where": _is_where,
    "exists": _exists,
    "colour-of-shape": _colour_of_shape,
    "shape-of-colour": _shape_of_colour,
}
