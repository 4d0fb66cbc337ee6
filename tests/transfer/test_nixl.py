"""READs between real processes of this host, over UCX and TCP: what comes, what does not, and what that leaves."""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import triptych
from tests.transfer.neighbours import CPU, OWNER, blocks_ref, rows_ref, shared_counters
from tests.transfer.nixl_rig import TCP, NixlOwner, reading
from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import Endpoint
from triptych.transfer.landing import Windows
from triptych.transfer.nixl_agent import Take
from triptych.transfer.nixl_start import start_nixl

pytest.importorskip("nixl_cu13")

NEXT = Endpoint("127.0.0.1:7001", 99)  # the next process at the same address
OTHER = Endpoint("127.0.0.1:7005", 5)


def test_rows_come_whole_and_nothing_else_is_written() -> None:
    with NixlOwner("embedding", 4096, 64) as owner, reading(owner) as (reader, _):
        owner.ask("fill", range(64), 5)
        memory = torch.zeros(64 * 64 + 2, 8, dtype=torch.int64)
        reader.read_rows(rows_ref(5, 64 * 64, 8), memory[1:-1])
        assert (memory[1:-1] == 5).all()
        assert not memory[0].any()
        assert not memory[-1].any()
        assert reader.transport_of(OWNER) == "nixl"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.float64])
def test_any_dtype_is_bytes(dtype: torch.dtype) -> None:
    with NixlOwner("embedding", 4096, 4) as owner, reading(owner) as (reader, _):
        owner.ask("fill_numbered")
        width = 4096 // dtype.itemsize
        rows = torch.zeros(1, width, dtype=dtype)
        reader.read_rows(rows_ref(3, 1, width, offset=2 * 4096, dtype=str(dtype).removeprefix("torch.")), rows)
        assert (rows.view(torch.uint8) == 2).all()


def test_a_claim_larger_than_a_window_comes_in_several_reads() -> None:
    small = replace(TCP, nixl_window_bytes=3 * 4096, nixl_windows=2)
    with NixlOwner("kv", 4096, 64) as owner, reading(owner, small) as (reader, _):
        owner.ask("fill_numbered")
        claimed = [*range(40, 60), 3, 1, *range(20, 33)]
        blocks = torch.full((80, 4096), 255, dtype=torch.uint8)
        places = [*range(79, 79 - len(claimed), -1)]
        reader.read_blocks(blocks_ref([(unit, unit + 1) for unit in claimed]), blocks, places)
        assert (blocks[places] == torch.tensor(claimed, dtype=torch.uint8)[:, None]).all()
        assert (blocks[: 80 - len(claimed)] == 255).all()


def test_units_of_another_generation_are_refused() -> None:
    with NixlOwner("kv", 4096, 8) as owner, reading(owner) as (reader, _):
        owner.ask("fill", range(8), 5)
        with pytest.raises(ClaimExpired, match="unit 3 has generation 5, the claim 4"):
            reader.read_blocks(blocks_ref([(2, 5), (3, 4)]), torch.zeros(2, 4096, dtype=torch.uint8), [0, 1])


def test_a_copy_that_was_overtaken_by_its_owner_is_never_taken_for_data() -> None:
    published = shared_counters(1)
    with NixlOwner("embedding", 1 << 16, 16, published=published) as owner, reading(owner) as (reader, _):
        owner.ask("fill", range(16), 1)
        published[0] = 1
        reader.open(OWNER)
        owner.tell("rewrite_all", 3.0)
        into, whole, torn = torch.zeros(16 * 128, 64, dtype=torch.int64), 0, 0
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            generation = published[0]
            try:
                reader.read_rows(rows_ref(generation, 16 * 128, 64), into)
            except ClaimExpired:
                torn += 1
                continue
            assert (into == generation).all()
            whole += 1
        assert torn > 0
        owner._pipe.recv()


def test_the_last_read_ends_the_claim_and_a_release_behind_it_is_not_late() -> None:
    with NixlOwner("kv", 4096, 8) as owner, reading(owner) as (reader, _):
        owner.ask("fill", range(8), 5)
        claim = owner.ask("grant", (1, 2), 60.0)
        assert owner.ask("counts")["live"] == 1
        reader.read_blocks(
            replace(blocks_ref([(1, 5), (2, 5)]), claim_id=claim), torch.zeros(2, 4096, dtype=torch.uint8), [0, 1]
        )
        _wait_for(lambda: owner.ask("counts")["live"] == 0)
        owner.ask("release", claim)
        counts = owner.ask("counts")
        assert (counts["released"], counts["late"]) == (1, 0)
        owner.ask("release", claim)
        assert owner.ask("counts")["late"] == 1


