"""How many fetches go on at once: in all, and from one host."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FetchSlots:
    """A host that is slow to answer fills its own share, never everybody's."""

    def __init__(self, in_all: int, per_host: int) -> None:
        self._in_all = asyncio.Semaphore(in_all)
        self._per_host = per_host
        self._by_host: dict[str, asyncio.Semaphore] = {}
        self._users_by_host: dict[str, int] = {}  # those that hold a slot or wait for one

    @property
    def num_hosts(self) -> int:
        """Hosts that are remembered: those being fetched from."""
        return len(self._by_host)

    @asynccontextmanager
    async def of(self, host: str) -> AsyncIterator[None]:
        # The host's first: who waits for it must not hold one that others could use.
        async with self._host_slot(host), self._in_all:
            yield

    @asynccontextmanager
    async def _host_slot(self, host: str) -> AsyncIterator[None]:
        slots = self._by_host.setdefault(host, asyncio.Semaphore(self._per_host))
        self._users_by_host[host] = self._users_by_host.get(host, 0) + 1
        try:
            async with slots:
                yield
        finally:
            self._users_by_host[host] -= 1
            if not self._users_by_host[host]:
                del self._users_by_host[host], self._by_host[host]
