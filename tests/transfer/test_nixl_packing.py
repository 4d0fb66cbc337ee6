"""Scattered units go out of their owner in one piece: what is packed, for how long, and what is checked of it."""

import random
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.transfer.neighbours import CPU, OWNER, blocks_ref, fill
from tests.transfer.nixl_rig import TCP, NixlOwner, reading
from triptych.errors import ClaimExpired, TransferFailed
from triptych.journey import ClaimId, RequestId
from triptych.transfer.leases import Claimed, LeaseTable
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.pull import HostCopier
from triptych.transfer.slab import Slab, create_slab
from triptych.transfer.staging import (
    STAGING_UNIT_BYTES,
    Packed,
    Room,
    Staging,
    packed_bytes,
    words_offset,
)

UNIT_BYTES = 4096
KV = 2
SOON = 1e9  # a deadline that is far away

PACKING = replace(TCP, nixl_pack_below_bytes=64 << 20, nixl_staging_bytes=8 << 20, nixl_window_bytes=10 * UNIT_BYTES)


@pytest.fixture
def pieces_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pieces each READ had."""
    counts: list[int] = []
    plain = NixlAgent.read

    def counted(agent, source, takes, notice=b""):  # type: ignore[no-untyped-def]
        counts.append(sum(len(take.pieces) for take in takes))
        return plain(agent, source, takes, notice)

    monkeypatch.setattr(NixlAgent, "read", counted)
    return counts


def test_scattered_blocks_come_in_few_pieces_each_in_its_place(pieces_read: list[int]) -> None:
    pytest.importorskip("nixl_cu13")
    with NixlOwner("kv", UNIT_BYTES, 200, PACKING) as owner, reading(owner, PACKING) as (reader, _):
        owner.ask("fill_numbered")
        claimed = random.Random(3).sample(range(200), 48)
        claim = owner.ask("grant", tuple(claimed), 60.0)
        ref = replace(blocks_ref([(unit, unit + 1) for unit in claimed]), claim_id=claim)
        into = torch.full((64, UNIT_BYTES), 255, dtype=torch.uint8)
        places = random.Random(4).sample(range(64), 48)
        reader.open(OWNER)
        pieces_read.clear()
        reader.read_blocks(ref, into, places)
        assert (into[places] == torch.tensor(claimed, dtype=torch.uint8)[:, None]).all()
        assert (into[[place for place in range(64) if place not in places]] == 255).all()
        # Two windows, each half for ten blocks; with the last blocks words and ids, then the pack's own words.
        assert pieces_read == [1, 1, 1, 1, 2, 1]
        _wait_until_idle(owner)


def test_without_room_they_come_piece_by_piece(pieces_read: list[int]) -> None:
    pytest.importorskip("nixl_cu13")
    tight = replace(PACKING, nixl_staging_bytes=STAGING_UNIT_BYTES)
    with NixlOwner("kv", UNIT_BYTES, 250, tight) as owner, reading(owner, tight) as (reader, _):
        owner.ask("fill_numbered")
        claimed = tuple(range(0, 250, 2))
        claim = owner.ask("grant", claimed, 60.0)
        into = torch.zeros(125, UNIT_BYTES, dtype=torch.uint8)
        ref = replace(blocks_ref([(unit, unit + 1) for unit in claimed]), claim_id=claim)
        reader.read_blocks(ref, into, range(125))
        assert (into == torch.tensor(claimed, dtype=torch.uint8)[:, None]).all()
        assert max(pieces_read) == 10
        _wait_until_idle(owner)


def test_a_pack_of_other_units_than_the_reader_means_is_refused() -> None:
    pytest.importorskip("nixl_cu13")
    with NixlOwner("kv", UNIT_BYTES, 64, PACKING) as owner, reading(owner, PACKING) as (reader, _):
        owner.ask("fill", range(64), 5)  # all of one generation: the words alone would not tell
        claim = owner.ask("grant", (2, 4, 6), 60.0)
        ref = replace(blocks_ref([(2, 5), (6, 5), (4, 5)]), claim_id=claim)
        with pytest.raises(TransferFailed, match="packed other units"):
            reader.read_blocks(ref, torch.zeros(3, UNIT_BYTES, dtype=torch.uint8), range(3))


def test_a_stale_unit_in_a_pack_is_refused() -> None:
    pytest.importorskip("nixl_cu13")
    with NixlOwner("kv", UNIT_BYTES, 64, PACKING) as owner, reading(owner, PACKING) as (reader, _):
        owner.ask("fill", range(64), 5)
        claim = owner.ask("grant", (2, 4, 6), 60.0)
        owner.ask("fill", [4], 6)
        ref = replace(blocks_ref([(2, 5), (4, 5), (6, 5)]), claim_id=claim)
        with pytest.raises(ClaimExpired, match="unit 4 has generation 6, the claim 5"):
            reader.read_blocks(ref, torch.zeros(3, UNIT_BYTES, dtype=torch.uint8), range(3))


def test_a_pack_that_was_overwritten_before_it_was_read_is_refused() -> None:
    pytest.importorskip("nixl_cu13")
    with NixlOwner("kv", UNIT_BYTES, 64, PACKING) as owner, reading(owner, PACKING) as (reader, _):
        owner.ask("fill", range(64), 5)
        first = owner.ask("grant", (2, 4, 6), 0.05)
        packed = owner.prepare(OWNER, first, True, time.monotonic() + 5)
        time.sleep(0.06)
        assert owner.ask("sweep") == 1
        second = owner.ask("grant", (8, 10, 12), 60.0)
        assert owner.prepare(OWNER, second, True, time.monotonic() + 5) is not None
        owner.prepare = lambda *_: packed  # type: ignore[method-assign]  # an answer from before the lease ended
        ref = replace(blocks_ref([(2, 5), (4, 5), (6, 5)]), claim_id=first)
        with pytest.raises(ClaimExpired, match="pack of 3 units was gone"):
            reader.read_blocks(ref, torch.zeros(3, UNIT_BYTES, dtype=torch.uint8), range(3))


# ---------------------------------------------------------------------------------------------------- owner's side


class Rig:
    """An owner's staging in this process."""

    def __init__(self, staging_units: int = 8) -> None:
        self.now = 0.0
        self.kv = create_slab("kv", KV, UNIT_BYTES, 32, CPU)
        fill(self.kv, range(32), 5)
        self.slab = create_slab("staging", 3, STAGING_UNIT_BYTES, staging_units, CPU)
        self.leases = LeaseTable(clock=lambda: self.now)
        self.staging = Staging({KV: self.kv}, self.leases, HostCopier(), self.slab)

    def grant(self, units: tuple[int, ...], seconds: float = 10.0) -> ClaimId:
        return self.leases.grant(RequestId(bytes(20)), seconds, lambda: None, Claimed(KV, units, 0))


