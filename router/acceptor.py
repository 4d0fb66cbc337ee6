"""Taking connections off a socket that several routers listen on, so that each has its share of them.

Whoever wakes first would else take all that wait: a burst of clients with long streams ended up at one router whole.
"""

import asyncio
import mmap
import socket
from collections.abc import Callable
from typing import Any, Protocol

_COUNT_BYTES = 8
ABSENT = -1
_LOOK_AGAIN_SECONDS = 0.001
_PATIENCE_SECONDS = 0.005  # a router with fewer connections that does not take one within this is busy, or stuck


class ConnectionBook(Protocol):
    """Where uvicorn notes its connections."""

    connections: set[Any]


class Loads:
    """How many connections each router has, in memory that all of them and their supervisor share."""

    def __init__(self, descriptor: int, count: int) -> None:
        self._memory = mmap.mmap(descriptor, count * _COUNT_BYTES)
        self._counts = memoryview(self._memory).cast("q")

    def tell(self, index: int, connections: int) -> None:
        """ABSENT for a router that is not there."""
        self._counts[index] = connections

    def has_fewest(self, index: int) -> bool:
        """Whether no other router that is there has fewer."""
        mine = self._counts[index]
        return all(count >= mine for count in self._counts if count != ABSENT)

    @staticmethod
    def num_bytes(count: int) -> int:
        return count * _COUNT_BYTES


class Acceptor:
    """Belongs to the event loop that it is started on."""

    def __init__(self, loads: Loads, index: int) -> None:
        self._loads = loads
        self._index = index
        self._opening = 0
        self._connections: _Counted = _Counted(self._tell)

    def start(
        self,
        listener: socket.socket,
        state: ConnectionBook,
        make_protocol: Callable[[], asyncio.Protocol],
        backlog: int,
    ) -> None:
        """Until the listener is closed with `stop`."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._held_since = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        state.connections = self._connections
        listener.setblocking(False)
        listener.listen(backlog)
        self._tell()
        self._loop.add_reader(listener.fileno(), self._look)

    def stop(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._loads.tell(self._index, ABSENT)

    def _look(self) -> None:
        """One connection, and back to the loop, so that the others can take the next."""
        now = self._loop.time()
        if not self._loads.has_fewest(self._index):
            self._held_since = self._held_since or now
            if now - self._held_since < _PATIENCE_SECONDS:
                self._loop.remove_reader(self._listener.fileno())
                self._loop.call_later(_LOOK_AGAIN_SECONDS, self._go_on)
                return
        self._held_since = 0.0
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # another router was faster, or the client has left; or there are too many files, for now
        self._opening += 1
        self._tell()
        task = self._loop.create_task(self._open(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _go_on(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._look)

    async def _open(self, client: socket.socket) -> None:
        client.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, client)
        except OSError:
            client.close()
        finally:
            self._opening -= 1
            self._tell()

    def _tell(self) -> None:
        self._loads.tell(self._index, len(self._connections) + self._opening)


class _Counted(set[Any]):
    """Tells when a connection has come or gone."""

    def __init__(self, changed: Callable[[], None]) -> None:
        super().__init__()
        self._changed = changed

    def add(self, connection: Any) -> None:
        super().add(connection)
        self._changed()

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        self._changed()