def test_one_notice_ends_all_claims_that_were_read_together() -> None:
    with NixlOwner("kv", 4096, 8) as owner, reading(owner) as (reader, agent):
        reader.open(OWNER)
        claims = [owner.ask("grant", (unit,), 60.0) for unit in range(3)]
        info = owner.arenas[0]
        assert info.nixl is not None
        pieces = np.array([[info.words_offset, 8]], dtype=np.int64)
        memory = torch.zeros(4096, dtype=torch.uint8)
        agent.register(memory)
        read = agent.read(info.nixl, [Take(pieces, memory)], claims[0] + claims[2])
        _wait_for(read.done)
        _wait_for(lambda: owner.ask("counts")["live"] == 1)
        owner.ask("release", claims[1])


def test_a_dead_owner_is_an_ordinary_failure_and_its_successor_is_read() -> None:
    with (
        NixlOwner("kv", 1 << 20, 32) as first,
        NixlOwner("kv", 1 << 20, 32) as second,
        reading({OWNER: first, NEXT: second}) as (reader, _),
    ):
        into = torch.zeros(32, 1 << 20, dtype=torch.uint8)
        first.ask("fill", range(32), 5)
        second.ask("fill", range(32), 6)
        reader.read_blocks(blocks_ref([(0, 5)]), into, [0])
        first.kill()
        began = time.monotonic()
        with pytest.raises(TransferFailed):
            reader.read_blocks(blocks_ref([(unit, 5) for unit in range(32)]), into, range(32))
        assert time.monotonic() - began < 5
        with pytest.raises(TransferFailed, match="is not connected"):  # no read is begun where the last one broke
            reader.read_blocks(blocks_ref([(0, 5)]), into, [0])
        reader.forget(OWNER)
        reader.read_blocks(blocks_ref([(7, 6)], owner=NEXT), into, [9])
        assert (into[9].view(torch.int64) == 6).all()


def test_an_owner_that_stands_still_holds_a_window_but_never_the_destination() -> None:
    hasty = replace(TCP, copy_timeout_seconds=1.0, nixl_windows=2, nixl_window_bytes=4 << 20)
    with (
        NixlOwner("kv", 1 << 20, 4, hasty) as stopped,
        NixlOwner("kv", 1 << 20, 4, hasty) as other,
        reading({OWNER: stopped, OTHER: other}, hasty) as (reader, _),
    ):
        for each, owner in ((stopped, OWNER), (other, OTHER)):
            each.ask("fill", range(4), 5)
            reader.open(owner)
        into = torch.zeros(4, 1 << 20, dtype=torch.uint8)
        stopped.stand_still()
        with pytest.raises(TransferFailed, match="overdue"):
            reader.read_blocks(blocks_ref([(unit, 5) for unit in range(4)]), into, range(4))
        assert not reader.still_writing(into)
        into.fill_(9)  # somebody else's by now
        assert reader._nixl is not None
        assert reader._nixl.num_lost_windows() == 1
        reader.forget(OWNER)
        for _ in range(3):  # the other window serves
            reader.read_blocks(blocks_ref([(2, 5)], owner=OTHER), torch.zeros_like(into), [0])
        stopped.go_on()
        _wait_for(lambda: reader._nixl is not None and reader._nixl.num_lost_windows() == 0)
        assert (into == 9).all()


def test_windows_that_no_memory_has_room_for_are_an_ordinary_refusal() -> None:
    endless, into = replace(TCP, nixl_windows=10**9), torch.zeros(4, 8, dtype=torch.int64)
    refused = pytest.raises(TransferFailed, match=r"no \d+ bytes for windows, as transfer\.nixl_ settings ask")
    with NixlOwner("embedding", 4096, 4) as owner, reading(owner, endless) as (reader, _), refused:
        reader.read_rows(rows_ref(5, 4, 8), into)


def test_one_owner_never_has_more_than_half_of_the_windows() -> None:
    four = replace(TCP, nixl_windows=4, nixl_window_bytes=8192)
    agent = start_nixl(four)
    assert agent is not None
    windows = Windows(agent, CPU, four)
    soon = time.monotonic() + 0.05
    mine = [windows.take("mine", soon) for _ in range(2)]
    with pytest.raises(TransferFailed, match="2 are the owner's"):
        windows.take("mine", soon)
    theirs = [windows.take("theirs", soon) for _ in range(2)]
    with pytest.raises(TransferFailed, match="no window is free"):
        windows.take("another", soon)
    assert len({window.data.data_ptr() for window in mine + theirs}) == 4
    over = False
    windows.lose(mine.pop(), "mine", lambda: over)
    windows.give_back(mine.pop(), "mine")
    windows.take("mine", soon)
    with pytest.raises(TransferFailed, match="1 wait for lost reads to end"):
        windows.take("mine", soon)
    over = True
    windows.take("mine", soon)
    assert windows.num_lost() == 0
    agent.close()