def test_a_claim_is_packed_once_and_its_room_is_free_when_it_ends() -> None:
    rig = Rig()
    claim = rig.grant((3, 1, 30))
    packed = rig.staging.prepare(claim, True, SOON)
    assert packed is not None
    assert rig.staging.prepare(claim, True, SOON) == packed
    assert not rig.staging.idle()
    assert _unpacked(rig.slab, packed, 3) == ([5, 5, 5], [3, 1, 30])
    rig.leases.release([claim])
    assert rig.staging.idle()
    assert rig.staging.num_packs() == 0


def test_a_claim_that_is_over_cannot_be_made_ready() -> None:
    rig = Rig()
    claim = rig.grant((3, 1), seconds=1.0)
    rig.now = 2.0
    for known in (claim, ClaimId(bytes(16))):
        with pytest.raises(ClaimExpired, match="is over"):
            rig.staging.prepare(known, True, SOON)
    rig.leases.sweep()
    assert rig.staging.idle()


def test_a_claim_that_ends_while_it_is_packed_leaves_no_pack() -> None:
    rig = Rig()
    claim = rig.grant((3, 1))
    plain = rig.staging._fill

    def fill(*packing):  # type: ignore[no-untyped-def]
        plain(*packing)
        rig.leases.release([claim])

    rig.staging._fill = fill  # type: ignore[method-assign]
    with pytest.raises(ClaimExpired, match="ended while it was packed"):
        rig.staging.prepare(claim, True, SOON)
    assert rig.staging.idle()


def test_a_single_unit_is_not_packed() -> None:
    rig = Rig()
    assert rig.staging.prepare(rig.grant((3,)), True, SOON) is None
    assert rig.staging.prepare(rig.grant((3, 4)), False, SOON) is None


def test_random_claims_never_share_room_and_leave_all_of_it() -> None:
    rig, chance = Rig(staging_units=24), random.Random(5)
    live: dict[ClaimId, Packed] = {}
    for _ in range(400):
        if live and chance.random() < 0.45:
            claim = chance.choice(list(live))
            del live[claim]
            rig.leases.release([claim])
        else:
            units = tuple(chance.sample(range(32), chance.randint(2, 32)))
            claim = rig.grant(units)
            packed = rig.staging.prepare(claim, True, SOON)
            if packed is None:
                rig.leases.release([claim])
                continue
            live[claim] = packed
            assert _unpacked(rig.slab, packed, len(units))[1] == list(units)
        assert len({packed.generation for packed in live.values()}) == len(live)
        words = {claim: int(rig.slab.words[packed.offset // STAGING_UNIT_BYTES]) for claim, packed in live.items()}
        assert words == {claim: packed.generation for claim, packed in live.items()}
    rig.leases.release(list(live))
    assert rig.staging.idle()


def test_room_is_first_fit_and_joins_what_comes_back() -> None:
    chance, room = random.Random(6), Room(50)
    taken: list[range] = []
    for _ in range(2000):
        if taken and chance.random() < 0.5:
            room.give_back(taken.pop(chance.randrange(len(taken))))
        elif (got := room.take(chance.randint(1, 12))) is not None:
            assert not any(got.start < other.stop and other.start < got.stop for other in taken)
            taken.append(got)
    for each in taken:
        room.give_back(each)
    assert room.idle()
    assert room.take(50) == range(50)


def _unpacked(slab: Slab, packed: Packed, count: int) -> tuple[list[int], list[int]]:
    begin = packed.offset + words_offset(count, UNIT_BYTES)
    words = slab.data[begin : packed.offset + packed_bytes(count, UNIT_BYTES)].view(torch.int64).tolist()
    numbers = slab.data[packed.offset : packed.offset + count * UNIT_BYTES].view(torch.int64)
    assert np.unique(numbers.numpy()).tolist() == [5]
    return words[:count], words[count:]


def _wait_until_idle(owner: NixlOwner) -> None:
    end = time.monotonic() + 10
    while not owner.ask("counts")["idle"]:
        assert time.monotonic() < end, "the pack stayed"
        time.sleep(0.02)
