"""How many fetches go on at once."""

import asyncio

import pytest

from triptych.router.media.slots import FetchSlots

pytestmark = pytest.mark.anyio


class Crowd:
    """Fetches that go on until they are let go."""

    def __init__(self, slots: FetchSlots) -> None:
        self._slots = slots
        self._end = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.inside: list[str] = []

    async def add(self, *hosts: str) -> None:
        self._tasks += [asyncio.create_task(self._fetch(host)) for host in hosts]
        for _ in range(5):
            await asyncio.sleep(0)

    async def leave(self) -> None:
        self._end.set()
        await asyncio.gather(*self._tasks)

    async def _fetch(self, host: str) -> None:
        async with self._slots.of(host):
            self.inside.append(host)
            await self._end.wait()


async def test_a_host_fills_its_own_share_and_no_more() -> None:
    slots = FetchSlots(in_all=4, per_host=2)
    crowd = Crowd(slots)
    await crowd.add(*["slow"] * 10, "a", "b", "c")
    assert sorted(crowd.inside) == ["a", "b", "slow", "slow"]
    await crowd.leave()
    assert len(crowd.inside) == 13
    assert slots.num_hosts == 0


async def test_one_that_gives_up_waiting_leaves_nothing_behind() -> None:
    slots = FetchSlots(in_all=4, per_host=1)
    crowd = Crowd(slots)
    await crowd.add("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), slots.of("a"):
            pass
    await crowd.leave()
    assert slots.num_hosts == 0
    async with asyncio.timeout(1), slots.of("a"):
        pass
