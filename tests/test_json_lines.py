"""Messages between two processes, also to one that does not read, and in one that has a thousand descriptors open."""

import os
import resource
import socket

import pytest

from triptych import json_lines
from triptych.json_lines import JsonLines

MORE_THAN_SELECT_TAKES = 1100


def test_messages_come_where_descriptors_are_many() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * MORE_THAN_SELECT_TAKES:
        pytest.skip("this process may not have as many")
    here = os.open("/dev/null", os.O_RDONLY)
    many = [os.dup(here) for _ in range(MORE_THAN_SELECT_TAKES)]
    one, other = map(JsonLines, socket.socketpair())
    try:
        assert one.waiting() == []
        other.send({"number": 1})
        assert one.receive() == {"number": 1}
        other.send({"number": 2})
        other.hang_up()
        assert one.waiting() == [{"number": 2}]
        assert one.receive() is None
    finally:
        for end in (one, other):
            end.close()
        for each in (here, *many):
            os.close(each)


def test_what_is_posted_waits_for_nobody_and_comes_whole_and_in_order() -> None:
    one, other = map(JsonLines, socket.socketpair())
    messages = [{"number": number, "more": "x" * 5000} for number in range(200)]
    for message in messages:
        one.post(message)
    assert not one.flush(), "it has no room for all of them"
    came = []
    while len(came) < len(messages):
        came += other.waiting()
        one.flush()
    assert came == messages
    assert one.flush()
    other.close()
    with pytest.raises(OSError, match="Broken pipe"):
        one.post({})
    one.close()


def test_an_end_that_reads_nothing_for_long_is_hung_up_so_that_no_half_message_is_taken_for_a_whole_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_lines, "_SEND_SECONDS", 0.1)
    one, other = map(JsonLines, socket.socketpair())
    message = {"more": "x" * 1_000_000}
    with pytest.raises(TimeoutError):
        one.send(message)
    with pytest.raises(BrokenPipeError):
        one.send(message)
    assert other.receive() is None, "the end of all messages"
    for end in (one, other):
        end.close()
