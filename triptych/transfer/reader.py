"""Pulls what a claim stands for into memory of this process. Blocking: runs on a puller thread.

A copy is checked against its claim before anything moves, and against the generation words after: what comes back
without an error is what the owner wrote for this claim, whole.
"""

import time
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from triptych.config import TransferSettings
from triptych.errors import TransferFailed, WrongIncarnation
from triptych.journey import EmbeddingRef, Endpoint, KVRef, Shard
from triptych.transfer.arena import ArenaInfo
from triptych.transfer.connections import Connect, Connections
from triptych.transfer.cuda_copy import DeviceCopier
from triptych.transfer.cuda_runtime import concrete_device
from triptych.transfer.faults import Faults
from triptych.transfer.figures import TransferFigures
from triptych.transfer.local import open_local
from triptych.transfer.mapping import Mapping, poll_until
from triptych.transfer.nixl import NixlCopier
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.pairing import open_mapping
from triptych.transfer.protocol.pulling import PullMachine
from triptych.transfer.pull import Copier, CopyAbandoned, HostCopier, IsWanted, LandingCopier, Pull, always
from triptych.transfer.quarantine import Quarantine, overlap
from triptych.transfer.reading import GiveBack, Reading
from triptych.transfer.shards import Landed, Repack, plan_repacked, plan_row_shards, plan_same_blocks
from triptych.transfer.slab import Slab
from triptych.transfer.staging import Prepare


