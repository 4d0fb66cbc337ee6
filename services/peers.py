"""The other workers, as seen from a worker: map their arenas, give claims back."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import grpc

from triptych import wire
from triptych.errors import Cancelled, DeadlineExceeded, TransferFailed, TriptychError, WorkerLost
from triptych.journey import ClaimId, Endpoint
from triptych.pb import common_pb2
from triptych.pb import worker_pb2 as pb
from triptych.pb.worker_pb2_grpc import WorkerStub
from triptych.services.claim_post import ClaimPost
from triptych.transfer.arena import ArenaInfo, CudaIpcInfo, NixlInfo, ShmInfo
from triptych.transfer.faults import Faults
from triptych.transfer.kv_format import KVFormat, repack_refusal
from triptych.transfer.leases import LeaseTable
from triptych.transfer.pull import IsWanted, always
from triptych.transfer.staging import Packed, Prepared
from triptych.wire.membership import Membership

log = logging.getLogger(__name__)

_CALL_SECONDS = 5.0
_LOOK_SECONDS = 0.05  # between two looks at whether an answer is still wanted
_NO_REQUEST = bytes(16)


class Peers:
    """Channels to the workers this one has dealt with. Thread-safe; `close` ends its threads and channels.

    Releases and renewals are sent by a thread for each owner, so that a slow peer holds up neither pulls nor others.

    kv:     how this worker keeps KV; None when it takes only embeddings
    leases: this worker's own, for claims that it reads itself
    """

    def __init__(
        self,
        owner: Endpoint,
        fingerprint: bytes,
        kv: KVFormat | None,
        leases: LeaseTable,
        faults: Faults | None = None,
        membership: Membership | None = None,
    ) -> None:
        self._owner = owner
        self._fingerprint = fingerprint
        self._kv = kv
        self._leases = leases
        self._faults = faults or Faults()
        self._membership = membership or Membership()
        self._lock = threading.Lock()
        self._known: set[Endpoint] = set()  # who has been called since it was forgotten last
        self._channels: dict[str, grpc.Channel] = {}
        self._stubs: dict[str, WorkerStub] = {}  # kept along: making one takes as long as some of its calls
        self._staging: dict[Endpoint, ArenaInfo | None] = {}
        self._formats: dict[Endpoint, KVFormat | None] = {}
        self._post = ClaimPost(self._send_release, self._send_renewal, self._faults)

    def connect(self, endpoint: Endpoint) -> Sequence[ArenaInfo]:
        """The peer's arenas. Raises the peer's own refusal, or WorkerLost when it does not answer."""
        request = pb.ConnectRequest(envelope=self._envelope(endpoint), protocol=wire.PROTOCOL)
        if self._kv is not None:
            request.kv_layout = self._kv.digest
            request.kv_format.CopyFrom(kv_format_to_pb(self._kv))
        self._faults.at("connect.ask")
        try:
            reply = self._stub(endpoint).Connect(request, timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            raise _failure(endpoint, "Connect", _CALL_SECONDS, error) from error
        if reply.protocol != wire.PROTOCOL:
            raise TransferFailed(f"peer speaks transfer protocol {reply.protocol}, this worker {wire.PROTOCOL}")
        arenas = [arena_from_pb(arena) for arena in reply.arenas]
        theirs = kv_format_from_pb(reply.kv_format) if reply.HasField("kv_format") else None
        if theirs is not None and self._kv is not None and (refusal := repack_refusal(theirs, self._kv)):
            raise TransferFailed(refusal)
        with self._lock:
            self._formats[endpoint] = theirs
            self._staging[endpoint] = next((arena for arena in arenas if arena.kind == "staging"), None)
        return arenas

    def known(self) -> Sequence[Endpoint]:
        """Those that were called, be it in vain or after they were forgotten, until they are forgotten."""
        with self._lock:
            return [*self._known]

    def kv_format(self, owner: Endpoint) -> KVFormat | None:
        """How a peer that was connected keeps KV, if it keeps any."""
        with self._lock:
            return self._formats.get(owner)

    def is_there(self, endpoint: Endpoint) -> bool:
        """Whether the process answers, as itself and not as another that has its address now. Blocks."""
        try:
            reply = self._stub(endpoint).Status(pb.StatusRequest(), timeout=_CALL_SECONDS)
        except grpc.RpcError as error:
            return not isinstance(_failure(endpoint, "Status", _CALL_SECONDS, error), WorkerLost)
        return bool(reply.incarnation == endpoint.incarnation)

    def prepare(
        self, owner: Endpoint, claim: ClaimId, pack: bool, deadline: float, is_wanted: IsWanted = always
    ) -> Prepared | None:
        """Where a claim was packed; None once it can be read where it lies. Blocks until its owner's event is done.

        Raises the owner's refusal, WorkerLost when it does not answer by the deadline (time.monotonic), or Cancelled
        soon after the claim is not wanted any more.
        """
        seconds = max(0.001, deadline - time.monotonic())
        request = pb.PrepareRequest(envelope=self._envelope(owner, seconds), claim_id=claim, pack=pack)
        self._faults.at("prepare.ask")
        try:
            reply = _wait(self._stub(owner).Prepare.future(request, timeout=seconds), is_wanted)
        except grpc.RpcError as error:
            raise _failure(owner, "Prepare", seconds, error) from error
        with self._lock:
            staging = self._staging.get(owner)
        if not reply.packed:
            return None
        if staging is None or staging.id != reply.arena:
            raise TransferFailed(f"{owner.address} packed into arena {reply.arena}, which it never told of")
        return Prepared(staging, Packed(reply.offset, reply.generation))

    def keep(self, owner: Endpoint, claim: ClaimId, lease_seconds: float) -> None:
        """Renew a claim of such a lease until it is given back; returns at once."""
        self._post.keep(owner, claim, lease_seconds)

    def release(self, owner: Endpoint, claim: ClaimId) -> None:
        """Give a claim back; returns at once. A claim whose release is lost ends with its lease."""
        if owner == self._owner:
            self._post.drop(owner, claim)
            self._leases.release([claim])
        else:
            self._post.release(owner, claim)

    def release_stray(self, owner: Endpoint, claim: ClaimId) -> None:
        """Give a claim back that nobody here waits for, unless its ref has come again: then the pull of it does."""
        if not self._post.keeps(owner, claim):
            self.release(owner, claim)

    def forget(self, endpoint: Endpoint) -> None:
        """The process is gone: keep nothing of it. Calls that are on their way to it end by themselves."""
        with self._lock:
            self._known.discard(endpoint)
            self._formats.pop(endpoint, None)
            self._staging.pop(endpoint, None)
            self._stubs.pop(endpoint.address, None)
            self._channels.pop(endpoint.address, None)  # not closed: a call may be on it. The next one opens another

    def num_kept(self) -> int:
        """Claims that are renewed."""
        return len(self._post)

    def close(self) -> None:
        self._post.close(_CALL_SECONDS)
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()
            self._stubs.clear()

    def _envelope(self, endpoint: Endpoint, seconds: float = _CALL_SECONDS) -> common_pb2.Envelope:
        return wire.envelope(_NO_REQUEST, 0, self._owner.address, endpoint.incarnation, seconds, self._fingerprint)

    def _stub(self, endpoint: Endpoint) -> WorkerStub:
        with self._lock:
            self._known.add(endpoint)
            if endpoint.address not in self._channels:
                channel = self._channels[endpoint.address] = self._membership.channel(endpoint.address)
                self._stubs[endpoint.address] = WorkerStub(channel)  # type: ignore[no-untyped-call]
            return self._stubs[endpoint.address]

    def _send_release(self, owner: Endpoint, claims: Sequence[ClaimId], seconds: float) -> None:
        request = pb.ReleaseRequest(envelope=self._envelope(owner), claim_ids=claims)
        try:
            self._stub(owner).Release(request, timeout=seconds)
        except grpc.RpcError as error:
            raise _failure(owner, "Release", seconds, error) from error

    def _send_renewal(
        self, owner: Endpoint, claims: Sequence[ClaimId], lease_seconds: float, seconds: float
    ) -> Sequence[ClaimId]:
        if owner == self._owner:
            return self._leases.renew(claims, lease_seconds)
        lease_ms = max(1, int(lease_seconds * 1000))
        request = pb.RenewRequest(envelope=self._envelope(owner), claim_ids=claims, lease_ms=lease_ms)
        try:
            return wire.claim_ids_from_pb(self._stub(owner).Renew(request, timeout=seconds).gone)
        except grpc.RpcError as error:
            raise _failure(owner, "Renew", seconds, error) from error


def _wait(call: Any, is_wanted: IsWanted) -> Any:
    """The call's reply. Raises what it fails with, or Cancelled once nobody wants it, and then it is cancelled."""
    while True:
        try:
            return call.result(timeout=_LOOK_SECONDS)
        except grpc.FutureTimeoutError:
            if not is_wanted():
                call.cancel()
                raise Cancelled("nobody waits for this claim any more") from None


