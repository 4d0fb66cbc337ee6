"""Reads and copies that are under way at once: what waits for what, and who may have the memory when one is lost."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.transfer.neighbours import CPU, blocks_ref
from tests.transfer.nixl_rig import TCP, NixlOwner
from triptych.config import TransferSettings
from triptych.errors import TransferFailed
from triptych.journey import ClaimId, Int64Array
from triptych.transfer.arena import CudaIpcInfo, NixlInfo
from triptych.transfer.landing import Windows
from triptych.transfer.nixl import NixlCopier, NixlMapping
from triptych.transfer.nixl_agent import NixlAgent, NixlRead, Take
from triptych.transfer.nixl_passage import Beside, Passage, Words
from triptych.transfer.nixl_pieces import data_parts
from triptych.transfer.nixl_start import start_nixl
from triptych.transfer.plan import plan_blocks
from triptych.transfer.pull import CopyAbandoned, HostCopier, IsWanted, Pull

pytest.importorskip("nixl_cu13")

UNIT_BYTES = 4096
SMALL = replace(TCP, nixl_windows=1, nixl_window_bytes=4 * UNIT_BYTES)


class Held(HostCopier):
    """Copies that end when they are let, as a GPU's do."""

    def __init__(self) -> None:
        self.let_go = False
        self.begun: list[Tensor] = []

    def begin(self, pull: Pull, deadline: float) -> Callable[[], bool]:
        super().begin(pull, deadline)
        self.begun.append(pull.source.data)
        return lambda: self.let_go


class Rig:
    """An owner of 16 numbered units, and a way to it."""

    def __init__(self, owner: NixlOwner, agent: NixlAgent, settings: TransferSettings) -> None:
        owner.ask("fill_numbered")
        self.owner = owner
        self.info = owner.arenas[0]
        assert self.info.nixl is not None
        self.agent = agent
        self.copier = Held()
        self.windows = Windows(agent, CPU, settings)
        self.mapping = NixlMapping(self.info, self.info.nixl, CPU, agent, None)
        self.into = torch.zeros(16, UNIT_BYTES, dtype=torch.uint8)

    def passage(self, seconds: float, num_bytes: int = 0) -> Passage:
        return Passage(self.agent, self.copier, self.windows, "owner", time.monotonic() + seconds, num_bytes)

    def words(self) -> Words:
        pieces = np.array([[self.info.words_offset, 16 * 8]], dtype=np.int64)
        return Words(self.info, pieces, np.arange(16, dtype=np.int64))

    def bring(self, passage: Passage, count: int) -> Int64Array:
        pull = plan_blocks(
            blocks_ref([(unit, unit + 1) for unit in range(count)]), self.mapping, self.into, range(count)
        )
        parts = data_parts(pull, passage.part_bytes)
        return passage.bring(pull, parts, self.info, 0, Beside(behind=self.words()))[1]


@contextmanager
def rig(settings: TransferSettings = SMALL) -> Iterator[Rig]:
    with NixlOwner("kv", UNIT_BYTES, 16) as owner:
        agent = start_nixl(settings)
        assert agent is not None
        made = Rig(owner, agent, settings)
        yield made
        made.mapping.close()
        agent.close()


def test_a_pull_that_the_window_has_room_for_is_one_part() -> None:
    with rig() as at:
        at.copier.let_go = True
        with at.passage(5.0, 4 * UNIT_BYTES) as passage:
            assert at.bring(passage, 4).tolist() == list(range(1, 17))
        assert [each.numel() for each in at.copier.begun] == [4 * UNIT_BYTES]
        assert (at.into[:4] == torch.arange(4, dtype=torch.uint8)[:, None]).all()


def test_nothing_is_read_into_memory_that_is_still_copied_from() -> None:
    with rig() as at:
        with pytest.raises(CopyAbandoned), at.passage(0.3, 6 * UNIT_BYTES) as passage:
            at.bring(passage, 6)
        # The third part would have gone where the first one was, whose copy has not ended.
        assert [each[0].item() for each in at.copier.begun] == [0]


def test_a_copy_that_does_not_end_holds_window_and_destination_until_it_does() -> None:
    with rig() as at:
        with pytest.raises(CopyAbandoned, match="overdue") as lost, at.passage(0.3, 4 * UNIT_BYTES) as passage:
            at.bring(passage, 4)
        assert not lost.value.ended()
        assert at.windows.num_lost() == 1
        with pytest.raises(TransferFailed, match="1 wait for lost reads"):
            at.passage(0.02)
        at.copier.let_go = True
        assert lost.value.ended()
        assert at.windows.num_lost() == 0


def test_what_an_owner_has_written_is_asked_for_once_for_all_events_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Words] = []
    plain = Passage.words

    def noted(passage: Passage, words: Words) -> Int64Array:
        reads.append(words)
        return plain(passage, words)

    monkeypatch.setattr(Passage, "words", noted)
    with rig() as at, at.passage(5.0) as passage:
        # As a slab on a GPU has them: event words behind the data, here in its last unit. All say 16.
        at.owner.ask("fill", [15], 16)
        ipc = CudaIpcInfo(bytes(64), (bytes(64),) * 4, "uuid", at.info.data_offset + 15 * UNIT_BYTES)
        info = replace(at.info, num_units=15, cuda_ipc=ipc)
        assert info.nixl is not None
        mapping = NixlMapping(info, replace(info.nixl, vram=True), CPU, at.agent, None)
        pull = plan_blocks(blocks_ref([(1, 2)]), at.mapping, at.into, [0])
        written = [mapping.is_written(replace(pull, event=event), passage) for event in (15, 3, 16, 20, 20)]
        assert written == [True, True, True, False, False]
        assert len(reads) == 3  # for the first of those that have come, and for each that has not
        mapping.close()


