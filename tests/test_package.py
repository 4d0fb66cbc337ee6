"""What gets installed: one import root, with every module and the embedded model in it."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"triptych": "triptych", "services": "triptych/services", "router": "triptych/router"}
BUILD = "import setuptools.build_meta as b; b.build_wheel('wheel'); b.build_sdist('sdist')"
SHOW = "import sys; sys.path.insert(0, sys.argv[1]); import triptych.cli, triptych.services, triptych.router as r; "
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OURS_AND_OPTIONAL = {"triptych", "opentelemetry"}  # an extra
OURS_AND_OPTIONAL |= {"cuda", "triton", "nixl", "flashinfer", "pynvml"}  # for hardware we may not have
MODEL_FILES = {f"triptych/models/tiny_vl/{file.name}" for file in (ROOT / "triptych/models/tiny_vl").iterdir()}
PAGE_FILES = {
    f"triptych/router/page/{file.name}"
    for file in (ROOT / "router/page").iterdir()
    if file.suffix in (".html", ".css", ".js", ".svg")
}


def modules_in_tree() -> set[str]:
    """Every source file, by the path it has once installed."""
    return {
        f"{installed}/{file.relative_to(ROOT / folder)}"
        for folder, installed in FOLDERS.items()
        for file in (ROOT / folder).rglob("*.py")
    }


@dataclass(frozen=True)
class Built:
    wheel: Path
    told: str
    wheel_names: frozenset[str]
    sdist_names: frozenset[str]  # without the leading name-version folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built in a copy, with the setuptools that is there: nothing is downloaded and nothing left behind."""
    source = tmp_path_factory.mktemp("source")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = source.glob("wheel/*.whl"), source.glob("sdist/*.tar.gz")
    with tarfile.open(sdist) as archive:
        sdist_names = frozenset(name.partition("/")[2] for name in archive.getnames())
    return Built(wheel, done.stdout + done.stderr, frozenset(zipfile.ZipFile(wheel).namelist()), sdist_names)


def can_build() -> bool:
    """The licence field is read by setuptools 77 and later."""
    try:
        return int(importlib.metadata.version("setuptools").partition(".")[0]) >= 77
    except importlib.metadata.PackageNotFoundError:
        return False


needs_setuptools = pytest.mark.skipif(not can_build(), reason="setuptools 77 or later is not installed here")


def test_every_package_of_the_tree_is_listed() -> None:
    found = {str(Path(name).parent).replace("/", ".") for name in modules_in_tree() if name.endswith("/__init__.py")}
    folders_of_data = {str(Path(name).parent).replace("/", ".") for name in MODEL_FILES}
    assert found | folders_of_data == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {str(Path(name).parent) for name in modules_in_tree()}
    assert folders == {str(Path(name).parent) for name in modules_in_tree() if name.endswith("/__init__.py")}


def test_the_pinned_versions_satisfy_what_the_project_asks_for() -> None:
    pins = dict(
        line.lower().replace("_", "-").split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    wanted = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]
    for requirement in wanted:
        name, _, floor = re.sub(r"\[.*\]|;.*", "", requirement).lower().partition(">=")
        assert name.partition("==")[0] in pins, requirement
        if floor:
            assert _numbers(pins[name]) >= _numbers(floor), requirement


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.strip().split(".") if part.isdigit()]


def test_every_library_the_code_imports_is_asked_for() -> None:
    """What only comes along with something else goes away with it."""
    wanted = {_plain(re.split(r"[\[>=;]", line)[0]) for line in PROJECT["project"]["dependencies"]}
    wanted |= {"pydantic-core", "starlette"}  # parts of pydantic and fastapi, bounded by them
    providers = importlib.metadata.packages_distributions()
    unasked = {
        f"{file.name} imports {root}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        for root in _imported_roots(file) - set(sys.stdlib_module_names) - OURS_AND_OPTIONAL
        if not {_plain(name) for name in providers.get(root, [])} & wanted
    }
    assert unasked == set()


def _imported_roots(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@needs_setuptools
def test_building_warns_of_no_package_that_is_not_listed(built: Built) -> None:
    assert "absent from" not in built.told


@needs_setuptools
def test_the_wheel_holds_every_module_the_model_the_page_and_nothing_else(built: Built) -> None:
    code = {name for name in built.wheel_names if ".dist-info/" not in name}
    extra = {name for name in code - modules_in_tree() if not name.endswith(".pyi")}
    assert modules_in_tree() <= code
    assert extra == MODEL_FILES | PAGE_FILES | {"triptych/py.typed"}


@needs_setuptools
def test_the_wheel_has_one_import_root_the_command_and_the_licence(built: Built) -> None:
    roots = {name.partition("/")[0] for name in built.wheel_names}
    (info,) = (root for root in roots if root.endswith(".dist-info"))
    assert roots - {info} == {"triptych"}
    with zipfile.ZipFile(built.wheel) as archive:
        assert "triptych = triptych.cli:main" in archive.read(f"{info}/entry_points.txt").decode()
        assert "License-Expression: Apache-2.0" in archive.read(f"{info}/METADATA").decode()
        assert "Apache License" in archive.read(f"{info}/licenses/LICENSE").decode()


@needs_setuptools
def test_the_source_archive_can_be_built_again(built: Built) -> None:
    wanted = {file.relative_to(ROOT).as_posix() for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    assert wanted | MODEL_FILES | {"pyproject.toml", "README.md", "LICENSE"} <= built.sdist_names


@needs_setuptools
def test_rooms_outside_the_folder_are_imported_from_the_wheel(built: Built, tmp_path: Path) -> None:
    zipfile.ZipFile(built.wheel).extractall(tmp_path)
    command = [sys.executable, "-I", "-c", SHOW + "print(r.__file__)", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "triptych" / "router")
