"""What a panel, a row and a board are, before any JSON."""

import enum
from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "short", "percentunit", "percent", "reqps", "bytes", "Bps", "mbytes", "ops", "watt", "celsius"]
GRID_COLUMNS = 24
QUERY_LETTERS = "ABCDEFGH"  # by which Grafana knows a panel's queries; with more lines nobody reads it


class Kind(enum.StrEnum):
    """How a panel draws what its queries find."""

    LINES = "lines"
    AREAS = "areas"  # stacked: parts of a whole
    NUMBER = "number"  # the latest value of each series
    HEATMAP = "heatmap"  # buckets of one histogram over time
    TABLE = "table"  # the latest value of each series, a line each


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL with Grafana's variables in it, and what its series are called: `{{label}}` stands for a label."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a value is to be looked at, and where it is wrong; from below where `bad` is the smaller of the two."""

    warn: float
    bad: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture.

    read:  what is seen, and what a good one looks like
    act:   what to do about a bad one
    width: columns of the grid's 24
    """

    title: str
    read: str
    act: str
    unit: Unit
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    limits: Limits | None = None
    width: int = 12

    def __post_init__(self) -> None:
        if not self.queries or not self.read.endswith(".") or not self.act.endswith("."):
            raise ValueError(
                f"panel {self.title!r} needs queries, and sentences that say how to read it and what to do"
            )
        if len(self.queries) > len(QUERY_LETTERS):
            raise ValueError(f"panel {self.title!r} has {len(self.queries)} queries, at most {len(QUERY_LETTERS)} fit")


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading; `repeat`: a variable, of whose every value there is such a row."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of a board: the values of one label of one metric."""

    name: str
    label: str
    query: str


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `uid` is its address, which links and bookmarks keep."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
