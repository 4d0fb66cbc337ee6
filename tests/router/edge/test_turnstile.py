"""Requests are taken up one after the other, and nobody who waits for others keeps the next ones waiting."""

import asyncio

import pytest

from triptych.router.edge.turnstile import Turn, Turnstile

LIMIT = 5.0


async def served(turnstile: Turnstile, name: str, order: list[str]) -> Turn:
    turn = await turnstile.enter()
    order.append(name)
    return turn


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_first_come_first_served_and_a_place_for_each_that_leaves() -> None:
    async def run() -> None:
        turnstile, order = Turnstile(places=2, most_seconds=60), list[str]()
        tasks = [asyncio.create_task(served(turnstile, name, order)) for name in "abcd"]
        await settle()
        assert order == ["a", "b"]
        first = await tasks[0]
        first.end()
        first.end()  # a place is given back once
        await settle()
        assert order == ["a", "b", "c"]
        (await tasks[1]).end()
        for turn in (await tasks[2], await tasks[3]):
            turn.end()
        again = await asyncio.gather(turnstile.enter(), turnstile.enter())
        for turn in again:
            turn.end()

    asyncio.run(asyncio.wait_for(run(), LIMIT))


def test_a_turn_ends_by_itself() -> None:
    async def run() -> None:
        turnstile = Turnstile(places=1, most_seconds=0.01)
        await turnstile.enter()
        await turnstile.enter()
        await turnstile.enter()

    asyncio.run(asyncio.wait_for(run(), LIMIT))


@pytest.mark.parametrize("called_too", [False, True], ids=["waiting", "called"])
def test_who_leaves_the_queue_keeps_no_place(called_too: bool) -> None:
    async def run() -> None:
        turnstile, order = Turnstile(places=1, most_seconds=60), list[str]()
        turn = await turnstile.enter()
        gone = asyncio.create_task(served(turnstile, "gone", order))
        stays = asyncio.create_task(served(turnstile, "stays", order))
        await settle()
        if called_too:
            turn.end()  # it is called, and cancelled before it hears of it
        gone.cancel()
        await asyncio.wait({gone})
        turn.end()
        await stays
        assert order == ["stays"]

    asyncio.run(asyncio.wait_for(run(), LIMIT))
