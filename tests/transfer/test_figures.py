"""What a reader knows of its paths and copies, and what status and metrics make of it."""

import logging

import pytest
import torch

from tests.transfer.neighbours import CPU, HERE, OWNER, Neighbour, rows_ref
from triptych.config import TransferSettings
from triptych.errors import TransferFailed
from triptych.journey import Endpoint
from triptych.transfer.arena import ArenaInfo, new_arena
from triptych.transfer.figures import TransferFigures
from triptych.transfer.reader import Reader

SETTINGS = TransferSettings(copy_timeout_seconds=10.0)


def reader_of(figures: TransferFigures, *arenas: ArenaInfo) -> Reader:
    return Reader(lambda endpoint: arenas, HERE, {}, CPU, SETTINGS, figures=figures)


def test_a_copy_is_counted_under_its_transport_with_its_bytes() -> None:
    figures = TransferFigures()
    with Neighbour("embedding", unit_bytes=4096, num_units=64) as neighbour:
        neighbour.ask("fill", range(8, 12), 30)
        reader = reader_of(figures, neighbour.info)
        for _ in range(3):
            reader.read_rows(rows_ref(30, 16, 128, offset=8 * 4096), torch.zeros(16, 128, dtype=torch.int64))
        (counts,) = figures.copies()
        assert (counts.kind, counts.transport) == ("embedding", "shm")
        assert counts.num_bytes == 3 * 16 * 128 * 8
        assert sum(counts.by_bytes) == sum(counts.by_seconds) == 3
        assert counts.by_bytes[2] == 3  # 16 KiB
        (path,) = figures.paths()
        assert (path.owner, path.kind, path.transport) == (OWNER, "embedding", "shm")
        assert [reason.split(":")[0] for reason in path.refused] == ["local", "cuda_ipc"]
        reader.forget(OWNER)
        assert figures.paths() == []


def test_a_pair_without_a_path_is_told_with_every_reason_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    figures = TransferFigures()
    reader = reader_of(figures, new_arena("kv", 2, 4096, 4))
    with caplog.at_level(logging.INFO, "triptych.transfer"):
        for _ in range(5):
            with pytest.raises(TransferFailed, match="no transport reaches kv arena 2"):
                reader.open(OWNER)
            reader.forget(OWNER)
    (path,) = figures.paths()
    assert path.transport == "none"
    assert {"local", "cuda_ipc", "shm"} <= {reason.split(":")[0] for reason in path.refused}
    (line,) = [record.getMessage() for record in caplog.records if "no transport reaches" in record.getMessage()]
    assert OWNER.address in line


def test_whoever_takes_an_address_over_takes_its_paths_along() -> None:
    figures = TransferFigures()
    old, new = new_arena("kv", 2, 4096, 4), new_arena("kv", 2, 4096, 4)
    figures.met(OWNER, [old])
    figures.tried(old, "none", ["shm: gone"])
    figures.met(Endpoint(OWNER.address, OWNER.incarnation + 1), [new])
    assert figures.paths() == []
    figures.tried(old, "shm", [])  # a late word of the predecessor
    assert figures.paths() == []


def test_what_is_kept_of_neighbours_is_bounded() -> None:
    figures = TransferFigures()
    for number in range(2000):
        arena = new_arena("kv", 2, 4096, 4)
        figures.met(Endpoint(f"10.0.{number // 250}.{number % 250}:7000", 5), [arena])
        figures.tried(arena, "none", [f"shm: reason {number}"])
    paths = figures.paths()
    assert len(paths) == 256
    assert paths[-1].refused == ("shm: reason 1999",)


def test_arenas_that_no_tier_reads_make_no_labels() -> None:
    figures = TransferFigures()
    arena = new_arena("staging", 3, 4096, 4)
    figures.met(OWNER, [arena])
    figures.tried(arena, "nixl", [])
    figures.copied("staging", "nixl", 100, 0.1)
    assert figures.paths() == []
    assert figures.copies() == []