class Reader:
    """The consumer's side of all transfers of one worker. Thread-safe: reads run side by side.

    connect:     what a neighbour exports; raises what the neighbour answers. Called once per endpoint, and again after
                 `forget` or a failure; a ref to this worker itself needs no call.
    owner:       this worker
    local_slabs: this worker's own slabs by arena id; may still grow
    device:      where every destination lies
    nixl:        this worker's NIXL agent, if it has one
    prepare:     asks a claim's owner to make it ready, for reading over NIXL
    give_back:   sends a claim's release to its owner; returns at once. Called for every claim that is read, once
    """

    def __init__(
        self,
        connect: Connect,
        owner: Endpoint,
        local_slabs: MappingOf[int, Slab],
        device: torch.device,
        settings: TransferSettings,
        faults: Faults | None = None,
        figures: TransferFigures | None = None,
        nixl: NixlAgent | None = None,
        give_back: GiveBack = lambda owner, claim: None,
        prepare: Prepare | None = None,
    ) -> None:
        self._prepare = prepare
        self._give_back = give_back
        self._faults = faults or Faults()
        self._figures = figures or TransferFigures()
        self._owner = owner
        self._local_slabs = local_slabs
        self._device = concrete_device(device)
        self._settings = settings
        self._connect = connect
        self._connections = Connections(self._meet, self._open)
        self._copier = copier_for(self._device)
        self._nixl = NixlCopier(nixl, self._device, self._copier, settings) if nixl is not None else None
        self._quarantine = Quarantine()
        self._figures.num_lost = self._num_lost

    def read_rows(
        self, ref: EmbeddingRef, into: Tensor, deadline: float | None = None, is_wanted: IsWanted = always
    ) -> None:
        """Fills `into` [rows, levels * width], contiguous and of the ref's dtype, with the claimed rows.

        deadline:  time.monotonic; at most the settings' copy timeout from now
        is_wanted: once it says no, nothing more is begun, and Cancelled is raised
        The claim is given back in any case, as soon as nothing reads it any more.
        Raises ClaimExpired when the owner has freed or overwritten the rows, and TransferFailed, WrongIncarnation or
        WorkerLost when they cannot be had; `into` holds nothing of use then.
        """
        plan = partial(plan_row_shards, ref, into=into)
        self._read(_Errand(self, "rows", ref, plan, lambda: self._copier.checksum(into)), deadline, is_wanted)

    def read_blocks(
        self,
        ref: KVRef,
        into: Tensor,
        block_ids: Sequence[int],
        deadline: float | None = None,
        is_wanted: IsWanted = always,
    ) -> None:
        """Copies the claimed KV blocks, in order, into the rows `block_ids` of `into` [blocks, block_bytes] uint8.

        When `into` is the slab the claim is in, blocks that are their own destination stay where they are.
        Deadline and errors as in `read_rows`.
        """
        plan = partial(plan_same_blocks, ref, into=into, block_ids=block_ids)
        sum_up = partial(self._copier.checksum, into, block_ids)
        self._read(_Errand(self, "kv", ref, plan, sum_up), deadline, is_wanted)

    def read_repacked(
        self,
        ref: KVRef,
        repack: Repack,
        into: Tensor,
        deadline: float | None = None,
        is_wanted: IsWanted = always,
    ) -> None:
        """Copies the claimed tokens to their places in blocks of another format; otherwise as `read_blocks`.

        A checksum is of the owner's blocks: a claim that has one lands as they are, and is repacked once it is known
        to be right.
        """
        if not ref.checksum:
            plan = partial(plan_repacked, ref, repack=repack, into=into)
            self._read(_Errand(self, "kv", ref, plan, bytes), deadline, is_wanted)
            return
        limit = self._deadline(deadline)
        landed = Landed(ref, self._device, limit)
        self._read(_Errand(self, "kv", ref, landed.plan, lambda: landed.checksum(self._copier)), limit, is_wanted)
        for pull in landed.repack(repack, into):
            try:
                self._copier.copy(replace(pull, home=self._home(into)), limit)
            except CopyAbandoned as error:
                self._quarantine.hold(error.ended, into, lambda: None)
                raise

    def open(self, endpoint: Endpoint, deadline: float | None = None) -> str:
        """The transport to a neighbour, with its arenas opened ahead of the first ref. Raises as reading does."""
        if endpoint != self._owner:
            limit = self._deadline(deadline)
            loan = self._connections.borrow(endpoint, limit)
            try:
                loan.peer.open_all(limit)
            finally:
                loan.end()
        return self.transport_of(endpoint)

    def transport_of(self, endpoint: Endpoint) -> str:
        """local, shm, cuda_ipc, nixl; several joined by "+"; empty while nothing of the endpoint is open."""
        if endpoint == self._owner:
            return "local"
        return "+".join(self._connections.transports(endpoint))

    def known(self) -> Sequence[Endpoint]:
        """The neighbours that are connected."""
        return self._connections.known()

    def forget(self, endpoint: Endpoint) -> None:
        """Closes a neighbour's mappings, after the last copy out of them. A later ref connects anew."""
        self._figures.forgotten(endpoint)
        self._connections.forget(endpoint)
        self._quarantine.let_go()

    def still_writing(self, into: Tensor) -> bool:
        """Whether a copy that was given up may still write into this memory: ask after an error, before reusing it."""
        return self._quarantine.writes_into(into)

    def wait_until_quiet(self, into: Tensor, timeout_seconds: float) -> bool:
        """Whether no copy that was given up writes into this memory any more, waiting for it up to the timeout."""
        try:
            poll_until(lambda: not self.still_writing(into), time.monotonic() + timeout_seconds, "an abandoned copy")
        except TransferFailed:
            return False
        return True

    def close(self) -> None:
        """Forgets every neighbour."""
        self._connections.forget_all()
        self._quarantine.let_go()

    def _num_lost(self) -> int:
        return self._quarantine.let_go() + (self._nixl.num_lost_windows() if self._nixl is not None else 0)

    def _read(self, errand: "_Errand", deadline: float | None, is_wanted: IsWanted) -> None:
        self._quarantine.let_go()
        errand.is_wanted = is_wanted
        ref = errand.ref
        machine = PullMachine(ref.claim_id, ref.owner, self._deadline(deadline), ref.checksum)
        Reading(machine, errand, self._copier_from, self._quarantine, self._give_back, is_wanted).run()

    def _meet(self, endpoint: Endpoint) -> Sequence[ArenaInfo]:
        arenas = self._connect(endpoint)
        self._figures.met(endpoint, arenas)
        return arenas

    def _open(self, endpoint: Endpoint, info: ArenaInfo) -> Mapping:
        allowed = self._settings.transports
        prepare = partial(self._prepare, endpoint) if self._prepare is not None else None
        return open_mapping(
            *(info, self._device, self._local_slabs, self._figures.tried),
            nixl=self._nixl,
            prepare=prepare,
            allowed=allowed,
        )

    def _copier_from(self, source: Mapping) -> Copier:
        return self._nixl if self._nixl is not None and source.transport == "nixl" else self._copier

    def _source(self, owner: Endpoint, shard: Shard, limit: float, held: ExitStack) -> Mapping:
        """The claimed arena; open until `held` closes."""
        if owner == self._owner:
            slab = self._local_slabs.get(shard.arena)
            if slab is None:
                raise TransferFailed(f"this worker has no arena {shard.arena}")
            return open_local(slab.describe(), self._device, self._local_slabs)
        if owner.address == self._owner.address:
            raise WrongIncarnation(
                f"claim of incarnation {owner.incarnation} at {owner.address}, which is {self._owner.incarnation} now"
            )
        loan = self._connections.borrow(owner, limit)
        held.callback(loan.end)
        return loan.peer.mapping(shard.arena, limit)

    def _home(self, into: Tensor) -> Slab | None:
        """The slab of this worker that the destination lies in, if it lies in one."""
        return next((slab for slab in self._local_slabs.values() if overlap(slab.data, into)), None)

    def _deadline(self, deadline: float | None) -> float:
        limit = time.monotonic() + self._settings.copy_timeout_seconds
        return limit if deadline is None else min(limit, deadline)

    def _require_here(self, into: Tensor) -> None:
        if into.device != self._device:
            raise TransferFailed(f"the destination is on {into.device}, this reader copies to {self._device}")


