"""A router in a process of its own, over tiers that compute nothing: what hurts it shows in its status and memory."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "fuzz",
    deadline=None,
    derandomize=True,  # a failure in CI is one at home
    database=None,
    suppress_health_check=list(HealthCheck),
    print_blob=False,
    # Not Phase.shrink: where something hangs, each try would take as long as the limit.
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("fuzz")

ANSWER_SECONDS = 10.0  # longer is a hang


@dataclass
class Target:
    """What is fuzzed."""

    url: str
    process: subprocess.Popen[str]
    http: httpx.Client
    cases: int = 0

    def post(self, path: str, **content: object) -> httpx.Response:
        """The answer, which came in time and is none of the server's fault."""
        self.cases += 1
        response: httpx.Response = self.http.request("POST", path, **content)  # type: ignore[arg-type]
        check_answer(response)
        return response

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.process.pid}/statm") as statm:
            return int(statm.read().split()[1]) * 4096


def check_answer(response: httpx.Response) -> None:
    """Good, or refused by a nested error: never the server's fault."""
    assert response.status_code < 500, f"{response.status_code}: {response.text[:500]}"
    if response.status_code >= 400:
        error = response.json()["error"]
        assert isinstance(error["message"], str)
        assert error["message"]
    if response.headers["content-type"].startswith("text/event-stream"):
        assert not any(line == "event: error" for line in response.text.split("\n"))


@pytest.fixture(scope="package")
def target() -> Iterator[Target]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    assert url, "the router did not start"
    with httpx.Client(base_url=url, timeout=ANSWER_SECONDS, trust_env=False) as http:
        yield Target(url, process, http)
        assert process.poll() is None, "the router died"
        assert http.get("/health").status_code == 200
    process.stdin.close()
    process.wait(timeout=20)
