"""Short messages between two processes of one machine: JSON objects, one a line, over a socket."""

import json
import select
import socket
from typing import Any

_READ_BYTES = 1 << 16
_SEND_SECONDS = 2.0


class JsonLines:
    """One end. At most one thread receives, at most one sends: always by `send`, or always by `post`."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._unread = b""
        self._unsent = b""

    def send(self, message: dict[str, Any]) -> None:
        """Raises OSError for an end that is gone, or does not read for seconds, which is the end of all messages."""
        self._end.settimeout(_SEND_SECONDS)
        try:
            self._end.sendall(_line(message))
        except TimeoutError:
            self.hang_up()  # a part of it may be out, and whatever came next would be read as the rest
            raise

    def post(self, message: dict[str, Any]) -> None:
        """Without waiting: what the other end does not read yet goes with a later one, or with `flush`.

        Raises OSError for an end that is gone.
        """
        self._unsent += _line(message)
        self.flush()

    def flush(self) -> bool:
        """Whether all that was posted is out. Raises OSError for an end that is gone."""
        try:
            while self._unsent:
                sent = self._end.send(self._unsent, socket.MSG_DONTWAIT)
                self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass
        return not self._unsent

    def receive(self) -> dict[str, Any] | None:
        """The next message; None once the other end is gone."""
        while b"\n" not in self._unread:
            self._wait()
            if not self._read():
                return None
        return self._next()

    def waiting(self) -> list[dict[str, Any]]:
        """The messages that are there already; at the end of them an empty list, for ever."""
        while self._wait(0) and self._read():
            pass
        messages = []
        while b"\n" in self._unread:
            messages.append(self._next())
        return messages

    def hang_up(self) -> None:
        """From any thread: both ends see the end of all messages."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other end was first

    def close(self) -> None:
        self._end.close()

    def _wait(self, milliseconds: int | None = None) -> bool:
        """Whether there is something to read, or nobody left to write it. By poll: select takes 1,024 descriptors."""
        poll = select.poll()
        poll.register(self._end, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def _read(self) -> bool:
        """Whether anything came."""
        try:
            piece = self._end.recv(_READ_BYTES)
        except OSError:
            return False
        self._unread += piece
        return bool(piece)

    def _next(self) -> dict[str, Any]:
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
