"""Signs, letter grids, charts and receipts, and questions about them."""

from collections.abc import Callable, Sequence
from random import Random

from tools.tiny_vl.phrasebook import NUMBERS, ORDINALS, SHORT_ORDINALS
from tools.tiny_vl.question import Question
from tools.tiny_vl.scenes import BarChart, LetterGrid, Receipt, Sign
from tools.tiny_vl.texts import (
    CELL_CHARACTERS,
    DAYS,
    MONTHS,
    any_case,
    look_alike_string,
    pronounceable,
    readable_text,
    readable_words,
    short_words,
    string,
    unambiguous_string,
)

TEXT_BY_KIND: dict[str, Callable[[int, Random], str]] = {
    "read": unambiguous_string,
    "read-words": readable_text,
    "read-small": unambiguous_string,
    "read-look-alike": look_alike_string,
}
CHART_KINDS = frozenset(("tallest", "shortest", "bar-labels", "bar-order", "count-bars"))
RECEIPT_KINDS = frozenset(("total", "price-of", "items", "prices"))
PAGE_KINDS = frozenset((*TEXT_BY_KIND, "grid-dense", "grid-loose")) | CHART_KINDS | RECEIPT_KINDS
LONGEST_LIST = 28  # characters of an answer that lists things: what clients allow a short answer, with room to spare
_LABEL_ROWS = (  # as many of a row as there are bars
    tuple(str(year) for year in range(2015, 2031)),
    tuple(day[:3] for day in DAYS),
    tuple(month[:3] for month in MONTHS),
    tuple(month[:3].upper() for month in MONTHS),
    ("Q1", "Q2", "Q3", "Q4", "Q5"),
    tuple("ABCDEFGH"),
)
_GAP = 0.13  # between any two bars, as a share of the tallest


def invent_page(kind: str, rng: Random, longest: int = 10) -> Sign | LetterGrid | BarChart | Receipt:
    """A scene that the kind of question can be asked about; signs have at most `longest` characters."""
    if kind in TEXT_BY_KIND:
        return Sign(TEXT_BY_KIND[kind](longest, rng))
    if kind.startswith("grid"):
        return _invent_grid(kind == "grid-dense", rng)
    return invent_chart(rng) if kind in CHART_KINDS else _invent_receipt(rng)


def _invent_grid(dense: bool, rng: Random) -> LetterGrid:
    """Neighbours differ in each direction, and so do the end of a row and the beginning of the next."""
    height, width = rng.randint(2, 7), rng.randint(2, 8)
    rows: list[str] = []
    for _ in range(height):
        row = ""
        for column in range(width):
            near = rows[-1][max(0, column - 1) : column + 2] + rows[-1][-1] if rows else ""
            near += row[-1:]
            while (character := rng.choice(CELL_CHARACTERS)) in near:
                pass
            row += character
        rows.append(row)
    return LetterGrid(tuple(rows), dense)


def invent_chart(rng: Random, easy: bool = False) -> BarChart:
    """Two to five bars; an easy chart has two or three, of heights far apart."""
    count, gap = (rng.randint(2, 3), 0.3) if easy else (rng.randint(2, 5), _GAP)
    labels = _labels(count, rng)
    spare = 0.85 - gap * (count - 1)
    drops = sorted(rng.uniform(0, spare) for _ in range(count - 1))
    heights = [1.0] + [1.0 - drop - gap * (place + 1) for place, drop in enumerate(drops)]
    rng.shuffle(heights)
    return BarChart(tuple(labels), tuple(heights))


def _labels(count: int, rng: Random) -> list[str]:
    """Different labels: of one sort, as charts have them, or of any."""
    sort = rng.random()
    if sort < 0.25:
        row = rng.choice(_LABEL_ROWS)
        start = rng.randrange(len(row) - count + 1)
        return list(row[start : start + count]) if rng.random() < 0.6 else rng.sample(row, count)
    labels: list[str] = []
    longest = 6 if count < 4 else 5
    while len(labels) < count:
        if (label := _label(longest, rng)) not in labels:
            labels.append(label)
    return labels


def _label(longest: int, rng: Random) -> str:
    sort = rng.random()
    if sort < 0.3:
        return rng.choice(CELL_CHARACTERS)
    if sort < 0.5:
        return rng.choice(readable_words(5))
    if sort < 0.65:
        return any_case(rng.choice(short_words(longest)), rng)
    if sort < 0.75:
        return str(rng.randint(2, 99) if rng.random() < 0.5 else rng.randint(1990, 2035))
    if sort < 0.85:
        return string(CELL_CHARACTERS, rng.randint(2, 3), rng)
    return pronounceable(rng.randint(2, 4), rng)


def _invent_receipt(rng: Random) -> Receipt:
    names: list[str] = []
    while len(names) < rng.choices((2, 3), (80, 20))[0]:
        name = _item(rng)
        if name.lower() not in (known.lower() for known in names):
            names.append(name)
    return Receipt(tuple((name, _cents(rng)) for name in names))