class _Errand:
    """What the reader does for one claim, as `Errand` says.

    plan:   the copies out of the claimed arenas, one for each of the ref's shards
    sum_up: the checksum of what has landed
    """

    def __init__(
        self,
        reader: Reader,
        kind: str,
        ref: EmbeddingRef | KVRef,
        plan: Callable[[Sequence[Mapping]], Sequence[Pull]],
        sum_up: Callable[[], bytes],
    ) -> None:
        self.ref = ref
        self.checksum = sum_up
        self.is_wanted: IsWanted = always
        self._reader = reader
        self._kind = kind
        self._plan = plan
        self._held = ExitStack()

    def open(self, limit: float) -> Sequence[Pull]:
        reader = self._reader
        pulls = self._plan([reader._source(self.ref.owner, shard, limit, self._held) for shard in self.ref.shards])
        for pull in pulls:
            reader._require_here(pull.into)
        halfway = partial(reader._faults.at, f"{self._kind}.middle") if reader._faults.on else None
        claim, alone = self.ref.claim_id, len(self.ref.shards) == 1
        told = partial(replace, claim=claim, is_wanted=self.is_wanted, alone=alone, halfway=halfway)
        return [told(pull, home=reader._home(pull.into)) for pull in pulls]

    def close(self) -> None:
        self._held.close()

    def begin(self, pulls: Sequence[Pull]) -> None:
        self._reader._faults.at(f"{self._kind}.begin")

    def copied(self, pulls: Sequence[Pull]) -> None:
        self._reader._faults.at(f"{self._kind}.copied", lambda: spoil(pulls[-1]))

    def delivered(self, pulls: Sequence[Pull], seconds: float) -> None:
        source = pulls[0].source
        num_bytes = sum(pull.num_bytes for pull in pulls)
        self._reader._figures.copied(source.info.kind, source.transport, num_bytes, seconds)
        self._reader._faults.at(f"{self._kind}.verified")


def spoil(pull: Pull) -> None:
    """For tests: the last byte that was copied becomes another."""
    for run in pull.runs[-1:]:
        pull.into[run.target + run.num_bytes - 1] ^= 0xFF
    if pull.piece_bytes and pull.scattered is not None:
        pull.into[(int(pull.scattered[1][-1]) + 1) * pull.piece_bytes - 1] ^= 0xFF


def copier_for(device: torch.device) -> LandingCopier:
    """Copies into memory of that device."""
    return DeviceCopier(device) if device.type == "cuda" else HostCopier()
