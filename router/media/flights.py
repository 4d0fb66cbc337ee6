"""The same work wanted by several at the same moment is done once."""

import asyncio
import copy
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from triptych.errors import Cancelled, TriptychError

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


class _Flight(Generic[Result]):
    def __init__(self, task: "asyncio.Task[Result]", joinable_until: float) -> None:
        self.task = task
        self.joinable_until = joinable_until
        self.num_waiting = 0


class Flights(Generic[Key, Result]):
    """Whoever asks while the work is under way waits for it, each for as long as they like; the last to leave ends it.

    Nobody joins work that began more than `joinable_seconds` ago: they would fail for having come late to something
    that hangs, and keep it alive for each other for ever.
    """

    def __init__(self, joinable_seconds: float) -> None:
        self._joinable_seconds = joinable_seconds
        self._by_key: dict[Key, _Flight[Result]] = {}
        self._tasks: set[asyncio.Task[Result]] = set()

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    def joins(self, key: Key) -> bool:
        """Whether `share` would find the work begun."""
        flight = self._by_key.get(key)
        return flight is not None and not flight.task.done() and _now() < flight.joinable_until

    async def share(self, key: Key, begin: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Raises what the work raises; everybody gets an error of their own, since it is told whom it befell."""
        flight = self._by_key[key] if self.joins(key) else self._begin(key, begin())
        flight.num_waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except TriptychError as error:
            raise copy.copy(error) from None
        except asyncio.CancelledError:
            if flight.task.cancelled() and not _is_leaving():
                raise Cancelled("the work was given up") from None  # by `close`: whoever waited did not leave
            raise
        finally:
            flight.num_waiting -= 1
            if not flight.num_waiting:
                flight.task.cancel()
                self._forget(key, flight)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, key: Key, work: Coroutine[Any, Any, Result]) -> _Flight[Result]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        flight = _Flight(task, _now() + self._joinable_seconds)
        self._by_key[key] = flight
        return flight

    def _forget(self, key: Key, flight: _Flight[Result]) -> None:
        """Unless a younger one has taken its place."""
        if self._by_key.get(key) is flight:
            del self._by_key[key]


def _is_leaving() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _now() -> float:
    return asyncio.get_running_loop().time()
