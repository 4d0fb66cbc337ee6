"""The rpcs every worker answers, whatever its roles; served by the control loop, never behind a device step."""

import asyncio
import os
import resource
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from triptych import wire
from triptych.engine.device_errors import is_device_lost
from triptych.errors import TransferFailed, TriptychError
from triptych.multimodal.memfd import MemfdDescriptor, host_id, read_memfd
from triptych.pb import common_pb2
from triptych.pb import worker_pb2 as pb
from triptych.pb.worker_pb2_grpc import WorkerServicer as GeneratedServicer
from triptych.services.faulty import passing
from triptych.services.guard import deadline_of, unary, work_key
from triptych.services.pairs import copies_to_pb, paths_to_pb
from triptych.services.peers import arena_to_pb, kv_format_from_pb, kv_format_to_pb
from triptych.services.site import STAGING_ARENA, RoleWorker, Site, die, merge_gauges
from triptych.transfer.kv_format import KVFormat, repack_refusal
from triptych.transfer.staging import Packed


class WorkerService(GeneratedServicer):
    """Connect, Prepare, Release, Renew, Cancel, Drain, Status."""

    def __init__(
        self,
        site: Site,
        roles: Sequence[RoleWorker],
        kv: KVFormat | None,
        is_hung: Callable[[], bool] = lambda: False,
    ) -> None:
        """is_hung: whether the device has stopped answering"""
        self._site = site
        self._roles = roles
        self._kv = kv
        self._is_hung = is_hung
        self._started_at = time.time()

    @unary
    async def Connect(self, request: pb.ConnectRequest, context: Any) -> pb.ConnectReply:
        self._site.door.check(request.envelope)
        if request.HasField("kv_format") and self._kv is not None:
            # "There" is this worker to whoever asks, and reads the refusal.
            refusal = repack_refusal(self._kv, kv_format_from_pb(request.kv_format))
            if refusal:
                raise TransferFailed(refusal)
        await passing(self._site.faults, "connect.serve")
        arenas = [arena_to_pb(info) for info in self._site.arenas()]
        reply = pb.ConnectReply(protocol=wire.PROTOCOL, arenas=arenas)
        if self._kv is not None:
            reply.kv_layout = self._kv.digest
            reply.kv_format.CopyFrom(kv_format_to_pb(self._kv))
        return reply

    @unary
    async def Prepare(self, request: pb.PrepareRequest, context: Any) -> pb.PrepareReply:
        self._site.door.check(request.envelope)
        await passing(self._site.faults, "prepare.serve")
        (claim,) = wire.claim_ids_from_pb([request.claim_id])
        staging, deadline = self._site.staging, deadline_of(request.envelope)
        if staging is None:
            raise TransferFailed("this worker hands nothing over a network")
        preparing = staging.submit(claim, request.pack, deadline)
        preparing.add_done_callback(_end_where_device_is_lost)  # this call may have been given up by then
        packed = await asyncio.wrap_future(preparing)
        if packed is None:
            return pb.PrepareReply()
        return pb.PrepareReply(packed=True, arena=STAGING_ARENA, offset=packed.offset, generation=packed.generation)

    @unary
    async def Release(self, request: pb.ReleaseRequest, context: Any) -> common_pb2.Empty:
        self._site.door.check(request.envelope)
        await passing(self._site.faults, "release.serve")
        self._site.leases.release(wire.claim_ids_from_pb(request.claim_ids))
        return common_pb2.Empty()

    @unary
    async def Renew(self, request: pb.RenewRequest, context: Any) -> pb.RenewReply:
        self._site.door.check(request.envelope)
        await passing(self._site.faults, "renew.serve")
        claims = wire.claim_ids_from_pb(request.claim_ids)
        seconds = self._site.door.lease_seconds(request.lease_ms)
        return pb.RenewReply(gone=self._site.leases.renew(claims, seconds))

    @unary
    async def Cancel(self, request: pb.CancelRequest, context: Any) -> common_pb2.Empty:
        self._site.door.check(request.envelope)
        key = work_key(request.envelope)
        for role in self._roles:
            role.cancel(key)
        self._site.leases.release_request(key)
        return common_pb2.Empty()

    @unary
    async def Drain(self, request: pb.DrainRequest, context: Any) -> common_pb2.Empty:
        self._site.door.check(request.envelope)
        self.drain()
        return common_pb2.Empty()

    @unary
    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:
        site = self._site
        reply = pb.StatusReply(
            worker_id=site.worker_id,
            incarnation=site.owner.incarnation,
            roles=[role.role.value for role in self._roles],
            state=self._state(),
            model_fingerprint=site.card.fingerprint,
            device=str(site.device),
            gauges=[pb.Gauge(name=name, value=value) for name, value in self._gauges().items()],
            idle=self.idle(),
            host_id=host_id(),
            pid=os.getpid(),
            max_model_len=site.settings.language.longest(site.card.max_model_len),
            block_size=site.settings.language.block_size,
            max_item_tokens=max((role.max_item_tokens for role in self._roles), default=0),
            protocol=wire.PROTOCOL,
            paths=paths_to_pb(site.figures.paths()),
            copies=copies_to_pb(site.figures.copies()),
            histograms=[
                pb.Histogram(name=name, counts=found.counts, total=found.total)
                for role in self._roles
                for name, found in role.histograms().items()
            ],
        )
        if request.check_invariants:
            reply.violation = await asyncio.to_thread(self.violation)
        if request.HasField("probe"):
            reply.probe_readable, reply.probe_reason = await asyncio.to_thread(_probe, request.probe)
        return reply

    def drain(self) -> None:
        """No new work from now on; `idle` tells when what is here has ended. On the control loop."""
        self._site.door.draining = True

    def idle(self) -> bool:
        if self._site.door.num_inside:
            return False
        staging = self._site.staging
        if staging is not None and not staging.idle():
            return False
        return len(self._site.leases) == 0 and all(role.idle() for role in self._roles)

    def violation(self) -> str:
        """The first broken invariant of any pool, queue or table here; empty when all hold."""
        try:
            self._site.leases.check()
            for role in self._roles:
                role.check()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def _state(self) -> str:
        if self._is_hung():
            return "hung"
        return "draining" if self._site.door.draining else "ready"

    def _gauges(self) -> dict[str, float]:
        gauges = merge_gauges(role.gauges() for role in self._roles)
        gauges |= {"claims": len(self._site.leases), "rss_bytes": float(_rss_bytes())}
        leases = self._site.leases
        gauges |= {"claims_granted_total": leases.granted, "claims_released_total": leases.released}
        gauges |= {"late_releases_total": leases.late_releases, "expired_claims_total": leases.expired}
        figures = self._site.figures
        gauges |= {"transfer_lost_copies": figures.num_lost(), "transfer_failures_total": figures.num_failed}
        gauges |= {"start_time_seconds": self._started_at, "cpu_seconds_total": time.process_time()}
        if self._site.device.type == "cuda":
            gauges["device_bytes"] = float(torch.cuda.memory_allocated(self._site.device))
        return gauges


def _end_where_device_is_lost(preparing: Future[Packed | None]) -> None:
    error = None if preparing.cancelled() else preparing.exception()
    if error is not None and is_device_lost(error):
        die(error)


def _probe(probe: pb.MemfdProbe) -> tuple[bool, str]:
    """Whether this process can read the caller's memory, by reading its nonce."""
    try:
        found = bytes(read_memfd(MemfdDescriptor(probe.host_id, probe.pid, probe.fd), len(probe.nonce)))
    except TriptychError as error:
        return False, error.message
    return (True, "") if found == probe.nonce else (False, "the memory there holds something else")


def _rss_bytes() -> int:
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: the peak is the best there is
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
