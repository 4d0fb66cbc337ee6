"""Whose memory a consumer has open: the real machines of neighbours, their actions done in the simulated world."""

from collections.abc import Callable
from typing import Any, Protocol

from tests.transfer.model.memory import Slab
from tests.transfer.model.owner import World
from tests.transfer.model.process import Process
from triptych.errors import TriptychError, WorkerLost
from triptych.journey import Endpoint
from triptych.transfer.protocol.peering import (
    AskArenas,
    CloseArenas,
    OpenArena,
    PeerActions,
    PeerMachine,
)

ARENA = 0
MAPPED, WIRE = "mapped", "wire"  # a mapping outlives its owner, a network's reads end with him


class Waiting(Protocol):
    """Who wants to read a neighbour's memory."""

    def reached(self, peer: PeerMachine, source: Slab) -> None: ...

    def unreached(self, kind: type[TriptychError], reason: str) -> None: ...


class Neighbours:
    """Of one consumer."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._machines = world.planted.neighbourhood()
        self._slabs: dict[PeerMachine, Slab] = {}
        self._waiting: dict[Endpoint, list[Waiting]] = {}

    def reach(self, owner: Endpoint, who: Waiting) -> None:
        """Tell `who`, now or later, that the neighbour's memory is open and lent to him, or why not."""
        self._waiting.setdefault(owner, []).append(who)
        machine = self._machines.find(owner)
        self._do(machine, machine.wanted(self._process.clock()))
        if machine.is_usable:
            self._want_arena(machine)

    def give_back(self, machine: PeerMachine) -> None:
        self._do(machine, machine.returned(self._process.clock()))

    def forget(self, owner: Endpoint) -> None:
        machine = self._machines.drop(owner)
        if machine is not None:
            self._do(machine, machine.forget(self._process.clock()))

    def _do(self, machine: PeerMachine, actions: PeerActions) -> None:
        for action in actions:
            if isinstance(action, AskArenas):
                self._world.network.call(
                    self._process, action.peer, "connect", "connect", answer=self._answered(machine)
                )
            elif isinstance(action, OpenArena):
                self._process.later(self._world.random.uniform(0.0005, 0.02), "open", self._opened, machine)
            elif isinstance(action, CloseArenas):
                self._world.oracle.closes(self._process, machine.peer)
                self._slabs.pop(machine, None)
        machine.check()

    def _answered(self, machine: PeerMachine) -> Callable[[Any], None]:
        def answered(outcome: Any) -> None:
            now = self._process.clock()
            if isinstance(outcome, TriptychError):
                self._do(machine, machine.refused(now, type(outcome), str(outcome)))
                self._refuse(machine.peer, type(outcome), str(outcome))
                return
            self._slabs[machine] = outcome
            self._do(machine, machine.met(now, [ARENA]))
            for other in self._machines.replaced_by(machine.peer):
                self.forget(other.peer)
            self._want_arena(machine)

        return answered

    def _want_arena(self, machine: PeerMachine) -> None:
        if machine.transport_of(ARENA):
            self._lend(machine)
        else:
            self._do(machine, machine.arena_wanted(self._process.clock(), ARENA))

    def _opened(self, machine: PeerMachine) -> None:
        transport = self._world.random.choice((MAPPED, WIRE))
        self._do(machine, machine.opened(self._process.clock(), ARENA, transport))
        if machine.is_usable:
            self._lend(machine)
        else:
            self._refuse(machine.peer, WorkerLost, "forgotten while it was opened")

    def _lend(self, machine: PeerMachine) -> None:
        for who in self._waiting.pop(machine.peer, ()):
            if machine.lend(self._process.clock()):
                who.reached(machine, self._slabs[machine])
            else:
                who.unreached(WorkerLost, "forgotten")

    def _refuse(self, peer: Endpoint, kind: type[TriptychError], reason: str) -> None:
        for who in self._waiting.pop(peer, ()):
            who.unreached(kind, reason)
