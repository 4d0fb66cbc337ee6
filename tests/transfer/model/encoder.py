"""An encoder: the real store and leases, a tower that writes rows when its device comes to it."""

from collections import deque
from functools import partial

from tests.transfer.model.memory import UNIT_BYTES
from tests.transfer.model.network import Answer
from tests.transfer.model.owner import Owner, World
from tests.transfer.model.process import Process
from tests.transfer.model.values import LEASE_SECONDS, Event, Picture, Ref, checksum_of, content, contents
from triptych.engine.store_entry import Acquired, Entry, ItemKey, State
from triptych.errors import Cancelled
from triptych.journey import Endpoint, Grid, RequestId

ENCODER_UNITS = 7


class Encoder(Owner):
    """Encodes each picture once for all who want it at the same time; keeps what nobody claims while room lasts."""

    def __init__(self, world: World, process: Process) -> None:
        super().__init__(world, process, ENCODER_UNITS)
        self.store = world.planted.store(ENCODER_UNITS, UNIT_BYTES)
        self._events: dict[Entry, Event] = {}
        self._waiting: dict[Entry, list[tuple[RequestId, Endpoint, Answer]]] = {}
        self._to_place: deque[tuple[Entry, Picture]] = deque()

    # Calls

    def encode(self, key: RequestId, router: Endpoint, picture: Picture, reply: Answer) -> None:
        """A ref to its rows, or Cancelled."""
        self.require_unbroken(key, router)
        item = ItemKey(picture.name, picture.units, Grid(1, 1, 1), 1, 1)
        entry, acquired = self.store.acquire(item, picture.units * UNIT_BYTES)
        if acquired is Acquired.HIT:
            reply(self._ref(key, entry))
            return
        self._waiting.setdefault(entry, []).append((key, router, reply))
        if acquired is Acquired.NEW:
            self._to_place.append((entry, picture))
            self._place()

    def cancel(self, key: RequestId) -> None:
        """Idempotent: nothing of this request is wanted any more."""
        self.broken(key)
        self._drop(key)
        self.release_request(key)
        self._place()

    def lost(self, endpoint: Endpoint) -> None:
        """A router's calls end with it; what it has claimed ends with its leases."""
        self.broken(endpoint)
        self._drop(endpoint)
        self._place()

    # State

    def is_idle(self) -> bool:
        return self.store.idle() and not self._waiting and not self._to_place and not len(self.leases)

    def check(self) -> None:
        self.store.check()
        self.check_leases()

    # Inside

    def _drop(self, who: RequestId | Endpoint) -> None:
        """Those who wait no longer, of a request or a router."""
        for entry, waiters in list(self._waiting.items()):
            for waiter in [waiter for waiter in waiters if who in waiter[:2]]:
                waiters.remove(waiter)
                self.store.release(entry)
                waiter[2](Cancelled("cancelled"))
            if entry.state is State.GONE:
                del self._waiting[entry]

    def _place(self) -> None:
        while self._to_place:
            entry, picture = self._to_place[0]
            if entry.state is State.GONE:
                self._to_place.popleft()
                continue
            if not self.store.place(entry):
                self.store.make_way(entry.units)
                if not self.store.place(entry):
                    return
            self._to_place.popleft()
            data = [content(picture.name, place) for place in range(picture.units)]
            event = self._events[entry] = self.write_units(entry.span, [entry.generation] * entry.units, data)
            if self.announces_early:
                self.process.later(0, "publish", self._publish, entry, picture)
            else:
                event.when_done(partial(self.process.later, 0, "publish", self._publish, entry, picture))

    def _publish(self, entry: Entry, picture: Picture) -> None:
        sum_ = checksum_of(contents(picture.name, range(picture.units))) if self.world.checksums else b""
        self.store.publish(entry, 0, sum_)
        for key, _, reply in self._waiting.pop(entry, ()):
            reply(self._ref(key, entry))
        self._place()

    def _ref(self, key: RequestId, entry: Entry) -> Ref:
        """The waiter's claim on the entry passes to the lease."""
        event, units = self._events[entry], tuple(entry.span)
        claim = self.grant(key, units, event, LEASE_SECONDS, lambda: self._free(entry))
        generations = (entry.generation,) * len(units)
        return Ref(claim, self.process.endpoint, units, generations, event, entry.checksum)

    def _free(self, entry: Entry) -> None:
        self.store.release(entry)
        self._place()
