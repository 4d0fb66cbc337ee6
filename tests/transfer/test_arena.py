from dataclasses import replace

import pytest

from triptych.errors import InvalidRecord
from triptych.transfer.arena import PAGE_BYTES, ArenaInfo, CudaIpcInfo, check_stamp, new_arena, probe_mismatch


@pytest.fixture
def arena() -> ArenaInfo:
    return new_arena("kv", 2, unit_bytes=4100, num_units=700)


def test_every_part_begins_on_a_page_and_none_overlap(arena: ArenaInfo) -> None:
    assert arena.words_offset % PAGE_BYTES == arena.data_offset % PAGE_BYTES == arena.num_bytes % PAGE_BYTES == 0
    assert arena.words_offset >= len(arena.probe)
    assert arena.data_offset >= arena.words_offset + 700 * 8
    assert arena.num_bytes >= arena.data_offset + arena.data_bytes == arena.data_offset + 700 * 4100


def test_no_two_slabs_have_the_same_probe(arena: ArenaInfo) -> None:
    other = new_arena("kv", 2, unit_bytes=4100, num_units=700)
    assert len(arena.probe) == PAGE_BYTES
    assert arena.probe != other.probe
    # Also the end of the page tells: a page that is mapped only in part is noticed.
    assert arena.probe[-64:] != other.probe[-64:]


def test_a_probe_mismatch_tells_another_arena_from_no_arena(arena: ArenaInfo) -> None:
    other = new_arena("kv", 2, unit_bytes=4100, num_units=700)
    assert probe_mismatch(arena, arena.probe) == ""
    assert "another arena" in probe_mismatch(arena, other.probe)
    assert "no arena" in probe_mismatch(arena, bytes(PAGE_BYTES))


@pytest.mark.parametrize(
    "change",
    [
        {"num_units": 0},
        {"unit_bytes": -1},
        {"num_units": 1 << 40},
        {"words_offset": 0},
        {"words_offset": 4100},
        {"data_offset": 4096},
        {"num_bytes": 4096},
        {"probe": b"something else"},
        {"probe": b""},
    ],
)
def test_an_arena_that_contradicts_itself_is_refused(arena: ArenaInfo, change: dict[str, int]) -> None:
    with pytest.raises(InvalidRecord):
        replace(arena, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(("unit_bytes", "num_units"), [(0, 4), (4, 0), (-8, 4), (1 << 20, 1 << 43), (1 << 40, 1 << 40)])
def test_a_slab_that_cannot_be_is_refused(unit_bytes: int, num_units: int) -> None:
    with pytest.raises(InvalidRecord):
        new_arena("kv", 2, unit_bytes, num_units)


def test_handles_of_another_size_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="63 bytes"):
        CudaIpcInfo(bytes(63), (), "uuid", 8)
    with pytest.raises(InvalidRecord, match="65 bytes"):
        CudaIpcInfo(bytes(64), (bytes(64), bytes(65)), "uuid", 8)


@pytest.mark.parametrize(
    ("units", "generations", "reason"),
    [
        ([0, 700], [1, 1], "it has 700"),
        ([-1], [1], "it has 700"),
        ([0, 1], [1], "2 units"),
        ([3], [0], "generation 0"),
        ([3, 4, 3], [1, 1, 2], "twice"),
    ],
)
def test_a_wrong_stamp_is_refused(arena: ArenaInfo, units: list[int], generations: list[int], reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        check_stamp(arena, units, generations)
