"""Running several pieces of work side by side without losing one or its error."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any


async def all_or_first_error(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Returns when all are done; the first that raises ends the others, and its error is raised alone."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that was raised first; those behind it mostly follow from it."""
    first = errors.exceptions[0]
    return first_of(first) if isinstance(first, BaseExceptionGroup) else first


class Background:
    """Tasks nobody waits for, kept until they are done, and awaited or cancelled at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, within_seconds: float) -> None:
        """Waits for all, then cancels those that are left."""
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=within_seconds)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
