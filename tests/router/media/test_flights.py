"""Work that several want at the same moment."""

import asyncio

import pytest

from triptych.errors import Cancelled, InvalidMedia
from triptych.router.media.flights import Flights

pytestmark = pytest.mark.anyio


class Work:
    """Counts how often it is begun; ends when told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.ended_early = 0
        self.may_end = asyncio.Event()
        self.error: Exception | None = None

    async def do(self) -> int:
        self.begun += 1
        number = self.begun
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ended_early += 1
            raise
        if self.error is not None:
            raise self.error
        return number


async def waiting(flights: Flights[str, int], work: Work, count: int, key: str = "a") -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(flights.share(key, work.do)) for _ in range(count)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_work_wanted_at_the_same_moment_is_done_once() -> None:
    flights, work = Flights[str, int](60), Work()
    tasks = await waiting(flights, work, 5)
    assert flights.joins("a")
    work.may_end.set()
    assert await asyncio.gather(*tasks) == [1] * 5
    assert not flights.joins("a")
    assert await flights.share("a", work.do) == 2  # nothing is kept
    assert flights.num_running == 0


async def test_other_keys_are_other_work() -> None:
    flights, work = Flights[str, int](60), Work()
    tasks = await waiting(flights, work, 1) + await waiting(flights, work, 1, "b")
    work.may_end.set()
    assert sorted(await asyncio.gather(*tasks)) == [1, 2]


async def test_one_that_leaves_takes_nothing_from_the_others_and_the_last_ends_the_work() -> None:
    flights, work = Flights[str, int](60), Work()
    first, second, third = await waiting(flights, work, 3)
    first.cancel()
    await asyncio.wait({first})
    assert work.ended_early == 0
    for task in (second, third):
        task.cancel()
    await asyncio.wait({second, third})
    await asyncio.sleep(0)
    assert work.ended_early == 1
    assert flights.num_running == 0


async def test_each_waits_for_as_long_as_they_like() -> None:
    flights, work = Flights[str, int](60), Work()
    (patient,) = await waiting(flights, work, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await flights.share("a", work.do)
    work.may_end.set()
    assert await patient == 1


async def test_everybody_gets_an_error_of_their_own() -> None:
    flights, work = Flights[str, int](60), Work()
    work.error = InvalidMedia("no", code="image_fetch_failed")
    tasks = await waiting(flights, work, 2)
    work.may_end.set()
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, InvalidMedia)
    assert isinstance(second, InvalidMedia)
    first.param = "mine"
    assert second.param is None
    assert (second.message, second.media_code) == ("no", "image_fetch_failed")


async def test_work_that_has_hung_for_long_is_not_joined() -> None:
    flights, work = Flights[str, int](0.0), Work()
    (old,) = await waiting(flights, work, 1)
    (young,) = await waiting(flights, work, 1)
    assert work.begun == 2
    old.cancel()
    await asyncio.wait({old})
    work.may_end.set()
    assert await young == 2


async def test_closing_ends_what_is_under_way() -> None:
    flights, work = Flights[str, int](60), Work()
    (task,) = await waiting(flights, work, 1)
    await flights.close()
    with pytest.raises(Cancelled):
        await task
    assert work.ended_early == 1
    assert flights.num_running == 0
