"""Real workers on the CPU: a wrong one is kept out, a stopped one noticed, a busy one left alone, and no secret told.

Plain processes and a router in this one; they prove to one another that they belong together.
"""

import base64
import io
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.checkpoints import EMBEDDED
from tests.processes import WORKER_MODULE, WorkerProcess, toml_of
from tests.reference import Reference
from tests.tiny_vl.spoil import Fault, Switch
from tests.tiny_vl.spoilt_worker import SWITCH_VARIABLE
from triptych.config import MIB, Settings, load_settings
from triptych.journey import Role
from triptych.models.card import load_card
from triptych.router.fleet.link import KnownWorker
from triptych.router.pipeline.self_test import QUESTION, known_answer, picture
from triptych.router.server import RouterServer

pytestmark = pytest.mark.slow

SECRETS = {
    "TRIPTYCH_SERVE_CLUSTER_SECRET": "c1" * 32,
    "TRIPTYCH_ROUTER_API_KEY": "an-operators-own-key",
    "TRIPTYCH_ROUTER_API_KEYS": "alice=what-alice-sends",
    "TRIPTYCH_ROUTER_MEDIA_PROXY": "http://user:proxys-password@127.0.0.1:9",
}
TABLES: dict[str, dict[str, object]] = {
    "serve": {"model": "tiny-vl", "topology": "e+p+d", "device": "cpu", "dtype": "float32", "cpu_threads": 1},
    "router": {"port": 0, "status_interval_seconds": 0.2, "status_timeout_seconds": 2.0, "log_level": "debug"},
    "encoder": {"arena_bytes": 32 * MIB},
    "language": {"kv_bytes": 64 * MIB, "prefix_cache": False},
    "transfer": {"checksums": True},
}
NOTICED_SECONDS = 0.2 + 2.0  # one question waits for its turn, and goes unanswered
PATIENCE_SECONDS = 60.0  # a liveness bound
MACHINE_SECONDS = 2.0  # what a crowded machine may add to a time limit


