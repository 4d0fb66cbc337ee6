"""The usage log: whole lines, whatever becomes of the file and however slow it is."""

import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from triptych.errors import ConfigError
from triptych.router.edge.usage_log import UsageLog


def lines(path: Path) -> Sequence[Any]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_everything_written_is_there_after_closing(tmp_path: Path) -> None:
    path, lost = tmp_path / "usage", list[int]()
    path.write_text('{"n":-1}\n')
    log = UsageLog(path, lost.append)
    log.start()
    for number in range(5000):
        log.write({"n": number})
    log.close()
    assert lines(path) == list(range(-1, 5000))
    assert not lost


def test_a_file_that_was_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path, moved = tmp_path / "usage", tmp_path / "usage.1"
    log = UsageLog(path, lambda _: None)
    log._append([b'{"n":1}\n'])
    os.rename(path, moved)
    log._append([b'{"n":2}\n'])
    assert (lines(moved), lines(path)) == ([1], [2])
    assert path.stat().st_mode & 0o007 == 0  # who asks how much is nobody else's business


def test_lines_beyond_the_queue_are_dropped_and_counted_and_nobody_waits(tmp_path: Path) -> None:
    path, lost = tmp_path / "usage", list[int]()
    log = UsageLog(path, lost.append, most_queued=10)
    for number in range(25):  # its thread has not started: a disk that stands still
        log.write({"n": number})
    assert sum(lost) == 15
    log.start()
    log.close()
    assert lines(path) == list(range(10))


def test_a_disk_that_is_full_costs_lines_and_nothing_else() -> None:
    lost: list[int] = []
    log = UsageLog(Path("/dev/full"), lost.append)
    log.start()
    log.write({"n": 1})
    log.close()
    assert sum(lost) == 1
    assert not any(thread.name == "usage-log" for thread in threading.enumerate())


def test_a_file_that_cannot_be_made_keeps_the_server_from_starting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"router\.usage_log"):
        UsageLog(tmp_path / "none" / "usage", lambda _: None)


def test_a_folder_that_is_away_for_a_while_costs_its_lines_and_nobody_elses_file(tmp_path: Path) -> None:
    folder, lost = tmp_path / "log", list[int]()
    folder.mkdir()
    log = UsageLog(folder / "usage", lost.append)
    log._append([b'{"n":1}\n'])
    folder.rename(tmp_path / "away")
    log._append([b'{"n":2}\n'])
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]  # by now one of them might have the log's number
    log._append([b'{"n":3}\n'])
    for other in others:
        os.close(other)  # raises for one that the log has closed
    folder.mkdir()
    log._append([b'{"n":4}\n'])
    assert (lines(tmp_path / "away" / "usage"), lines(folder / "usage"), sum(lost)) == ([1], [4], 2)
