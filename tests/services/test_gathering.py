"""What is ready at the same time leaves a worker in one message."""

import asyncio

import pytest

from triptych.engine.jobs import Window
from triptych.journey import BlockRef, Endpoint, KVRef, Shard, Token, new_claim_id
from triptych.services.faulty import gathered
from triptych.services.prefill.service import _replies
from triptych.services.prefill.worker import FirstTokens, Granted, PrefillEvent
from triptych.transfer.faults import Faults

pytestmark = pytest.mark.anyio
GRANTED, LAST_GRANTED = Granted(Window((0,), last=False)), Granted(Window((1,)))
FIRST = FirstTokens((Token(5, 0.0, 0, 0),), (), 0)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def kv_ref(begin: int) -> KVRef:
    shards, owner = (Shard(0, 2, 0),), Endpoint("127.0.0.1:1", 1)
    return KVRef(new_claim_id(), owner, (BlockRef(1, 1),), begin, begin + 16, shards, "float32", b"", 30)


def shape(events: list[PrefillEvent]) -> list[tuple[list[int], list[int], bool]]:
    """Of each message: items of its window, where its KV refs begin, whether it has first tokens."""
    return [
        (list(reply.accepted.items), [ref.tokens_begin for ref in reply.kv], reply.HasField("first"))
        for reply in _replies(events, arrived=0.0)
    ]


def queue_of(*entries: int | BaseException) -> "asyncio.Queue[int | BaseException]":
    queue: asyncio.Queue[int | BaseException] = asyncio.Queue()
    for entry in entries:
        queue.put_nowait(entry)
    return queue


def test_a_window_its_kv_and_the_first_tokens_are_one_message() -> None:
    assert shape([LAST_GRANTED, kv_ref(0), kv_ref(16), FIRST]) == [([1], [0, 16], True)]
    assert shape([kv_ref(0), FIRST]) == [([], [0], True)]
    assert shape([]) == []


def test_a_window_behind_something_else_begins_another_message() -> None:
    assert shape([GRANTED, kv_ref(0), LAST_GRANTED, kv_ref(16)]) == [([0], [0], False), ([1], [16], False)]
    assert shape([GRANTED, LAST_GRANTED]) == [([0], [], False), ([1], [], False)]


async def test_all_that_is_there_is_gathered_and_nothing_is_waited_for() -> None:
    queue = queue_of(1, 2, 3)
    assert await gathered(queue, Faults()) == ([1, 2, 3], None)
    assert queue.empty()


async def test_what_came_before_an_error_is_told_with_it_and_what_came_behind_stays() -> None:
    error = ValueError("broken")
    queue = queue_of(1, error, 2)
    assert await gathered(queue, Faults()) == ([1], error)
    assert queue.qsize() == 1


async def test_a_test_with_faults_may_stop_between_any_two() -> None:
    assert await gathered(queue_of(1, 2), Faults("somewhere")) == ([1], None)
