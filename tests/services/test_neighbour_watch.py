"""A neighbour that dies while nobody reads from it leaves no mapping of its memory behind."""

import os
import threading
import time
from collections.abc import Callable

import torch

from tests.transfer.neighbours import CPU, HERE, OWNER, Neighbour, rows_ref
from triptych.config import TransferSettings
from triptych.journey import Endpoint
from triptych.services.neighbour_watch import NeighbourWatch
from triptych.transfer.reader import Reader

OTHER = Endpoint("127.0.0.1:7009", 5)
SECONDS = 5.0


def test_the_memory_of_a_dead_neighbour_is_unmapped_and_the_living_stay_open() -> None:
    with Neighbour("embedding", 4096, 4) as dying, Neighbour("embedding", 4096, 4) as living:
        by_endpoint = {OWNER: dying, OTHER: living}
        reader = Reader(lambda endpoint: [by_endpoint[endpoint].info], HERE, {}, CPU, TransferSettings())
        watch = NeighbourWatch(reader.known, lambda peer: by_endpoint[peer].process.is_alive(), reader.forget, 0.05)
        for endpoint, neighbour in by_endpoint.items():
            neighbour.ask("fill", range(4), 1)
            reader.read_rows(rows_ref(1, 4, 128, owner=endpoint), torch.zeros(4, 128, dtype=torch.int64))
        mapped = _inode(dying)
        dying.process.kill()
        _wait_for(lambda: not _is_mapped(mapped))
        assert reader.known() == (OTHER,)
        assert reader.transport_of(OTHER) == "shm"
        watch.stop()
        reader.close()


def test_a_question_that_fails_is_asked_again() -> None:
    asked = threading.Semaphore(0)

    def fail(endpoint: Endpoint) -> bool:
        asked.release()
        raise OSError("no such thing")

    watch = NeighbourWatch(lambda: [OWNER], fail, lambda endpoint: None, 0.01)
    assert asked.acquire(timeout=SECONDS)
    assert asked.acquire(timeout=SECONDS)
    watch.stop()


def _inode(neighbour: Neighbour) -> int:
    shm = neighbour.info.shm
    assert shm is not None
    return os.stat(f"/proc/{shm.pid}/fd/{shm.fd}").st_ino


def _is_mapped(inode: int) -> bool:
    with open("/proc/self/maps") as maps:
        return any(line.split()[4] == str(inode) and "memfd" in line for line in maps)


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