# ----------------------------------------------------------------------------------------- pulls that are read together


class Written:
    """An arena as a GPU has it, with event words behind its data, in host memory: here, in the owner's last unit."""

    def __init__(self, at: Rig) -> None:
        self.at = at
        self.asked: list[bytes] = []
        at.copier.let_go = True
        ipc = CudaIpcInfo(bytes(64), (bytes(64),) * 4, "uuid", at.info.data_offset + 15 * UNIT_BYTES)
        self.info = replace(at.info, num_units=15, cuda_ipc=ipc)
        assert self.info.nixl is not None
        vram = replace(self.info.nixl, vram=True)
        self.mapping = NixlMapping(self.info, vram, CPU, at.agent, self._prepare)
        self.nixl = NixlCopier(at.agent, CPU, at.copier, SMALL)

    def _prepare(self, claim: ClaimId, pack: bool, deadline: float, is_wanted: IsWanted) -> None:
        self.asked.append(claim)

    def pull(self, unit: int, event: int, claim: bytes = b"") -> Pull:
        ref = replace(blocks_ref([(unit, unit + 1)]), event=event)
        return replace(plan_blocks(ref, self.mapping, self.at.into, [unit]), claim=claim)

    def copy(self, unit: int, event: int, claim: bytes = b"") -> list[int]:
        return self.nixl.copy(self.pull(unit, event, claim), time.monotonic() + 5).tolist()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bytes]]:
    """Of each READ its pieces, and its notice."""
    begun: list[tuple[int, bytes]] = []
    plain = NixlAgent.read

    def noted(agent: NixlAgent, source: NixlInfo, takes: Sequence[Take], notice: bytes = b"") -> NixlRead:
        begun.append((sum(len(take.pieces) for take in takes), notice))
        return plain(agent, source, takes, notice)

    monkeypatch.setattr(NixlAgent, "read", noted)
    return begun


def test_an_event_is_looked_up_ahead_of_the_data_and_fetched_with_it(
    reads: list[tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[int] = []
    plain = HostCopier.numbers

    def noted(copier: HostCopier, words: Tensor, deadline: float) -> Int64Array:
        fetched.append(words.numel())
        return plain(copier, words, deadline)

    monkeypatch.setattr(HostCopier, "numbers", noted)
    with rig() as at:
        at.owner.ask("fill", [15], 16)
        written = Written(at)
        assert written.copy(3, event=16, claim=bytes(range(16))) == [4]
        assert reads == [(1, b""), (1, b""), (1, b"")]  # no notice: it might not have been written
        assert fetched == [2]
        reads.clear()
        assert written.copy(5, event=15, claim=bytes(range(16))) == [6]
        assert reads == [(1, b""), (1, bytes(range(16)))]
        assert written.asked == []
        assert at.into[3].eq(3).all()
        assert at.into[5].eq(5).all()
        written.mapping.close()


def test_what_was_read_ahead_of_its_event_is_not_taken_for_data(reads: list[tuple[int, bytes]]) -> None:
    with rig() as at:
        at.owner.ask("fill", [15], 16)
        written = Written(at)
        claim = bytes(range(16))
        assert written.copy(3, event=20, claim=claim) == [4]  # of the reads behind its owner's answer
        assert written.asked == [claim]
        assert [notice for _, notice in reads] == [b"", b"", b"", b"", claim]
        written.mapping.close()


def test_pulls_that_come_while_one_is_read_are_one_read(
    reads: list[tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    plain = Passage.bring_together

    def held(passage: Passage, *asked: Any) -> tuple[Int64Array, Int64Array]:
        begun.set()
        assert may_go_on.wait(10)
        return plain(passage, *asked)

    monkeypatch.setattr(Passage, "bring_together", held)
    claims = [bytes([number]) * 16 for number in range(4)]
    with rig() as at, ThreadPoolExecutor(4) as threads:
        written = Written(at)
        written.mapping.has_come_to(1)
        first = threads.submit(written.copy, 0, 1, claims[0])
        assert begun.wait(10)
        others = [threads.submit(written.copy, 9 - number, 1, claims[number]) for number in (1, 2, 3)]
        while written.mapping.company.num_waiting() < 3:
            time.sleep(0.001)
        may_go_on.set()
        assert [each.result(10) for each in (first, *others)] == [[1], [9], [8], [7]]
        assert [pieces for pieces, _ in reads] == [1, 1, 3, 3]
        assert sorted(reads[-1][1][at : at + 16] for at in range(0, 48, 16)) == claims[1:]
        assert at.into[[0, 8, 7, 6]].eq(torch.tensor([[0], [8], [7], [6]], dtype=torch.uint8)).all()
        written.mapping.close()
