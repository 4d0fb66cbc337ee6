"""Every command that deploy/ and the operations guide name is one, with its options, settings and files."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.shell import (
    DEPLOY,
    ROOT,
    commands_in,
    refusal_of_ours,
    refusal_of_rays,
    shell_of_comments,
    shell_of_page,
    shell_of_yaml,
)
from triptych.cli import COMMANDS
from triptych.config import CLIENT_KEY_VARIABLE, load_settings, settings_as_values
from triptych.doctor.checks import CHECKS

GUIDE = ROOT / "docs" / "operations.md"
UNIT = DEPLOY / "systemd" / "triptych.service"
CONTAINER = DEPLOY / "container" / "Containerfile"
YAML_FILES = sorted(DEPLOY.rglob("*.yaml"))
SETTINGS = settings_as_values(load_settings(environment={}))
MADE_BY_HAND = {"dist", "keys.toml", "triptych.toml", "build"}  # that commands of the guide make or ask for


def shell_of(file: Path) -> list[str]:
    text = file.read_text()
    if file.suffix == ".yaml":
        return list(shell_of_yaml(file))
    if file.suffix == ".md":
        return list(shell_of_page(text))
    ran = re.findall(r"^Exec\w+=(.*)$", text, re.MULTILINE)
    return [*shell_of_comments(text), *ran]


FILES = [*YAML_FILES, UNIT, CONTAINER, GUIDE]
NAMES = [str(file.relative_to(ROOT)) for file in FILES]


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_each_command_of_ours_is_one_with_its_options(file: Path) -> None:
    found = [arguments for text in shell_of(file) for arguments in commands_in(text, "triptych")]
    assert found
    assert [(arguments, why) for arguments in found if (why := refusal_of_ours(arguments))] == []


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_each_command_of_rays_is_one_with_its_options(file: Path) -> None:
    found = [arguments for text in shell_of(file) for arguments in commands_in(text, "ray")]
    assert [(arguments, why) for arguments in found if (why := refusal_of_rays(arguments))] == []


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_each_variable_of_ours_is_a_setting(file: Path) -> None:
    known = {CLIENT_KEY_VARIABLE, *("TRIPTYCH_" + key.replace(".", "_").upper() for key in SETTINGS)}
    assert set(re.findall(r"TRIPTYCH_[A-Z_]+[A-Z]", file.read_text())) - known == set()


def settings_named(text: str) -> Iterator[str]:
    tables = "|".join(sorted({key.partition(".")[0] for key in SETTINGS}))
    yield from re.findall(rf"(?<![\w./-])((?:{tables})\.[a-z_]+)(?![\w./(])", text)


def test_each_setting_that_the_guide_names_is_one() -> None:
    named = set(settings_named(GUIDE.read_text()))
    assert named
    assert named - set(SETTINGS) == set()


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_each_file_of_this_repository_that_is_named_is_there(file: Path) -> None:
    named = re.findall(r"(?<![\w/.~-])((?:deploy|docs|bench|tests|tools)/[\w./-]*\w)", file.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_guide_tells_of_every_command_and_every_check() -> None:
    text = GUIDE.read_text()
    assert [name for name in sorted(set(COMMANDS) - {"batch", "demo"}) if f"triptych {name}" not in text] == []
    assert [check.name for check in CHECKS if f"`{check.name}`" not in text] == []


def test_each_make_target_that_the_guide_names_is_one() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([\w-]+)", GUIDE.read_text())) <= targets


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("triptych serve --port 9000 > log 2>&1 &", [["serve", "--port", "9000"]]),
        ("A=1 setsid sh -c 'while ray status; do triptych ask what; sleep 5; done'", [["ask", "what"]]),
        ("/opt/triptych/bin/triptych status && triptych doctor", [["status"], ["doctor"]]),
        ("docker run --rm triptych:0.1.0 serve --host ::", [["serve", "--host", "::"]]),
        ("pip install triptych", []),
    ],
)
def test_commands_are_found_in_a_shells_text(text: str, found: list[list[str]]) -> None:
    assert list(commands_in(text, "triptych")) == found


def test_what_is_no_command_is_refused() -> None:
    assert "--prot" in refusal_of_ours(["serve", "--prot", "1"])
    assert refusal_of_ours(["scael", "encode=2"])
    assert refusal_of_ours(["serve", "--port", "1"]) == ""
    assert refusal_of_rays(["upp"])
    assert "--no-such" in refusal_of_rays(["start", "--no-such=1"])
    assert refusal_of_rays(["start", "--head", "--port=1"]) == ""


def test_all_commands_of_ours_are_known_to_this_test() -> None:
    known = {"serve", "status", "scale", "role", "reload", "doctor", "bench", "keys", "ask"}
    known |= {"timeline", "batch", "demo"}
    assert known == set(COMMANDS)