class Tiers:
    """Workers by name, of which the router is told as a test wants it."""

    def __init__(self, folder: Path) -> None:
        """`wrong` is a prefill worker that loses the rows of a prompt's first image."""
        flags = {f"{table}.{name}": value for table, entries in TABLES.items() for name, value in entries.items()}
        self.settings: Settings = load_settings(environment=SECRETS, flags=flags)
        self.log = folder / "router.log"
        roles = {"encode": Role.ENCODE, "prefill": Role.PREFILL, "wrong": Role.PREFILL}
        roles |= {"decode": Role.DECODE, "other": Role.DECODE}
        Switch(folder / "switch").set(Fault.DROPPED)
        config = folder / "settings.toml"
        config.write_text(toml_of(TABLES))
        self.processes = {
            name: WorkerProcess(
                *(name, frozenset({role}), self.settings, config, folder / f"{name}.log"),
                module="tests.tiny_vl.spoilt_worker" if name == "wrong" else WORKER_MODULE,
                environment=SECRETS | {SWITCH_VARIABLE: str(folder / "switch")},
            )
            for name, role in roles.items()
        }
        self.known: dict[str, KnownWorker] = {}
        self.router = RouterServer(self.settings, load_card("tiny-vl", "float32"))

    def start(self) -> None:
        self.known = {name: process.wait_ready() for name, process in self.processes.items()}
        self.url = f"http://127.0.0.1:{self.router.start()}"

    def stop(self) -> None:
        for process in self.processes.values():
            os.kill(process.pid, signal.SIGCONT)
        self.router.stop()
        for process in self.processes.values():
            process.stop()

    def tell(self, *names: str) -> None:
        """The router of these workers, and waits until all but `wrong` are ready."""
        self.router.update([self.known[name] for name in names])
        self.wait(lambda: all(self.states().get(name) == "ready" for name in names if name != "wrong"))

    def states(self) -> dict[str, str]:
        return self.router.worker_states()

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self._headers(), trust_env=False, timeout=PATIENCE_SECONDS)

    def ask(self, text: str = QUESTION, max_tokens: int = 5, key: str = "TRIPTYCH_ROUTER_API_KEY") -> httpx.Response:
        url = "data:image/png;base64," + base64.b64encode(picture()).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
        body: dict[str, Any] = {"model": "tiny-vl", "messages": [{"role": "user", "content": content}]}
        body |= {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        url = f"{self.url}/v1/chat/completions"
        return httpx.post(url, json=body, headers=self._headers(key), trust_env=False, timeout=PATIENCE_SECONDS)

    def wait(self, holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> float:
        """How long it took."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < seconds, f"not within {seconds:g} s: {self.get('/ready').text}"
            time.sleep(0.01)
        return time.monotonic() - began

    @contextmanager
    def stopped(self, name: str) -> Iterator[None]:
        os.kill(self.processes[name].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.processes[name].pid, signal.SIGCONT)

    def _headers(self, key: str = "TRIPTYCH_ROUTER_API_KEY") -> dict[str, str]:
        return {"authorization": f"Bearer {SECRETS[key].rpartition('=')[2]}"}


@pytest.fixture(scope="module")
def tiers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiers]:
    started = Tiers(tmp_path_factory.mktemp("tiers"))
    handler = logging.FileHandler(started.log)
    before = logging.root.level
    logging.root.addHandler(handler)
    logging.root.setLevel(logging.DEBUG)
    try:
        started.start()
        yield started
    finally:
        started.stop()
        logging.root.removeHandler(handler)
        logging.root.setLevel(before)


def ids_of(response: httpx.Response) -> Sequence[int]:
    assert response.status_code == httpx.codes.OK, response.text
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return tuple(ids)


def test_the_known_answer_is_what_the_reference_says() -> None:
    image = Image.open(io.BytesIO(picture())).convert("RGB")
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    answer = Reference(EMBEDDED).generate(messages, [image], max_new_tokens=len(known_answer(EMBEDDED)))
    assert answer.token_ids == known_answer(EMBEDDED) != ()


def test_a_prefill_worker_that_loses_rows_is_kept_out_and_the_others_answer_right(tiers: Tiers) -> None:
    tiers.tell("encode", "prefill", "decode")
    tiers.tell("encode", "prefill", "decode", "wrong")
    tiers.wait(lambda: tiers.states().get("wrong") == "faulty")
    assert tiers.get("/ready").status_code == httpx.codes.OK
    assert [ids_of(tiers.ask()) for _ in range(4)] == [known_answer(EMBEDDED)] * 4
    assert "WRONG ANSWER" in tiers.log.read_text()


def test_a_stopped_worker_is_noticed_within_the_bound_and_gets_nothing(tiers: Tiers) -> None:
    tiers.tell("encode", "prefill", "decode", "other")
    with tiers.stopped("other"):
        tiers.wait(lambda: tiers.states()["other"] != "ready", NOTICED_SECONDS + MACHINE_SECONDS)
        assert "did not answer in time" in tiers.router.worker_reasons()["other"]
        assert tiers.get("/ready").status_code == httpx.codes.OK
        began = time.monotonic()
        assert [ids_of(tiers.ask()) for _ in range(4)] == [known_answer(EMBEDDED)] * 4
        assert time.monotonic() - began < PATIENCE_SECONDS / 4
    tiers.wait(lambda: tiers.states()["other"] == "ready")


def test_ready_and_health_tell_that_the_only_worker_of_a_role_is_stopped(tiers: Tiers) -> None:
    tiers.tell("encode", "prefill", "decode")
    with tiers.stopped("prefill"):
        tiers.wait(lambda: tiers.get("/health").status_code == 503, NOTICED_SECONDS + MACHINE_SECONDS)
        told = tiers.get("/ready").json()
        assert told["missing"] == ["prefill"]
        assert "did not answer in time" in told["why"]["prefill"]["prefill"]
    tiers.wait(lambda: tiers.get("/ready").status_code == httpx.codes.OK)


def test_a_worker_that_is_merely_busy_is_never_taken_for_hung(tiers: Tiers) -> None:
    tiers.tell("encode", "prefill", "decode")
    begins_at = len(tiers.log.read_text())
    long = "What is on the left? " * 120  # more tokens than one step takes, all of them together
    with ThreadPoolExecutor(16) as threads:
        asked = [threads.submit(tiers.ask, long, 24) for _ in range(48)]
        while not all(each.done() for each in asked):
            assert tiers.get("/ready").status_code == httpx.codes.OK
            time.sleep(0.02)
    assert {each.result().status_code for each in asked} == {httpx.codes.OK}
    assert "-> unknown" not in tiers.log.read_text()[begins_at:]


def test_no_log_metric_answer_or_command_line_tells_a_secret(tiers: Tiers) -> None:
    tiers.tell("encode", "prefill", "decode")
    answers = [tiers.ask(), tiers.ask(key="TRIPTYCH_ROUTER_API_KEYS"), tiers.ask("x" * 100_000)]
    wrong_key = {"authorization": "Bearer nobodys-key"}
    answers.append(httpx.post(f"{tiers.url}/v1/chat/completions", json={}, headers=wrong_key, trust_env=False))
    answers += [tiers.get(path) for path in ("/ready", "/health", "/metrics", "/v1/cluster", "/v1/models")]
    assert [answer.status_code for answer in answers] == [200, 200, 400, 401, 200, 200, 200, 200, 200]
    told = {f"answer {index}": answer.text for index, answer in enumerate(answers)}
    told |= {name: process.log() for name, process in tiers.processes.items()}
    told |= {
        f"arguments of {name}": Path(f"/proc/{each.pid}/cmdline").read_text() for name, each in tiers.processes.items()
    }
    told |= {"router": tiers.log.read_text(), "settings": repr(tiers.settings)}
    assert all(told[name] for name in (*tiers.processes, "router", "answer 6"))
    words = [value.rpartition("=")[2] for value in SECRETS.values()] + ["proxys-password", "nobodys-key"]
    assert [(name, word) for name, text in told.items() for word in words if word in text] == []