def _cents(rng: Random) -> int:
    """A price up to 99.99, mostly below 20 and often a round one."""
    most = rng.choices((999, 1999, 9999), (60, 28, 12))[0]
    cents = rng.randint(50, most)
    return cents // 10 * 10 if rng.random() < 0.45 else cents


def _item(rng: Random) -> str:
    # Two-letter words can hardly be told from the words of a question.
    word = (
        rng.choice([word for word in short_words(6) if len(word) > 2]) if rng.random() < 0.7 else pronounceable(4, rng)
    )
    return rng.choice((word.upper(), word.lower(), word.capitalize()))


def price(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02}"


def ask_page(kind: str, scene: Sign | LetterGrid | BarChart | Receipt, rng: Random) -> Question | None:
    """A question of that kind, which must suit the scene; None where the answer would be too long."""
    match scene:
        case Sign(text):
            return Question(kind, "see" if rng.random() < 0.12 else "read", text, tells_all=True)
        case LetterGrid(rows):
            row, column = rng.randrange(len(rows)), rng.randrange(len(rows[0]))
            return _ask_cell(kind, rows, row, column, rng)
        case BarChart():
            return _ask_chart(kind, scene, rng)
        case Receipt():
            return _ask_receipt(kind, scene, rng)


def _ask_cell(kind: str, rows: Sequence[str], row: int, column: int, rng: Random) -> Question:
    """Row and column are counted from 0."""
    # So that no later question asks for it again.
    cell = frozenset({row * len(rows[0]) + column})
    last = (len(rows) - 1, len(rows[0]) - 1)
    corner = row in (0, last[0]) and column in (0, last[1])
    if corner and rng.random() < 0.25:
        name = f"{'bottom' if row else 'top'}{rng.choice((' ', ' ', '-'))}{'right' if column else 'left'}"
        return Question(kind, "corner", rows[row][column], {"a": name}, cell, cell)
    ordinals = SHORT_ORDINALS if rng.random() < 0.25 else ORDINALS
    fields = {
        "rth": _extreme(row, last[0], ("top", "bottom"), rng) or ordinals[row],
        "cth": _extreme(column, last[1], ("leftmost", "rightmost"), rng) or ordinals[column],
    }
    return Question(kind, "cell", rows[row][column], _numbers(row, column, rng) | fields, cell, cell)


def _extreme(place: int, last: int, names: tuple[str, str], rng: Random) -> str | None:
    """Now and then a name for the first or last of several."""
    if place not in (0, last) or rng.random() >= 0.15:
        return None
    return rng.choice((names[1], "last")) if place else names[0]


def _ask_chart(kind: str, chart: BarChart, rng: Random) -> Question | None:
    if kind == "count-bars":
        return Question(kind, kind, str(len(chart.labels)))
    if kind == "bar-labels":
        return listing(kind, kind, chart.labels)
    rising = [label for _, label in sorted(zip(chart.heights, chart.labels, strict=True))]
    if kind == "bar-order":
        falls = rng.random() < 0.5
        return listing(kind, "bars-falling" if falls else "bars-rising", rising[::-1] if falls else rising, True)
    return Question(kind, kind, rising[-1 if kind == "tallest" else 0])


def _ask_receipt(kind: str, receipt: Receipt, rng: Random) -> Question | None:
    if kind == "total":
        return Question(kind, kind, price(receipt.total))
    if kind == "items":
        return listing(kind, kind, [name for name, _ in receipt.items])
    if kind == "prices":
        return listing(kind, kind, [f"{name} {price(cents)}" for name, cents in receipt.items], True)
    name, cents = rng.choice(receipt.items)
    return Question(kind, kind, price(cents), {"a": name})


def listing(kind: str, topic: str, things: Sequence[str], tells_all: bool = False) -> Question | None:
    """A question for several things in order; None if they are too long to list."""
    answer = ", ".join(things)
    return Question(kind, topic, answer, tells_all=tells_all) if len(answer) <= LONGEST_LIST else None


def _numbers(row: int, column: int, rng: Random) -> dict[str, str]:
    """Row and column, counted from 0, as numbers for the phrasings to choose from."""
    in_words = rng.random() < 0.12 and row < len(NUMBERS) and column < len(NUMBERS)
    r, c = (NUMBERS[row], NUMBERS[column]) if in_words else (str(row + 1), str(column + 1))
    return {"r": r, "c": c}


def page_kinds(scene: Sign | LetterGrid | BarChart | Receipt) -> tuple[str, ...]:
    """Kinds that can be asked about the scene after another, one of them as often as it stands there; no extras."""
    match scene:
        case Sign():
            return ()
        case LetterGrid(dense=dense):
            return ("grid-dense" if dense else "grid-loose",) * 3
        case BarChart():
            return ("tallest", "shortest")
        case Receipt():
            return ("total", "price-of", "price-of")
