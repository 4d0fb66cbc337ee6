"""A cluster over two hosts: workers on either, the router and whoever asks it on the right one. No Ray."""

import itertools
import json
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.processes import START_SECONDS, toml_of
from tests.two_hosts.asker import CLUSTER_SECRET
from tests.two_hosts.hosts import Host, HostProcess, wait_until
from triptych.journey import Role

ANSWER_SECONDS = 120.0  # a liveness bound, on a busy machine
_LEFT_OVER_SECONDS = 10.0

Tables = Mapping[str, Mapping[str, object]]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reply:
    """What HTTP brought; `lost` says why there was no answer."""

    code: int
    text: str
    lost: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Questions:
    """The asker's process on a host, seen from here."""

    def __init__(self, host: Host, log: Path) -> None:
        self._process = host.start([sys.executable, "-m", "tests.two_hosts.asker"], log)
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._thread = threading.Thread(target=self._listen, name="asker", daemon=True)
        self._thread.start()

    def ask(self, **question: Any) -> "Future[dict[str, Any]]":
        with self._lock:
            number = next(self._numbers)
            future = self._waiting[number] = Future()
            self._process.input.write(json.dumps({"id": number, **question}) + "\n")
            self._process.input.flush()
        return future

    def close(self) -> None:
        self._process.end()
        self._thread.join(10)

    def _listen(self) -> None:
        for line in self._process.output:
            answer = json.loads(line)
            with self._lock:
                future = self._waiting.pop(answer.pop("id"))
            future.set_result(answer)
        with self._lock:
            for future in self._waiting.values():
                future.set_result({"lost": "the asker has ended"})


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker of the cluster and the host it runs on."""

    host: Host
    roles: frozenset[Role]
    process: HostProcess
    address: str
    log: Path


class TwoHostCluster:
    """Workers where `places` says; answers over HTTP once the constructor returns. A context manager."""

    def __init__(
        self, places: Sequence[tuple[Host, frozenset[Role]]], front: Host, model: Path, tables: Tables, folder: Path
    ) -> None:
        """front: the host with the router; tables: settings, as the workers' TOML file has them."""
        self._folder = folder
        self._config = folder / "settings.toml"
        serve = {"model": str(model), "served_name": "m", "cluster_secret": CLUSTER_SECRET}
        router = {**tables.get("router", {}), "self_test": False}  # what is counted here is of our own questions alone
        self._config.write_text(toml_of({**tables, "serve": serve, "router": router}))
        self._opened = ExitStack()
        self._killed: list[str] = []  # who did not end when asked to
        try:
            started = [self._start(host, roles) for host, roles in places]
            self.workers = [self._ready(*each) for each in started]
            self.questions = Questions(front, folder / "asker.log")
            self._opened.callback(self.questions.close)
            self.url = self._route(front)
            wait_until(lambda: self.get("/health").code == 200, START_SECONDS, "the router saw no complete cluster")
        except BaseException as error:
            self._opened.close()
            error.add_note(self.logs())
            raise

    def get(self, path: str) -> Reply:
        return _reply(self.questions.ask(get=self.url + path).result(ANSWER_SECONDS))

    def post(self, seconds: float = ANSWER_SECONDS, **body: Any) -> "Future[dict[str, Any]]":
        """A chat completion; greedy to the last token unless told otherwise."""
        asked = {"model": "m", "temperature": 0, "ignore_eos": True, "return_token_ids": True, **body}
        return self.questions.ask(post=f"{self.url}/v1/chat/completions", body=asked, seconds=seconds)

    def status(self, worker: Worker) -> dict[str, Any]:
        return self.questions.ask(status=worker.address).result(ANSWER_SECONDS)

    def busy(self) -> list[str]:
        """Who is not back to the idle state, or breaks an invariant, or does not answer."""
        found = []
        for worker in self.workers:
            told = self.status(worker)
            if reason := told.get("lost") or told["violation"] or ("" if told["idle"] else f"busy: {told['gauges']}"):
                found.append(f"{'+'.join(worker.roles)} on {worker.host.name}: {reason}")
        return found

    def wait_idle(self, seconds: float) -> None:
        """Raises TimeoutError with who is still busy."""
        busy: list[str] = []

        def idle() -> bool:
            busy[:] = self.busy()
            return not busy

        try:
            wait_until(idle, seconds, "still busy")
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {busy}") from None

    def logs(self, role: Role | None = None) -> str:
        """What the workers (of a role) have written so far; without a role, the router too."""
        names = [
            path for path in sorted(self._folder.glob("*.log")) if role is None or str(role) in path.stem.split("-")
        ]
        return "".join(f"--- {path.stem}\n{path.read_text()}" for path in names)

    def close(self) -> None:
        """Ends what it started. Raises where asking was not enough, or where something is left on a host."""
        self._opened.close()
        if self._killed:
            raise RuntimeError(f"{', '.join(self._killed)} did not end when asked to")
        for host in {worker.host for worker in self.workers}:
            if host.running():
                wait_until(partial(_is_empty, host), _LEFT_OVER_SECONDS, f"processes live on at {host.name}")

    def _end(self, name: str, process: HostProcess) -> None:
        if not process.end():
            self._killed.append(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs())
        self.close()

    def _start(self, host: Host, roles: frozenset[Role]) -> tuple[Host, frozenset[Role], HostProcess, Path]:
        names = sorted(roles)
        log = self._folder / f"{'-'.join(names)}.log"
        command = [sys.executable, "-m", "triptych.cluster.worker", "--roles", ",".join(names), "--host", host.address]
        command += ["--device", "cpu", "--dtype", "float32", "--config", str(self._config)]
        process = host.start(command, log, {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"})
        self._opened.callback(self._end, log.stem, process)
        return host, roles, process, log

    def _ready(self, host: Host, roles: frozenset[Role], process: HostProcess, log: Path) -> Worker:
        words = process.output.readline().split()
        if not words or words[0] != "ready":
            raise RuntimeError(f"{'+'.join(sorted(roles))} did not start on {host.name}")
        return Worker(host, roles, process, words[1], log)

    def _route(self, front: Host) -> str:
        command = [sys.executable, "-m", "triptych.router", "--host", front.address, "--port", "0"]
        command += ["--dtype", "float32", "--config", str(self._config)]
        for worker in self.workers:
            command += ["--worker", worker.address]
        router = front.start(command, self._folder / "router.log")
        self._opened.callback(self._end, "router", router)
        for line in router.output:
            if line.startswith("router ready at "):
                return line.split()[-1]
        raise RuntimeError("the router did not start")


def _is_empty(host: Host) -> bool:
    return not host.processes()


def tokens_of(answer: Mapping[str, Any]) -> Tokens:
    """The ids of an answer's first choice; AssertionError with the answer where it is none."""
    assert answer.get("code") == 200, answer
    return tuple(json.loads(answer["text"])["choices"][0]["token_ids"])


def _reply(answer: Mapping[str, Any]) -> Reply:
    return Reply(answer.get("code", 0), answer.get("text", ""), answer.get("lost", ""))
