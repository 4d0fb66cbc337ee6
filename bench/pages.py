"""Tables of figures in bench/README.md: between two marks, written by the script that made the figures."""

from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parent / "README.md"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table; every column but the first aligned to the right."""
    line = ["| " + " | ".join(header) + " |"]
    line.append("|" + "|".join(["---", *["---:"] * (len(header) - 1)]) + "|")
    return line + ["| " + " | ".join(row) + " |" for row in rows]


def fill(page: Path, mark: str, lines: Sequence[str]) -> None:
    """Puts the lines between `<!-- mark -->` and `<!-- /mark -->`. Raises ValueError where the page has no such marks.

    Everything else on the page stays as it is.
    """
    text = page.read_text()
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"{page.name} has no pair of marks {begin.strip()} and {end}")
    page.write_text(before + begin + "".join(f"{line}\n" for line in lines) + closed + after)


def seconds(value: float | None) -> str:
    """As people read it: 3.21 ms, 950 µs, 1.20 s; a dash for None."""
    if value is None:
        return "–"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if value * scale >= 1 or unit == "µs":
            return f"{value * scale:.3g} {unit}"
    raise AssertionError(value)


def amount(value: float, unit: str) -> str:
    """As 6.61 TFLOP, 14.2 GB; a dash for nothing."""
    if not value:
        return "–"
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value / 1e3:.3g} k{unit}"
