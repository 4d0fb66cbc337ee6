"""OpenAI's client for Node and the AI SDK against three tiers."""

import hashlib
import json
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.served import MODEL, PICTURES, Served

SCRIPTS = Path(__file__).parent / "node"
SHELF = Path(__file__).parents[2] / "build" / "node-clients"
SECONDS = 120.0

CHECKS = {
    "openai": ("image", "stream", "responses", "structured", "tools", "errors", "disconnect"),
    "ai-sdk": ("image", "stream", "structured", "tools", "errors", "disconnect"),
}


@cache
def installed() -> Path:
    """A folder with the packages of the lock file and our scripts; one for each lock file."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    lock = (SCRIPTS / "package-lock.json").read_bytes()
    folder = SHELF / hashlib.sha256(lock).hexdigest()[:16]
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SCRIPTS / name, folder)
        _install(folder)
        (folder / "complete").touch()
    for script in SCRIPTS.glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


def _install(folder: Path) -> None:
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode == 0:
        return
    asked = subprocess.run(["npm", "ping"], cwd=folder, capture_output=True, text=True, timeout=SECONDS)
    if asked.returncode:
        pytest.skip("the registry of npm packages cannot be reached")
    pytest.fail(f"npm ci failed: {done.stderr[-2000:]}")


@pytest.fixture(scope="module")
def results(served: Served) -> dict[str, dict[str, str | None]]:
    """What each check of each client came to; a client runs all of its checks in one process."""
    found = {}
    for client in CHECKS:
        command = ["node", f"{client}.mjs", served.url, MODEL, str(PICTURES / "red-circle.png")]
        done = subprocess.run(command, cwd=installed(), capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr[-2000:]
        found[client] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("client", "check"), [(client, check) for client, names in CHECKS.items() for check in names])
def test_P44_node_clients_are_satisfied(
    results: dict[str, dict[str, str | None]], idle_afterwards: None, client: str, check: str
) -> None:
    assert results[client].keys() == set(CHECKS[client])
    assert results[client][check] is None, results[client][check]
