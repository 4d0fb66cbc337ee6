"""The list of the article's mechanisms is whole, and what it names exists."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NUM_ROWS = 98
UNNECESSARY = "ARCHITECTURE"
HEADING = "## Rows of the article that our design makes unnecessary"


@dataclass(frozen=True)
class Row:
    """One mechanism; `proofs` are tests as file::name, or UNNECESSARY."""

    number: int
    name: str
    code: str
    proofs: tuple[str, ...]

    @property
    def tests(self) -> list[str]:
        return [proof for proof in self.proofs if proof != UNNECESSARY]


def _table(text: str) -> list[list[str]]:
    """Cells of all table lines that begin with a number."""
    lines = (line.strip().strip("|").split(" | ") for line in text.splitlines() if re.match(r"\| \d+ \|", line))
    return [[cell.strip() for cell in cells] for cells in lines]


def _read_rows() -> list[Row]:
    cells = _table((ROOT / "tests" / "spec_rows.md").read_text())
    return [Row(int(row), name, code, tuple(proofs.split("; "))) for row, name, code, proofs in cells]


ROWS = _read_rows()


def _functions(file: Path) -> set[str]:
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, kinds)}


def _reasons() -> dict[int, str]:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition(HEADING)[2].partition("\n## ")[0]
    return {int(row): reason for row, _, reason in _table(text)}


def test_every_row_of_the_article_stands_here_once() -> None:
    assert [row.number for row in ROWS] == list(range(1, NUM_ROWS + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_what_a_row_names_exists(row: Row) -> None:
    assert row.proofs != ("",)
    assert row.code == "–" or (ROOT / row.code).is_file(), row.code
    assert row.code != "–" or UNNECESSARY in row.proofs or not row.tests, f"{row.tests} test no code"
    for test in row.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file(), file
        assert name.startswith("test_"), test
        assert name in _functions(ROOT / file), test


def test_rows_that_are_unnecessary_say_why_in_the_architecture() -> None:
    reasons = _reasons()
    assert sorted(reasons) == [row.number for row in ROWS if UNNECESSARY in row.proofs]
    assert all(reason.endswith(".") for reason in reasons.values())
