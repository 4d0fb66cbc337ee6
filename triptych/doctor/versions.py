"""Python and libraries against what the installed package asks for; nothing of them is imported."""

import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from triptych.doctor.finding import Asked, Finding, fail, ok

_PACKAGE = "triptych"
_SHOWN = ("ray", "torch", "torchvision", "transformers", "grpcio")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:(>=|==)\s*([0-9.]+))?[^;]*(?:;(.*))?$")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library that the package asks for, as its metadata say."""

    name: str
    relation: str  # >=, ==, or empty: any version
    version: str
    extra: str = ""  # of the package, that it belongs to; empty: always wanted

    def admits(self, version: str) -> bool:
        if not self.relation:
            return True
        found, wanted = numbers_of(version), numbers_of(self.version)
        return found[: len(wanted)] == wanted if self.relation == "==" else found >= wanted

    def __str__(self) -> str:
        return f"{self.name}{self.relation}{self.version}"


def requirements(extra: str = "") -> list[Requirement]:
    """What the installed package needs, or one of its extras needs besides."""
    return [found for found in parsed(importlib.metadata.requires(_PACKAGE) or []) if found.extra == extra]


def parsed(lines: Iterable[str]) -> list[Requirement]:
    """Lines of a package's metadata that are of the kinds which pyproject.toml has."""
    found = []
    for line in lines:
        match = _REQUIREMENT.match(line.strip())
        if match is None:
            continue
        name, relation, version, marker = (part or "" for part in match.groups())
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
        found.append(Requirement(name, relation, version, extra.group(1) if extra else ""))
    return found


def numbers_of(version: str) -> tuple[int, ...]:
    """2.14.1+cu130 as (2, 14, 1)."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def look_python(asked: Asked) -> Finding:
    wanted = importlib.metadata.metadata(_PACKAGE)["Requires-Python"]
    return judge_python(platform.python_version(), str(wanted or ""))


def judge_python(version: str, wanted: str) -> Finding:
    """wanted: as a package's metadata have it, >=3.11"""
    if numbers_of(version) < numbers_of(wanted.removeprefix(">=")):
        return fail(f"Python {version}, expected {wanted}", "make the environment with a newer Python")
    return ok(f"Python {version}")


def look_libraries(asked: Asked) -> Finding:
    return judge_libraries(requirements(), installed)


def judge_libraries(wanted: Sequence[Requirement], version_of: Callable[[str], str | None]) -> Finding:
    versions = {each.name: version_of(each.name) for each in wanted}
    wrong = []
    for each in wanted:
        version = versions[each.name]
        if version is None:
            wrong.append(f"{each} is missing")
        elif not each.admits(version):
            wrong.append(f"{each.name} is {version}, expected {each.relation}{each.version}")
    if wrong:
        return fail("; ".join(wrong), "pip install -c constraints.txt triptych, with the file of the same release")
    shown = [f"{name} {versions[name]}" for name in _SHOWN if name in versions]
    return ok(", ".join([*shown, f"{len(wanted) - len(shown)} more"]))
