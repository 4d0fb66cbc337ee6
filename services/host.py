"""One worker process: binds a port, builds its roles, serves until told to stop."""

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import torch
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from triptych import wire
from triptych.config import Settings
from triptych.errors import ConfigError
from triptych.journey import Endpoint, Role
from triptych.models.card import load_card, resolve_dtype
from triptych.pb import worker_pb2_grpc
from triptych.services.canary import STEP_SECONDS, Canary, end_hung, trifle_on
from triptych.services.guard import Door
from triptych.services.health import HealthService
from triptych.services.memory_plan import budget_of, in_words
from triptych.services.profiling import Profiler
from triptych.services.quick_waits import wake_quickly
from triptych.services.site import Language, RoleWorker, Site
from triptych.services.started_threads import started_threads
from triptych.services.worker_service import WorkerService
from triptych.transfer.faults import Faults
from triptych.transfer.leases import Sweeper
from triptych.transfer.nixl_agent import NixlAgent
from triptych.transfer.nixl_start import NoticeTaker, start_nixl
from triptych.transfer.staging import Staging
from triptych.wire.membership import Membership, address_of

log = logging.getLogger(__name__)

# Builds a role at a site, given the language model if the process has one, and registers its servicer.
Builder = Callable[[Site, Language | None, grpc.aio.Server], RoleWorker]

