"""Two encoders, two prefill workers, two decode workers, two routers: a world that a seed determines."""

from collections import Counter
from random import Random
from typing import Any

from tests.transfer.model.clock import Timeline
from tests.transfer.model.decode import Decode
from tests.transfer.model.directory import Directory
from tests.transfer.model.encoder import Encoder
from tests.transfer.model.faults import MILD, ROUGH, SLOW, Faults, Rates
from tests.transfer.model.network import Network
from tests.transfer.model.oracle import Oracle
from tests.transfer.model.owner import World
from tests.transfer.model.planted import Planted
from tests.transfer.model.prefill import Prefill
from tests.transfer.model.process import Process
from tests.transfer.model.router import Router
from tests.transfer.model.values import LEASE_SECONDS, SWEEP_SECONDS
from triptych.journey import Endpoint

_ROLES = {"encode": Encoder, "prefill": Prefill, "decode": Decode}
_EACH = 2
_REBIRTH_SECONDS = 2.0


class Simulation:
    """One world; every step is followed by every question that the step may have changed the answer of."""

    def __init__(
        self,
        seed: int,
        rates: Rates | None = None,
        planted: Planted | None = None,
        checksums: bool | None = None,
        seconds_between: float | None = None,
    ) -> None:
        """rates, checksums, seconds between the clients of a router: the seed's, unless given"""
        self.seed = seed
        self.timeline = Timeline()
        self.random = Random(seed)
        self.faults = Faults(self.random, rates or (MILD, ROUGH, SLOW)[seed // 2 % 3])
        self.oracle = Oracle(self.timeline, LEASE_SECONDS, SWEEP_SECONDS)
        self.network = Network(self.timeline, self.random, self.faults)
        # Half of the worlds rely on generations alone; where bytes may turn on their way, only checksums can tell.
        checksums = seed % 2 == 0 if checksums is None else checksums
        pull_seconds = self.random.choice((1.5, 4.0, 12.0))
        self.world = World(
            self.timeline, self.random, self.network, self.oracle, planted or Planted(), checksums, pull_seconds
        )
        self.network.checks_incarnation = self.world.planted.checks_incarnation
        self.directory = Directory(self.random)
        self.services: dict[str, Any] = {}  # by address
        self._seconds_between = seconds_between or self.random.choice((0.25, 0.5, 0.9))
        self.checks = 0
        self._incarnations: Counter[str] = Counter()
        for role in (*_ROLES, "route"):
            for number in range(_EACH):
                self._start(role, f"{role}-{number}")

    def run(self, steps: int) -> None:
        while self.timeline.steps < steps:
            self.timeline.step()
            self.oracle.require_whole()

    def fill_landing(self) -> None:
        """No prefill worker has room for rows during the next six leases."""
        for service in self.services.values():
            if isinstance(service, Prefill):
                service.fill_landing(6 * LEASE_SECONDS)

    def settle(self) -> None:
        """Faults stop, clients leave, or their routers die: within a lease and a second all are idle."""
        self.faults.stop()
        for service in self.services.values():
            service.process.device.go_on()
            service.process.resume()
        self.timeline.run_until(self.timeline.now + Rates().longest_pause + 1.0)  # nothing that was late is later
        for router in self._routers():
            router.busy = False
            if self.seed % 5 < 2:
                router.process.kill()
            else:
                router.leave_all()
        self._require_idle(LEASE_SECONDS + 1.0)

    def finish(self, seconds: float = 60.0) -> None:
        """No more clients come; all is idle a second after the last request has ended."""
        for router in self._routers():
            router.busy = False
        end = self.timeline.now + seconds
        while not all(router.is_idle() for router in self._routers()) and self.timeline.now < end:
            self.timeline.step()
        self._require_idle(1.0)

    def _routers(self) -> list[Router]:
        return [service for service in self.services.values() if isinstance(service, Router)]

    def _require_idle(self, seconds: float) -> None:
        self.timeline.run_until(self.timeline.now + seconds)
        for service in self.services.values():
            if service.process.alive:
                service.check()
                self.oracle.hold(service.is_idle(), f"{service.process.name} is not idle")
                self._check_counters(service)
        self.oracle.check_balance()
        self.oracle.require_whole()

    def _check_counters(self, service: Any) -> None:
        leases = getattr(service, "leases", None)
        if leases is not None:
            self.oracle.hold(leases.failed_ends == 0, f"{leases.failed_ends} ends of claims failed")
            self.oracle.hold(leases.unknown_releases == 0, f"{leases.unknown_releases} releases of unknown claims")

    # Processes

    def _start(self, role: str, address: str) -> None:
        self._incarnations[address] += 1
        endpoint = Endpoint(address, self._incarnations[address])
        process = Process(self.timeline, self.random, self.faults, endpoint)
        if role == "route":
            service: Any = Router(self.world, process, self.directory, self._seconds_between)
        else:
            service = _ROLES[role](self.world, process)
            self.directory.by_role[role][address] = endpoint
        process.after_step = lambda step: self._check(service)
        process.on_killed = lambda: self._killed(role, process)
        process.on_isolated = lambda seconds: self.network.isolate(endpoint, seconds)
        self.services[address] = service
        self.network.listen(process, service)

    def _killed(self, role: str, process: Process) -> None:
        """Others notice, by and by; a new process comes to its address."""
        self.oracle.counts["deaths"] += 1
        address = process.endpoint.address
        if role != "route":
            self.timeline.after(self.random.uniform(0, 0.5), self._unlist, role, process.endpoint)
        self.oracle.forget_owner(process)
        self.network.died(process)
        if self.faults.rates.kill:
            self.timeline.after(self.random.uniform(0.05, _REBIRTH_SECONDS), self._start, role, address)

    def _unlist(self, role: str, endpoint: Endpoint) -> None:
        if self.directory.by_role[role].get(endpoint.address) == endpoint:
            del self.directory.by_role[role][endpoint.address]

    def _check(self, service: Any) -> None:
        self.checks += 1
        service.check()
        self.oracle.check_destinations(service.process)
