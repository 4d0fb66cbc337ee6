import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from tests.transfer.neighbours import CPU, HERE, OWNER, Neighbour, rows_ref
from triptych.config import TransferSettings
from triptych.errors import TransferFailed, WorkerLost, WrongIncarnation
from triptych.journey import Endpoint
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.connections import Connections, Peer
from triptych.transfer.mapping import Mapping
from triptych.transfer.reader import Reader

SETTINGS = TransferSettings(copy_timeout_seconds=10.0)
SECONDS = 5.0  # for what must not hang


@pytest.fixture(scope="module")
def encoder() -> Iterator[Neighbour]:
    with Neighbour("embedding", unit_bytes=4096, num_units=64) as neighbour:
        yield neighbour


def _rows(rows: int) -> torch.Tensor:
    return torch.zeros(rows, 128, dtype=torch.int64)


class _Directory:
    """Counts who connects to whom; answers as told."""

    def __init__(self, answer: Callable[[Endpoint], Sequence[ArenaInfo]]) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self.calls: list[Endpoint] = []

    def __call__(self, endpoint: Endpoint) -> Sequence[ArenaInfo]:
        with self._lock:
            self.calls.append(endpoint)
        return self._answer(endpoint)

    def reader(self, settings: TransferSettings = SETTINGS) -> Reader:
        return Reader(self, HERE, {}, CPU, settings)


def test_many_first_readers_connect_once(encoder: Neighbour) -> None:
    encoder.ask("fill", range(64), 130)

    def slowly(endpoint: Endpoint) -> Sequence[ArenaInfo]:
        time.sleep(0.1)
        return [encoder.info]

    directory = _Directory(slowly)
    reader, landings = directory.reader(), [_rows(4) for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda into: reader.read_rows(rows_ref(130, 4, 128), into), landings))
    assert directory.calls == [OWNER]
    assert all((into == 130).all() for into in landings)


def test_a_neighbour_that_is_slow_to_connect_holds_up_nobody_else(encoder: Neighbour) -> None:
    encoder.ask("fill", range(4), 131)
    slow, release = replace(OWNER, address="127.0.0.1:7009"), threading.Event()

    def answer(endpoint: Endpoint) -> Sequence[ArenaInfo]:
        if endpoint == slow:
            release.wait(SECONDS)
        return [encoder.info]

    reader = _Directory(answer).reader()
    waiting = threading.Thread(target=reader.read_rows, args=(rows_ref(131, 4, 128, owner=slow), _rows(4)))
    waiting.start()
    reader.read_rows(rows_ref(131, 4, 128), _rows(4))
    assert waiting.is_alive()
    with pytest.raises(TransferFailed, match="overdue"):
        reader.read_rows(rows_ref(131, 4, 128, owner=slow), _rows(4), deadline=time.monotonic() + 0.05)
    release.set()
    waiting.join(SECONDS)
    assert not waiting.is_alive()


def test_a_failed_connect_is_told_and_tried_again(encoder: Neighbour) -> None:
    encoder.ask("fill", range(4), 132)
    answers: list[Exception | None] = [
        WrongIncarnation("another"),
        WorkerLost("gone"),
        OSError("?"),
        None,
    ]

    def answer(endpoint: Endpoint) -> Sequence[ArenaInfo]:
        error = answers.pop(0)
        if error is not None:
            raise error
        return [encoder.info]

    reader = _Directory(answer).reader()
    for expected in (WrongIncarnation, WorkerLost, TransferFailed):
        with pytest.raises(expected):
            reader.read_rows(rows_ref(132, 4, 128), _rows(4))
        assert reader.transport_of(OWNER) == ""
    reader.read_rows(rows_ref(132, 4, 128), _rows(4))


def test_a_replaced_neighbour_is_connected_anew_and_its_predecessor_forgotten(encoder: Neighbour) -> None:
    encoder.ask("fill", range(4), 133)
    directory = _Directory(lambda endpoint: [encoder.info])
    reader, after = directory.reader(), replace(OWNER, incarnation=99)
    reader.read_rows(rows_ref(133, 4, 128), _rows(4))
    reader.read_rows(rows_ref(133, 4, 128, owner=after), _rows(4))
    assert directory.calls == [OWNER, after]
    assert reader.transport_of(OWNER) == ""
    assert reader.transport_of(after) == "shm"


def test_a_forgotten_neighbour_is_unmapped_after_the_last_copy() -> None:
    with Neighbour("embedding", 4096, 4) as neighbour:
        neighbour.ask("fill", range(4), 1)
        directory = _Directory(lambda endpoint: [neighbour.info])
        reader = directory.reader()
        assert reader.open(OWNER) == "shm"
        reader.read_rows(rows_ref(1, 4, 128), _rows(4))
        assert _is_mapped(neighbour)
        reader.forget(OWNER)
        reader.forget(OWNER)
        assert not _is_mapped(neighbour)
        assert reader.transport_of(OWNER) == ""
        reader.read_rows(rows_ref(1, 4, 128), _rows(4))
        assert directory.calls == [OWNER, OWNER]
        reader.close()
        assert not _is_mapped(neighbour)


def test_who_meets_a_neighbour_while_it_is_forgotten_can_borrow_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(lambda endpoint: [], _never)

    def borrow() -> None:
        connections.borrow(OWNER, time.monotonic() + SECONDS).end()

    borrow()
    meanwhile, pop = threading.Thread(target=borrow, daemon=True), connections._peers.pop

    def pop_slowly(endpoint: Endpoint) -> Peer | None:
        peer = pop(endpoint)
        meanwhile.start()
        meanwhile.join(0.2)
        return peer

    monkeypatch.setattr(connections._peers, "pop", pop_slowly)
    connections.forget(OWNER)
    meanwhile.join(SECONDS)
    after = threading.Thread(target=borrow, daemon=True)
    after.start()
    after.join(SECONDS)
    assert not after.is_alive()
    connections.check()


def _never(endpoint: Endpoint, info: ArenaInfo) -> Mapping:
    raise AssertionError("nothing is opened here")


def _is_mapped(neighbour: Neighbour) -> bool:
    # The memfd's name is shared by all embedding slabs: go by the inode of this one.
    shm = neighbour.info.shm
    assert shm is not None
    inode = os.stat(f"/proc/{shm.pid}/fd/{shm.fd}").st_ino
    with open("/proc/self/maps") as maps:
        return any(line.split()[4] == str(inode) and "memfd" in line for line in maps)