_STOP_SECONDS = 5.0
_CALL_THREADS = 8  # for what would hold up the control thread: short work, of which little is wanted at once
_LEASES = 10  # longest lease a caller may ask for, in leases as configured


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a worker runs and as whom."""

    worker_id: str
    roles: frozenset[Role]
    bind_host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    device: str = "auto"
    device_share: float = 1.0  # of its GPU, among the workers placed there


class WorkerHost:
    """A worker in this process, with its gRPC server on a thread of its own.

    `start` returns once the models are loaded and the port answers; `stop` ends everything, at once when asked twice.
    """

    def __init__(self, placement: Placement, builders: Mapping[Role, Builder], settings: Settings) -> None:
        missing = placement.roles - builders.keys()
        if missing:
            raise ConfigError(f"no builder for roles {sorted(missing)}")
        self._placement = placement
        self._builders = builders
        self._settings = settings
        self._loop = asyncio.new_event_loop()
        self._calls = started_threads(_CALL_THREADS, "calls")
        self._loop.set_default_executor(self._calls)
        self._thread = threading.Thread(target=self._loop.run_forever, name="control", daemon=True)
        self._roles: list[RoleWorker] = []
        self._language: Language | None = None
        self._sweeper: Sweeper | None = None
        self._nixl: NixlAgent | None = None
        self._notices: NoticeTaker | None = None
        self._staging: Staging | None = None
        self._profiler: Profiler | None = None
        self._canary: Canary | None = None
        self._server: grpc.aio.Server | None = None
        self._service: WorkerService | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self.stage = "loads its libraries"  # what `start` is at

    def start(self) -> Endpoint:
        wake_quickly()
        self._thread.start()
        try:
            return asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        except BaseException:
            self.stop()
            raise

    @property
    def trouble(self) -> str:
        """Of which it will end by itself; empty while there is none."""
        return "its device, or a loop of its own, hangs" if self._canary is not None and self._canary.is_hung() else ""

    @property
    def memory(self) -> str:
        """What this worker's memory is for, in words; once it has started."""
        device, settings = choose_device(self._placement.device), self._settings
        slab = self._language.slab if self._language is not None else None
        num_kv_bytes = slab.unit_bytes * slab.num_units if slab is not None else 0
        budget = budget_of(settings, self._placement.device_share, device)
        return in_words(settings, self._placement.roles, num_kv_bytes, budget)

    def drain(self) -> bool:
        """Takes nothing new from now on. Whether all that was here has ended, so that it may be stopped."""
        return asyncio.run_coroutine_threadsafe(self._drain(), self._loop).result(_STOP_SECONDS)

    def stop(self) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        if self._server is not None:
            asyncio.run_coroutine_threadsafe(self._server.stop(grace=0.2), self._loop).result(_STOP_SECONDS)
        for role in self._roles:
            role.stop()
        if self._language is not None:
            self._language.stop()
        if self._sweeper is not None:
            self._sweeper.stop()
        if self._notices is not None:
            self._notices.stop()
        if self._staging is not None:
            self._staging.stop()
        if self._profiler is not None:
            self._profiler.stop()
        if self._canary is not None:
            self._canary.stop()
        if self._nixl is not None:
            self._nixl.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=_STOP_SECONDS)
        self._calls.shutdown(wait=False, cancel_futures=True)

    async def _drain(self) -> bool:
        assert self._service is not None  # `start` has returned
        self._service.drain()
        return self._service.idle()

    async def _start(self) -> Endpoint:
        server = grpc.aio.server(options=wire.SERVER_OPTIONS)
        membership = Membership(self._settings.serve.cluster_secret)
        port = membership.listen(server, self._placement.bind_host, self._placement.port)
        # Signed 63 bits fit every integer field on the way; zero never names a process.
        owner = Endpoint(address_of(self._placement.bind_host, port), secrets.randbits(62) + 1)
        site = await asyncio.to_thread(self._build, owner, server, membership)
        language = self._language
        loops = [role.turn_seconds for role in self._roles]
        loops += [language.engine.turn_seconds] if language is not None else []
        self._canary = Canary(
            trifle_on(site.device),
            loops=loops,
            turn_seconds=self._settings.serve.step_seconds or STEP_SECONDS[site.device.type],
            end=end_hung,
        )
        kv = language.format if language is not None else None
        self._service = WorkerService(site, self._roles, kv, self._canary.is_hung)
        worker_pb2_grpc.add_WorkerServicer_to_server(self._service, server)  # type: ignore[no-untyped-call]
        health = HealthService(self._placement.roles, site.door, self._canary.is_hung)
        add_HealthServicer_to_server(health, server)
        await server.start()
        self._server = server
        return owner

    def _build(self, owner: Endpoint, server: grpc.aio.Server, membership: Membership) -> Site:
        began = time.monotonic()
        faults = Faults.allowed(self._settings.transfer.faults, self._placement.roles)
        torch.set_num_threads(self._settings.serve.cpu_threads or os.cpu_count() or 1)
        device = choose_device(self._placement.device)
        serve = self._settings.serve
        precision = self._settings.language.precision
        card = load_card(serve.model, serve.dtype, load_format=serve.load_format, precision=precision)
        site = Site(
            worker_id=self._placement.worker_id,
            owner=owner,
            card=card,
            device=device,
            dtype=getattr(torch, resolve_dtype(card, self._settings.serve.dtype, device.type)),
            settings=self._settings,
            door=Door(owner.incarnation, card.fingerprint, _LEASES * self._settings.transfer.lease_seconds),
            faults=faults,
            nixl=start_nixl(self._settings.transfer, device, self._placement.bind_host),
            roles=self._placement.roles,
            device_share=self._placement.device_share,
            membership=membership,
        )
        self._nixl = site.nixl  # whatever fails from here on, `stop` closes it
        if self._placement.roles & {Role.PREFILL, Role.DECODE}:
            self.stage = "loads the language model"
            self._language = Language(site)
            self._language.engine.start()
        for role in sorted(self._placement.roles):
            self.stage = f"prepares to {role}"
            self._roles.append(self._builders[role](site, self._language, server))
        if site.nixl is not None:
            # One that decodes as well hands its blocks to itself.
            site.start_staging(packs=Role.PREFILL in self._placement.roles and Role.DECODE not in self._placement.roles)
            self._staging = site.staging
            self._notices = NoticeTaker(site.nixl, site.leases)
        self._sweeper = Sweeper([site.leases], self._settings.transfer.sweep_interval_seconds)
        self._sweeper.start()
        if self._settings.serve.profile_folder:
            folder = Path(self._settings.serve.profile_folder)
            self._profiler = Profiler(folder, self._placement.worker_id, device)
        log.info(
            "worker %s (%s) ready on %s in %.1f s",
            *(self._placement.worker_id, ", ".join(sorted(self._placement.roles)), device),
            time.monotonic() - began,
        )
        return site


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("serve.device is 'cuda', but torch sees no GPU here; use --device cpu")
    return torch.device(name)


def parse_roles(names: Sequence[str]) -> frozenset[Role]:
    try:
        return frozenset(Role(name) for name in names)
    except ValueError as error:
        raise ConfigError(f"{error}; roles are {', '.join(Role)}") from None
