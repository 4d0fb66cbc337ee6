"""Versions against what the package's metadata ask for."""

import tomllib
from pathlib import Path

import pytest

from triptych.doctor.finding import Verdict
from triptych.doctor.versions import Requirement, judge_libraries, judge_python, numbers_of, parsed

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def test_all_that_the_project_asks_for_is_understood() -> None:
    assert len(parsed(PROJECT["dependencies"])) == len(PROJECT["dependencies"])
    names = {each.name for each in parsed(PROJECT["dependencies"])}
    assert {"ray", "torch", "uvloop", "certifi"} <= names


def test_requirements_of_an_extra_are_apart() -> None:
    (found,) = parsed(["nixl-cu13==1.5.1; platform_system == 'Linux' and extra == 'nixl'"])
    assert found == Requirement("nixl-cu13", "==", "1.5.1", "nixl")


@pytest.mark.parametrize(
    ("version", "numbers"), [("2.14.1+cu130", (2, 14, 1)), ("3.11.7", (3, 11, 7)), ("1.0rc1", (1, 0)), ("none", ())]
)
def test_a_versions_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert numbers_of(version) == numbers


@pytest.mark.parametrize(
    ("relation", "wanted", "version", "admitted"),
    [
        (">=", "2.9", "2.10.0", True),
        (">=", "2.11", "2.10.9", False),
        (">=", "5.17", "5.17", True),
        ("==", "1.5.1", "1.5.1", True),
        ("==", "1.5.1", "1.5.2", False),
        ("", "", "0.1", True),
    ],
)
def test_what_a_requirement_admits(relation: str, wanted: str, version: str, admitted: bool) -> None:
    assert Requirement("some", relation, wanted).admits(version) is admitted


@pytest.mark.parametrize(
    ("version", "verdict"), [("3.10.12", Verdict.FAIL), ("3.11.0", Verdict.OK), ("3.14.2", Verdict.OK)]
)
def test_an_old_python_fails(version: str, verdict: Verdict) -> None:
    assert judge_python(version, ">=3.11").verdict is verdict


def test_missing_and_old_libraries_are_all_named() -> None:
    wanted = [Requirement("ray", ">=", "2.40"), Requirement("torch", ">=", "2.11"), Requirement("rich", ">=", "13")]
    finding = judge_libraries(wanted, {"torch": "2.9.1", "rich": "15.0"}.get)
    assert finding.verdict is Verdict.FAIL
    assert finding.seen == "ray>=2.40 is missing; torch is 2.9.1, expected >=2.11"


def test_good_libraries_are_told_with_their_versions() -> None:
    wanted = [Requirement("ray", ">=", "2.40"), Requirement("rich", ">=", "13")]
    finding = judge_libraries(wanted, {"ray": "2.60.0", "rich": "15.0"}.get)
    assert (finding.verdict, finding.seen) == (Verdict.OK, "ray 2.60.0, 1 more")
