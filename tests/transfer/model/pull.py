"""One pull in the simulated world: the real machine, and what its actions do to memory, network and device."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.transfer.model.keeping import Keeper
from tests.transfer.model.memory import UNIT_BYTES, Slab
from tests.transfer.model.neighbours import WIRE, Neighbours
from tests.transfer.model.oracle import Copy
from tests.transfer.model.owner import World
from tests.transfer.model.process import Process
from tests.transfer.model.values import Ref, checksum_of
from triptych.errors import DeadlineExceeded, TransferFailed, TriptychError
from triptych.journey import ClaimId, Endpoint
from triptych.transfer.protocol import pulling
from triptych.transfer.protocol.peering import PeerMachine
from triptych.transfer.protocol.pulling import ClaimedUnits, PullActions

RELEASE_TRIES = 3


class Pull:
    """Until it is over, its destination is its own: `on_landed` or `on_failed` come once, `on_over` last and once."""

    def __init__(
        self,
        consumer: "Consumer",
        job: object,
        ref: Ref,
        targets: Sequence[int],
        wanted: bytes,
        stamp_of: Callable[[int], object],
        on_landed: Callable[[], None],
        on_failed: Callable[[type[TriptychError], str], None],
    ) -> None:
        """job: whose pull it is; wanted: what the bytes should be, for the oracle

        on_failed: called when nothing writes into the targets any more
        """
        self.job = job
        self.ref = ref
        self._consumer = consumer
        self._world = consumer.world
        self._process = consumer.process
        self._targets = tuple(targets)
        self._wanted = wanted
        self._stamp_of = stamp_of
        self._on_landed = on_landed
        self._on_failed = on_failed
        self._failure: pulling.Fail | None = None
        self._held = False
        self._told = False
        self._peer: PeerMachine | None = None
        self._source: Slab | None = None
        deadline = self._process.clock() + self._world.pull_seconds
        self.machine = self._world.planted.pull_machine(ref.claim, ref.owner, deadline, ref.checksum)
        consumer.pulls[ref.claim] = self
        consumer.keeper.keep(ref)
        self._timer = self._process.later(self._world.pull_seconds, "pull-deadline", self._event, "tick")
        self._event("begin")

    def cancel(self) -> None:
        self._event("cancelled")

    def owner_lost(self) -> None:
        self._event("peer_lost", "it is gone")

    # As somebody who waits for a neighbour

    def reached(self, peer: PeerMachine, source: Slab) -> None:
        self._peer, self._source = peer, source
        claimed = ClaimedUnits("slab", self.ref.units, self.ref.generations)
        before = self.machine.state
        self._event("connected", peer.transport_of(0), claimed)
        if self.machine.state is before or self.machine.is_over:
            self._return_loan()

    def unreached(self, kind: type[TriptychError], reason: str) -> None:
        self._event("refused", kind, reason)

    # Events and actions

    def _event(self, name: str, *args: Any) -> None:
        actions: PullActions = getattr(self.machine, name)(self._process.clock(), *args)
        for action in actions:
            getattr(self, "_do_" + type(action).__name__)(action)
        self.machine.check()
        if actions:
            self._settle()

    def _settle(self) -> None:
        """Tell what the actions have decided, once each."""
        over = self.machine.is_over and self._consumer.pulls.pop(self.ref.claim, None) is self
        if over:
            self._return_loan()
            self._timer.cancel()
        failure, told = self._failure, self._told
        if failure is not None and not self._held and not told:
            self._told = True
            self._on_failed(failure.kind, failure.reason)
        elif over and failure is None:
            self._on_landed()

    def _return_loan(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            self._consumer.neighbours.give_back(peer)

    def _do_Connect(self, action: pulling.Connect) -> None:
        self._consumer.neighbours.reach(action.owner, self)

    def _do_AwaitReady(self, action: pulling.AwaitReady) -> None:
        self.ref.event.when_done(lambda: self._process.later(0.001, "ready", self._event, "ready"))

    def _do_StartCopy(self, action: pulling.StartCopy) -> None:
        stamps = tuple(self._stamp_of(target) for target in self._targets)
        copy = Copy(self._process, self.ref.owner, self.ref.claim, self._targets, stamps, self._stamp_of)
        self._world.oracle.copying(copy)
        CopyRun(self, copy, action.path).launch()

    def _do_Verify(self, action: pulling.Verify) -> None:
        self._process.later(0.001, "verify", self._sum)

    def _sum(self) -> None:
        self._event("summed", checksum_of(self._consumer.landing.units(self._targets)))

    def _do_Release(self, action: pulling.Release) -> None:
        self._consumer.give_back(action.owner, action.claim)

    def _do_Deliver(self, action: pulling.Deliver) -> None:
        found = self._consumer.landing.units(self._targets)
        self._world.oracle.delivered(self._process, action.claim, found, self._wanted)

    def _do_Fail(self, action: pulling.Fail) -> None:
        self._failure = action
        self._world.oracle.counts["failed: " + action.kind.__name__] += 1
        if self._held:
            self._consumer.pull_failing(self, action.kind, action.reason)

    def _do_HoldDestination(self, action: pulling.HoldDestination) -> None:
        self._held = True
        self._world.oracle.counts["quarantined"] += 1

    def _do_FreeDestination(self, action: pulling.FreeDestination) -> None:
        self._held = False


class CopyRun:
    """A copy on a stream of its own: unit by unit, then the words; each at its own moment."""

    def __init__(self, pull: Pull, copy: Copy, path: str) -> None:
        assert pull._source is not None
        self._pull = pull
        self._copy = copy
        self._world = pull._world
        self._process = pull._process
        self._source = pull._source
        self._into = pull._consumer.landing
        self._on_wire = path == WIRE
        self._words: tuple[int, ...] = ()
        self._failed = False
        faults = self._process.faults
        places = range(len(copy.targets))
        self._corrupt = self._world.checksums and faults.strikes("corrupt", "copy")
        self._lost_at = self._world.random.choice(places) if faults.strikes("lose", "copy") else -1
        self._lost_track = faults.strikes("lose", "copy-status")  # an error, and it goes on

    def launch(self) -> None:
        if self._lost_track:
            self._process.later(0.001, "copy-failed", self._lose_track)
        units = [self._unit(place) for place in range(len(self._copy.targets))]
        self._process.device.copy(self._world.planted.order_of_reads(units, self._read_words), self._ended)

    def _unit(self, place: int) -> Callable[[], bool]:
        source, target = self._pull.ref.units[place], self._copy.targets[place]

        def move() -> bool:
            gone = self._on_wire and self._world.network.at(self._copy.owner) is None
            if gone or place == self._lost_at:
                self._failed = True
                return False
            self._world.oracle.writes(self._copy)
            data = bytearray(self._source.unit(source))
            if self._corrupt and place == 0:
                data[self._world.random.randrange(UNIT_BYTES)] ^= 1 << self._world.random.randrange(8)
            self._into.data[target * UNIT_BYTES : (target + 1) * UNIT_BYTES] = data
            return True

        return move

    def _read_words(self) -> bool:
        self._words = tuple(self._source.words[unit] for unit in self._pull.ref.units)
        return True

    def _ended(self) -> None:
        self._world.oracle.copied(self._copy)
        self._process.later(0.0005, "copied", self._tell)

    def _lose_track(self) -> None:
        self._pull._event("copy_failed", "nobody can say how the read does", TransferFailed, False)

    def _tell(self) -> None:
        if self._failed:
            self._pull._event("copy_failed", "the read failed")
        elif self._world.random.random() < 0.5:
            self._pull._event("copied", self._words)
        else:
            found = checksum_of(self._into.units(self._copy.targets))
            self._pull._event("copied", self._words, found)


class Consumer:
    """Pulls from others into `landing`, renews what it pulls, gives back what it has."""

    world: World
    process: Process
    landing: Slab

    def start_consuming(self) -> None:
        self.neighbours = Neighbours(self.world, self.process)
        self.keeper = Keeper(self.world, self.process)
        self.pulls: dict[ClaimId, Pull] = {}

    def pull_failing(self, pull: Pull, kind: type[TriptychError], reason: str) -> None:
        """The pull has failed, and its destination is held: `on_failed` follows once it is not."""

    def owner_lost(self, owner: Endpoint) -> None:
        for pull in [pull for pull in self.pulls.values() if pull.ref.owner == owner]:
            pull.owner_lost()
        self.keeper.lost(owner)
        self.neighbours.forget(owner)

    def give_back(self, owner: Endpoint, claim: ClaimId, stray: bool = False) -> None:
        """stray: nothing was ever known of it here, or is not any more"""
        self.keeper.drop(owner, [claim])
        self.world.oracle.releases(self.process, claim, stray)
        self._send_release(owner, claim, RELEASE_TRIES)

    def _send_release(self, owner: Endpoint, claim: ClaimId, tries: int) -> None:
        def answered(outcome: Any) -> None:
            if isinstance(outcome, DeadlineExceeded) and tries > 1:
                self._send_release(owner, claim, tries - 1)

        network = self.world.network
        network.call(self.process, owner, "release", "release", [claim], answer=answered, seconds=1.0)
