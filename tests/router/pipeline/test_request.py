"""A request takes tokens in order, knows when it is finished, and runs out of time."""

import asyncio
import time

import pytest

from tests.router.requests import text_request, token, tokens_of
from triptych.errors import DeadlineExceeded, InternalError, InvalidRecord, WorkerLost
from triptych.stages import Stage

pytestmark = pytest.mark.anyio


async def test_tokens_are_read_in_order_until_the_end() -> None:
    request = text_request()
    request.deliver([token(5, 0)])
    request.deliver([token(6, 1), token(7, 2, finish="stop")])
    assert [each.id for each in await request.receive()] == [5, 6, 7]
    request.stage = Stage.DECODING
    request.end(Stage.FINISHED)
    assert await request.receive() == []


async def test_a_reader_waits_for_tokens() -> None:
    request = text_request()
    reading = asyncio.create_task(request.receive())
    await asyncio.sleep(0.01)
    assert not reading.done()
    request.deliver([token(5, 0)])
    assert [each.id for each in await reading] == [5]


async def test_what_ended_a_request_early_is_raised_behind_its_last_tokens() -> None:
    request = text_request()
    request.deliver([token(5, 0)])
    request.end(Stage.FAILED, WorkerLost("gone"))
    assert [each.id for each in await request.receive()] == [5]
    with pytest.raises(WorkerLost):
        await request.receive()


@pytest.mark.parametrize("bad", [token(5, 1), token(5, 0, choice=2), token(5, 0, choice=-1)])
async def test_a_token_out_of_place_is_refused(bad: object) -> None:
    request = text_request(branches=2)
    with pytest.raises(InternalError):
        request.deliver([bad])  # type: ignore[list-item]


async def test_a_token_that_comes_twice_is_refused() -> None:
    request = text_request()
    request.deliver([token(5, 0)])
    with pytest.raises(InternalError):
        request.deliver([token(5, 0)])


async def test_a_request_is_finished_when_all_its_choices_are() -> None:
    request = text_request(branches=2)
    request.deliver(tokens_of([1, 2], choice=0))
    assert not request.all_finished.is_set()
    request.stop_choice(1)
    assert request.all_finished.is_set()
    assert request.stopped_early


async def test_stopping_a_choice_that_has_finished_is_no_early_stop() -> None:
    request = text_request()
    request.deliver(tokens_of([1, 2]))
    request.stop_choice(0)
    assert not request.stopped_early


async def test_a_move_that_the_journey_does_not_know_is_refused() -> None:
    request = text_request()
    with pytest.raises(InvalidRecord, match="laid_out to decoding"):
        request.move(Stage.DECODING)


async def test_time_without_progress_runs_out() -> None:
    request = text_request()
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="laid out"):
        async with request.time_limits(whole_seconds=10, stage_seconds=0.1):
            await asyncio.sleep(10)
    assert time.monotonic() - began < 1


async def test_progress_buys_time_up_to_the_whole() -> None:
    request = text_request()
    began = time.monotonic()

    async def progress() -> None:
        async with request.time_limits(whole_seconds=0.5, stage_seconds=0.1):
            while True:
                await asyncio.sleep(0.02)
                request.touch()

    with pytest.raises(DeadlineExceeded):
        await progress()
    assert 0.4 < time.monotonic() - began < 1.5


async def test_a_body_that_ends_in_time_is_left_alone() -> None:
    request = text_request()
    async with request.time_limits(whole_seconds=0.1, stage_seconds=0.1):
        pass
    await asyncio.sleep(0.15)
    with pytest.raises(ValueError, match="own"):
        async with request.time_limits(whole_seconds=5, stage_seconds=5):
            raise ValueError("the body's own")


async def test_one_that_is_given_up_while_its_time_runs_out_ends_as_late() -> None:
    request = text_request()

    async def late() -> None:
        async with request.time_limits(10, 0.01):
            try:
                await asyncio.sleep(60)
            finally:
                request.give_up(WorkerLost("gone"))

    with pytest.raises(DeadlineExceeded):
        await late()
