"""Messages between two processes, also in one that has a thousand descriptors open."""

import os
import resource
import socket

import pytest

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
