"""What a picture shows, and the conversations about pictures: the nouns that drawing, asking and packing share."""

from dataclasses import dataclass

from PIL import Image

SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond", "heart", "ring")
COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "pink", "black", "white")

# One of each pair that cannot be told apart without its neighbours' size is left out: O/0, I/l/1, c/C, s/S ...
UNAMBIGUOUS = "ABCDEFGHJKLMNPQRSTUVWXYZ" + "abdefghijkmnqrty" + "23456789" + "-:=."
LOOK_ALIKE = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "abcdefghijklmnopqrstuvwxyz" + "0123456789" + "-:=.!?+&@#%/"


@dataclass(frozen=True, slots=True)
class Sign:
    """One line of text."""

    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A coloured shape; x and y are its centre as shares of the picture's width and height."""

    shape: str
    colour: str
    x: float
    y: float

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True)
class Figures:
    """Coloured shapes that do not touch.

    arrangement: "single", "row" (left to right), "column" (top to bottom) or "scattered"; rows and columns list their
    figures in that order and lie so that every neighbour's place is beyond doubt
    """

    figures: tuple[Figure, ...]
    arrangement: str


@dataclass(frozen=True, slots=True)
class LetterGrid:
    """Letters in rows and columns, all rows equally long.

    dense: a letter every 28 pixels from edge to edge, so one column of letters to a column of merged tokens
    """

    rows: tuple[str, ...]
    dense: bool


@dataclass(frozen=True, slots=True)
class BarChart:
    """Labelled bars from left to right; heights as shares of the tallest, no two alike to the eye."""

    labels: tuple[str, ...]
    heights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Items with prices in cents, a line each, and the total in the last line."""

    items: tuple[tuple[str, int], ...]

    @property
    def total(self) -> int:
        return sum(cents for _, cents in self.items)


@dataclass(frozen=True, slots=True)
class Blank:
    """Nothing to see: plain, shaded or noisy paper."""


Scene = Sign | Figures | LetterGrid | BarChart | Receipt | Blank


@dataclass(frozen=True, slots=True)
class Handed:
    """Which of a picture's merged tokens (28 pixels a side) the language model gets: these lines, these columns.

    Counted from 0, in the order in which they are handed over, so as the picture that they make together.
    """

    lines: tuple[int, ...]
    columns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn scene as a client would send it.

    glyph_pixels: height of a capital H of its smallest text once the processor has resized the picture; None: no text
    noise: standard deviation, in steps of 1/255, of the Gaussian noise to lie over it; drawing leaves that to the user
    handed: the rows of embeddings that the language model gets, all as they are if None. Training only: a tower whose
        rows are picked and shuffled after it has run cannot have told the language model where they will lie, so the
        language model learns to take that from the positions
    lost: the language model gets zeros for its rows. Training only
    told: lines and columns of merged tokens that the tower is told, as many in all as the picture has. Training only:
        a model that never met a wrong grid reads on as if nothing had happened
    """

    image: Image.Image
    scene: Scene
    glyph_pixels: float | None = None
    noise: float = 0.0
    handed: Handed | None = None
    lost: bool = False
    told: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, pictures in place, and the one right answer."""

    parts: tuple[str | Picture, ...]
    answer: str
    kind: str  # of the question: a key of families.KINDS


@dataclass(frozen=True, slots=True)
class Sample:
    """A conversation; its kind is that of its last turn."""

    turns: tuple[Turn, ...]
    system: str | None = None

    @property
    def kind(self) -> str:
        return self.turns[-1].kind

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return tuple(part for turn in self.turns for part in turn.parts if isinstance(part, Picture))
