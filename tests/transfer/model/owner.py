"""What everybody does who lets others read his memory: the real lease table, on his own clock."""

import random as randoms
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.transfer.model.clock import Timeline
from tests.transfer.model.memory import Slab
from tests.transfer.model.network import Network
from tests.transfer.model.oracle import Oracle
from tests.transfer.model.planted import Planted
from tests.transfer.model.process import Process
from tests.transfer.model.values import SWEEP_SECONDS, Event
from triptych.errors import Cancelled
from triptych.journey import ClaimId, Endpoint, RequestId
from triptych.transfer.leases import LeaseTable


@dataclass(frozen=True, slots=True)
class World:
    """What all processes live in."""

    timeline: Timeline
    random: randoms.Random
    network: Network
    oracle: Oracle
    planted: Planted
    checksums: bool
    pull_seconds: float  # a copy's deadline, shorter than a lease or longer


class Owner:
    """Leases, their control calls and their sweeper. Subclasses say what a claim's end frees."""

    def __init__(self, world: World, process: Process, num_units: int) -> None:
        self.world = world
        self.process = process
        self.slab = Slab(num_units)
        self.leases: LeaseTable = world.planted.lease_table(process.clock, self._new_id)
        self.announces_early = world.random.random() < 0.5  # refs go out before their bytes are there, as on CUDA
        self._ending = "release"
        self._touched = True  # the lease table, since it was checked
        self._broken: set[RequestId | Endpoint] = set()  # calls that were cancelled, routers that are lost
        process.later(world.random.uniform(0, SWEEP_SECONDS), "sweep", self._sweep)

    def _new_id(self) -> ClaimId:
        return ClaimId(self.world.random.randbytes(16))

    # Calls

    def connect(self) -> Slab:
        return self.slab

    def renew(self, claims: Sequence[ClaimId], seconds: float) -> list[ClaimId]:
        self._touched = True
        gone = self.leases.renew(claims, seconds)
        self.world.oracle.renewed(claims, gone)
        return gone

    def release(self, claims: Sequence[ClaimId]) -> int:
        return self._ending_by("release", lambda: self.leases.release(claims))

    def release_request(self, key: RequestId) -> None:
        self._ending_by("request", lambda: self.leases.release_request(key))

    def require_unbroken(self, key: RequestId, router: Endpoint) -> None:
        """A call that arrives behind its own end, as the network may have it, is no call any more."""
        if self._broken & {key, router}:
            raise Cancelled("the call is cancelled")

    def broken(self, who: RequestId | Endpoint) -> None:
        self._broken.add(who)

    # Inside

    def grant(
        self, key: RequestId, units: Sequence[int], event: Event, seconds: float, free: Callable[[], None]
    ) -> ClaimId:
        """A lease whose end calls `free`, known to the oracle."""
        granted: list[ClaimId] = []
        self._touched = True

        def end() -> None:
            self.world.oracle.ended(granted[0], self._ending)
            free()

        granted.append(self.leases.grant(key, seconds, end))
        self.world.oracle.granted(self.process, granted[0], self.slab, units, lambda: event.done, seconds)
        return granted[0]

    def write(self, unit: int, half: int, data: bytes) -> None:
        self.world.oracle.overwrites(self.process, self.slab, unit)
        self.slab.write_half(unit, half, data)

    def write_units(self, units: Sequence[int], generations: Sequence[int], data: Sequence[bytes]) -> Event:
        """Launch the kernels that stamp and write; the event happens behind them."""
        event = Event()
        device = self.process.device

        def stamp() -> None:
            for unit, generation in zip(units, generations, strict=True):
                self.world.oracle.overwrites(self.process, self.slab, unit)
                self.slab.words[unit] = generation

        halves = [self._half(unit, half, bytes_) for unit, bytes_ in zip(units, data, strict=True) for half in (0, 1)]
        for kernel in self.world.planted.order_of_writes(stamp, halves):
            device.launch(kernel)
        device.launch(event.happen)
        return event

    def _half(self, unit: int, half: int, data: bytes) -> Callable[[], None]:
        return lambda: self.write(unit, half, data)

    def check_leases(self) -> None:
        """What nobody has touched since is as whole as it was."""
        if self._touched:
            self.leases.check()
            self._touched = False

    def _sweep(self) -> None:
        self._ending_by("sweep", self.leases.sweep)
        self.world.oracle.check_overdue(self.process)
        self.process.later(SWEEP_SECONDS, "sweep", self._sweep)

    def _ending_by(self, by: str, call: Callable[[], Any]) -> Any:
        self._touched = True
        before, self._ending = self._ending, by
        try:
            return call()
        finally:
            self._ending = before
