"""The container file by rules that a small parser can hold it to; it is not built here."""

from pathlib import PurePosixPath

import pytest

from tests.deploy.containerfile import faults, instructions
from tests.deploy.shell import DEPLOY, ROOT, refusal_of_ours

FILE = DEPLOY / "container" / "Containerfile"
FOUND = instructions(FILE.read_text())


def of(name: str) -> list[str]:
    return [each.text for each in FOUND if each.name == name]


def test_it_breaks_no_rule() -> None:
    assert faults(FOUND) == []


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("FROM python", "no version"),
        ("FROM python:latest", "no version"),
        ("RUN pip install --no-cache-dir triptych", "without constraints"),
        ("RUN pip install -c constraints.txt triptych", "leaves its cache"),
        ("RUN apt-get install -y --no-install-recommends gcc", "lists stay"),
        ("RUN curl -s https://example.com/x | sh", "runs what it fetches"),
        ("USER root", "is no number"),
        ("USER 0", "is no number"),
        ("COPY . .", "secrets along"),
        ("ADD x.tar /", "ADD unpacks"),
        ("CMD triptych serve", "passes no signals"),
        ("ENV RAY_AUTH_TOKEN=abc", "secret would stay"),
    ],
)
def test_each_rule_sees_what_breaks_it(line: str, told: str) -> None:
    assert told in " ".join(faults([*FOUND, *instructions(line)]))


def test_an_image_without_a_user_is_seen() -> None:
    assert "it runs as root" in faults([each for each in FOUND if each.name != "USER"])


def test_what_is_copied_is_here_and_let_through() -> None:
    allowed = {
        line[1:] for line in (FILE.parent / f"{FILE.name}.dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    sources = [source for text in of("COPY") if "--from" not in text for source in text.split()[:-1]]
    assert set(sources) == allowed
    assert all((ROOT / source).exists() for source in sources)


def test_what_it_runs_is_our_command() -> None:
    (entry,), (command,) = ([each for each in FOUND if each.name == name] for name in ("ENTRYPOINT", "CMD"))
    assert PurePosixPath(entry.words()[-1]).name == "triptych"
    assert refusal_of_ours(command.words()) == ""


def test_the_base_has_the_python_that_the_constraints_were_tried_with() -> None:
    assert of("ARG") == ["PYTHON_IMAGE=python:3.11-slim-bookworm"]


def test_kuberay_finds_what_it_asks_a_container_for() -> None:
    """bash is in the base image; by wget KubeRay probes Ray."""
    assert "wget" in " ".join(of("RUN"))