def _failure(owner: Endpoint, rpc: str, seconds: float, error: grpc.RpcError) -> TriptychError:
    failure = wire.error_from_rpc(error)
    if isinstance(failure, DeadlineExceeded):  # the peer's time, not the request's: another one may be tried
        return WorkerLost(f"{owner.address} did not answer {rpc} within {seconds:g} s")
    return failure


def kv_format_to_pb(form: KVFormat) -> pb.KVFormat:
    return pb.KVFormat(**asdict(form))


def kv_format_from_pb(message: pb.KVFormat) -> KVFormat:
    return KVFormat(
        layers=message.layers,
        block_size=message.block_size,
        heads=message.heads,
        head_size=message.head_size,
        dtype=message.dtype,
        first_head=message.first_head,
        total_heads=message.total_heads,
        scaling=message.scaling,
    )


def arena_to_pb(info: ArenaInfo) -> pb.Arena:
    message = pb.Arena(
        id=info.id,
        kind=info.kind,
        num_bytes=info.num_bytes,
        words_offset=info.words_offset,
        data_offset=info.data_offset,
        unit_bytes=info.unit_bytes,
        num_units=info.num_units,
        probe=info.probe,
        rank=info.rank,
        no_cuda_ipc=info.no_cuda_ipc,
    )
    if info.shm is not None:
        message.shm.CopyFrom(pb.SharedMemory(host_id=info.shm.host_id, pid=info.shm.pid, fd=info.shm.fd))
    if info.cuda_ipc is not None:
        ipc = info.cuda_ipc
        message.cuda_ipc.CopyFrom(
            pb.CudaIpc(
                memory_handle=ipc.memory_handle,
                event_handles=list(ipc.event_handles),
                device_uuid=ipc.device_uuid,
                event_words_offset=ipc.event_words_offset,
            )
        )
    if info.nixl is not None:
        nixl = info.nixl
        message.nixl.CopyFrom(
            pb.Nixl(
                agent=nixl.agent,
                metadata=nixl.metadata,
                address=nixl.address,
                device=nixl.device,
                vram=nixl.vram,
            )
        )
    return message


def arena_from_pb(message: pb.Arena) -> ArenaInfo:
    shm, ipc, nixl = message.shm, message.cuda_ipc, message.nixl
    return ArenaInfo(
        id=message.id,
        kind=message.kind,
        num_bytes=message.num_bytes,
        words_offset=message.words_offset,
        data_offset=message.data_offset,
        unit_bytes=message.unit_bytes,
        num_units=message.num_units,
        probe=message.probe,
        rank=message.rank,
        no_cuda_ipc=message.no_cuda_ipc,
        shm=ShmInfo(shm.host_id, shm.pid, shm.fd) if message.HasField("shm") else None,
        cuda_ipc=CudaIpcInfo(ipc.memory_handle, tuple(ipc.event_handles), ipc.device_uuid, ipc.event_words_offset)
        if message.HasField("cuda_ipc")
        else None,
        nixl=NixlInfo(nixl.agent, nixl.metadata, nixl.address, nixl.device, nixl.vram)
        if message.HasField("nixl")
        else None,
    )
