"""What pages for users name is there: links, settings, options, targets of make."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from triptych.cli import COMMANDS, build_parser
from triptych.config import load_settings, settings_as_values

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench/README.md", ROOT / "tests/data/README.md"]
FOR_USERS = [ROOT / "README.md", *(ROOT / "docs" / name for name in ("media.md", "batch.md", "metrics.md"))]
SETTINGS = settings_as_values(load_settings(environment={}))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(text: str) -> Iterator[str]:
    """As GitHub makes them of headings."""
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith("https://"):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_file_of_this_repository_that_is_named_is_there(page: Path) -> None:
    rooms = "|".join(("deploy", "docs", "bench", "tests", "tools", "proto", "router", "services", "triptych"))
    named = re.findall(rf"`((?:{rooms})/[\w./-]*\w)", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_setting_is_one(page: Path) -> None:
    tables = "|".join(sorted({key.partition(".")[0] for key in SETTINGS}))
    named = set(re.findall(rf"`((?:{tables})\.(?!py`)[a-z_]*[a-z])(?=[`\s=])", page.read_text()))
    assert named - set(SETTINGS) == set()


@pytest.mark.parametrize("page", FOR_USERS, ids=name_of)
def test_each_option_is_one(page: Path) -> None:
    named = set(re.findall(r"`(--[a-z-]+)", page.read_text()))
    assert named - options() == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_command_and_target_of_make_is_one(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"`triptych ([a-z]+)", text)) - set(COMMANDS) == set()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z][\w-]*)", text)) - targets == set()


def options() -> set[str]:
    """Of all commands, as their help has them."""
    found: set[str] = set()
    waiting = [build_parser()]
    while waiting:
        for action in waiting.pop()._actions:
            found |= set(action.option_strings)
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
    return found
