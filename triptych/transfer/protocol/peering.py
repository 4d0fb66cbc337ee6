"""One neighbour process as its consumer knows it: what it exports, by which path, and who still reads from it.

    STRANGER ─wanted─▶ ASKING ─met─▶ MET ─forget─▶ LEAVING ─last loan returned─▶ GONE
        ▲────────────refused──┘

    event                               gives               meaning

    wanted(now)                         AskArenas           somebody has a claim of the neighbour's
    met(now, arenas)                                        its answer: ids of the arenas that it exports
    refused(now, kind, reason)                              or why there is none; the next to want it asks again
    lend(now)                           whether he may      somebody is about to read
    returned(now)                       CloseArenas         he reads no more, also not on a device
    arena_wanted(now, arena)            OpenArena, NoArena  a claim names the arena
    opened(now, arena, transport, why)                      its probe read back; why: (transport, reason) of others
    unreachable(now, arena, why)                            no transport's did; the next to want it tries again
    forget(now)                         CloseArenas         it was lost, or replaced by another process, or needless

CloseArenas comes once, when the neighbour is forgotten and the last loan has been returned, never before: a mapping
is not closed under a reader. It names the arenas that are open; one that is opened after that is to be closed at
once (`opened` then gives CloseArenas for it alone).

`Neighbourhood` holds one machine a process. A process that answers at an address has replaced whoever answered there
before: `met` names the ones to forget. A claim of a process that was forgotten finds a stranger, and asks again.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from triptych.errors import InvariantViolation, TriptychError
from triptych.journey import Endpoint

Refusals = tuple[tuple[str, str], ...]  # transport, reason


@dataclass(frozen=True, slots=True)
class AskArenas:
    """Ask what it exports: answer `met` or `refused`."""

    peer: Endpoint


@dataclass(frozen=True, slots=True)
class OpenArena:
    """Try the transports in their order, each with a probe: answer `opened` or `unreachable`."""

    peer: Endpoint
    arena: int


@dataclass(frozen=True, slots=True)
class NoArena:
    """The neighbour has no such arena; it has these."""

    peer: Endpoint
    arena: int
    known: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseArenas:
    """Close the mappings of these."""

    peer: Endpoint
    arenas: tuple[int, ...]


PeerAction = AskArenas | OpenArena | NoArena | CloseArenas
PeerActions = tuple[PeerAction, ...]


class PeerState(enum.StrEnum):
    STRANGER = "stranger"
    ASKING = "asking"
    MET = "met"
    LEAVING = "leaving"
    GONE = "gone"


_FORGOTTEN = (PeerState.LEAVING, PeerState.GONE)


class PeerMachine:
    """One neighbour process. Not thread-safe."""

    def __init__(self, peer: Endpoint) -> None:
        self.peer = peer
        self.state = PeerState.STRANGER
        self.loans = 0
        self.arenas: tuple[int, ...] = ()
        self.refusal: tuple[type[TriptychError], str] | None = None  # the last answer, while it was one
        self.refusals: dict[int, Refusals] = {}  # by arena: the paths that were tried in vain
        self._opening: set[int] = set()
        self._transports: dict[int, str] = {}

    @property
    def is_usable(self) -> bool:
        return self.state is PeerState.MET

    @property
    def transports(self) -> tuple[str, ...]:
        """Of the arenas that are open, each once."""
        return tuple(sorted(set(self._transports.values())))

    def transport_of(self, arena: int) -> str:
        """Empty while it is not open."""
        return self._transports.get(arena, "")

    # ------------------------------------------------------------------------------------------------- events

    def wanted(self, now: float) -> PeerActions:
        if self.state is not PeerState.STRANGER:
            return ()
        self.state = PeerState.ASKING
        return (AskArenas(self.peer),)

    def met(self, now: float, arenas: Iterable[int]) -> PeerActions:
        if self.state is PeerState.ASKING:
            self.state, self.arenas, self.refusal = PeerState.MET, tuple(arenas), None
        return ()

    def refused(self, now: float, kind: type[TriptychError], reason: str) -> PeerActions:
        if self.state is PeerState.ASKING:
            self.state, self.refusal = PeerState.STRANGER, (kind, reason)
        return ()

    def lend(self, now: float) -> bool:
        """Whether it may be read from, until `returned`."""
        if self.state is not PeerState.MET:
            return False
        self.loans += 1
        return True

    def returned(self, now: float) -> PeerActions:
        if not self.loans:
            return ()
        self.loans -= 1
        return self._close_if_last()

    def arena_wanted(self, now: float, arena: int) -> PeerActions:
        if self.state in (PeerState.STRANGER, PeerState.ASKING, PeerState.GONE):
            return ()
        if arena not in self.arenas:
            return (NoArena(self.peer, arena, self.arenas),)
        if arena in self._opening or arena in self._transports:
            return ()
        self._opening.add(arena)
        return (OpenArena(self.peer, arena),)

    def opened(self, now: float, arena: int, transport: str, why: Refusals = ()) -> PeerActions:
        if arena not in self._opening:
            return ()
        self._opening.discard(arena)
        self.refusals[arena] = why
        if self.state is PeerState.GONE:
            return (CloseArenas(self.peer, (arena,)),)
        self._transports[arena] = transport
        return ()

    def unreachable(self, now: float, arena: int, why: Refusals) -> PeerActions:
        if arena in self._opening:
            self._opening.discard(arena)
            self.refusals[arena] = why
        return ()

    def forget(self, now: float) -> PeerActions:
        if self.state in _FORGOTTEN:
            return ()
        self.state = PeerState.LEAVING
        return self._close_if_last()

    def check(self) -> None:
        """Raises InvariantViolation with the first rule that does not hold."""
        if self.loans < 0 or (self.state is PeerState.GONE and self.loans):
            raise InvariantViolation(f"{self.loans} loans of a neighbour that is {self.state}")
        if self.state is PeerState.GONE and self._transports:
            raise InvariantViolation(f"{len(self._transports)} arenas of a neighbour are open, which is gone")
        if not set(self._transports) <= set(self.arenas):
            raise InvariantViolation("an arena is open that the neighbour does not have")

    # ------------------------------------------------------------------------------------------------- inside

    def _close_if_last(self) -> PeerActions:
        if self.state is not PeerState.LEAVING or self.loans:
            return ()
        self.state = PeerState.GONE
        arenas = tuple(self._transports)
        self._transports.clear()
        return (CloseArenas(self.peer, arenas),)


class Neighbourhood:
    """The machines of all neighbours of one process, by endpoint. Not thread-safe."""

    def __init__(self) -> None:
        self._peers: dict[Endpoint, PeerMachine] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def find(self, peer: Endpoint) -> PeerMachine:
        """The process's machine; a stranger's where it is not known, or was forgotten."""
        machine = self._peers.get(peer)
        if machine is None or machine.state in _FORGOTTEN:
            machine = self._peers[peer] = PeerMachine(peer)
        return machine

    def known(self, peer: Endpoint) -> PeerMachine | None:
        """None for strangers, and for those that were forgotten."""
        machine = self._peers.get(peer)
        return machine if machine is not None and machine.is_usable else None

    def replaced_by(self, peer: Endpoint) -> tuple[PeerMachine, ...]:
        """Those that answered at its address before; to be forgotten once `peer` has answered."""
        return tuple(
            other
            for endpoint, other in self._peers.items()
            if endpoint.address == peer.address and endpoint.incarnation != peer.incarnation and other.is_usable
        )

    def drop(self, peer: Endpoint) -> PeerMachine | None:
        """Takes the process's machine out, to be forgotten: the next to ask for it finds a stranger."""
        return self._peers.pop(peer, None)

    def usable(self) -> tuple[Endpoint, ...]:
        return tuple(endpoint for endpoint, machine in self._peers.items() if machine.is_usable)