def test_a_killed_owner_ends_a_read_that_it_held() -> None:
    hasty = replace(TCP, copy_timeout_seconds=0.5, nixl_windows=1, nixl_window_bytes=4 << 20)
    with NixlOwner("kv", 1 << 20, 4, hasty) as owner, reading(owner, hasty) as (reader, _):
        owner.ask("fill", range(4), 5)
        reader.open(OWNER)
        owner.stand_still()
        into = torch.zeros(4, 1 << 20, dtype=torch.uint8)
        for reason in ("overdue", "no window is free"):
            with pytest.raises(TransferFailed, match=reason):
                reader.read_blocks(blocks_ref([(unit, 5) for unit in range(4)]), into, range(4))
        owner.kill()
        _wait_for(lambda: reader._nixl is not None and reader._nixl.num_lost_windows() == 0)
        with pytest.raises(TransferFailed, match="is not connected"):  # nothing is begun where a read broke
            reader.read_blocks(blocks_ref([(0, 5)]), into, [0])


def test_an_arena_that_is_not_what_it_says_is_refused_by_its_probe() -> None:
    with NixlOwner("kv", 4096, 8) as owner, reading(owner) as (reader, _):
        true = owner.arenas[0]
        assert true.nixl is not None
        owner.arenas = [replace(true, nixl=replace(true.nixl, address=true.nixl.address + true.data_offset - 4096))]
        with pytest.raises(TransferFailed, match=r"nixl: .*(no arena|failed)"):
            reader.open(OWNER)
        owner.arenas = [true]
        reader.forget(OWNER)
        assert reader.open(OWNER) == "nixl"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"metadata": b"nonsense"}, "joining a neighbour failed"),
        ({"agent": "somebody-else"}, "the owner is somebody-else"),
        ({"address": 64}, "preparing a read failed"),
    ],
)
def test_what_cannot_be_joined_says_why_and_leaves_nothing_behind(change: dict[str, object], reason: str) -> None:
    with NixlOwner("kv", 4096, 8) as owner, reading(owner) as (reader, _):
        true = owner.arenas[0]
        assert true.nixl is not None
        owner.arenas = [replace(true, nixl=replace(true.nixl, **change))]
        with pytest.raises(TransferFailed, match=reason):
            reader.open(OWNER)
        owner.arenas = [true]
        reader.forget(OWNER)
        assert reader.open(OWNER) == "nixl"


def test_a_worker_without_nixl_says_so_in_its_log_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert start_nixl(replace(TCP, transports=("shm",))) is None
    assert "nixl is not used: transfer.transports names shm" in caplog.text


def test_what_the_library_has_to_say_leaves_standard_output_to_the_worker() -> None:
    start = f"from {start_nixl.__module__} import start_nixl\nfrom triptych.config import TransferSettings\n"
    start += "agent = start_nixl(TransferSettings())\nassert agent is not None\nprint('ready')\nagent.close()"
    loud = os.environ | {"UCX_NO_SUCH_SETTING": "1", "UCX_WARN_UNUSED_ENV_VARS": "y"}
    said = subprocess.run([sys.executable, "-c", start], env=loud, capture_output=True, text=True, timeout=60)
    assert said.stdout == "ready\n", said.stderr
    assert "UCX_NO_SUCH_SETTING" in said.stderr


def test_an_idle_agent_leaves_the_processor_alone() -> None:
    with NixlOwner("kv", 4096, 8) as owner, reading(owner) as (reader, _):
        reader.open(OWNER)
        began = time.process_time()
        time.sleep(1.0)
        assert time.process_time() - began < 0.2


def test_descriptors_are_never_unpickled() -> None:
    root = Path(triptych.__file__).parent.parent
    files = [file for room in ("triptych", "services", "router") for file in (root / room).rglob("*.py")]
    assert len(files) > 100
    banned = (
        "deserialize_descs",
        "get_serialized_descs",
        "import pickle",
        "from pickle",
        "torch.load(",
        "allow_pickle",
    )
    assert [str(file) for file in files for word in banned if word in file.read_text()] == []


def _wait_for(happened: object, seconds: float = 10.0) -> None:
    assert callable(happened)
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
