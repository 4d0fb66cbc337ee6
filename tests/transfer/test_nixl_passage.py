"""Reads and copies that are under way at once: what waits for what, and who may have the memory when one is lost."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.transfer.neighbours import CPU, blocks_ref
from tests.transfer.nixl_rig import TCP, NixlOwner
from triptych.config import TransferSettings
from triptych.errors import TransferFailed
from triptych.journey import Int64Array
from triptych.transfer.arena import CudaIpcInfo
from triptych.transfer.landing import Windows
from triptych.transfer.nixl import NixlMapping
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_passage import Beside, Passage, Words
from triptych.transfer.nixl_pieces import data_parts
from triptych.transfer.nixl_start import start_nixl
from triptych.transfer.plan import plan_blocks
from triptych.transfer.pull import CopyAbandoned, HostCopier, Pull

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
