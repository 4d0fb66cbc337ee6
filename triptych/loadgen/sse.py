"""Server-sent events out of time-stamped pieces of a response body."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event, and when the piece that completed it arrived."""

    at: float
    name: str  # the `event:` field; empty for a plain message
    data: str


class BrokenStream(Exception):
    """The bytes are no event stream; the message says why."""


def read_events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[Event]:
    """Events in order, as the standard has it: any line end, comments skipped, an unfinished last one dropped.

    pieces: (time, bytes) as they came off the wire; an event may be split anywhere, also inside a character.
    Raises BrokenStream for text that is not UTF-8.
    """
    name = ""
    data: list[str] = []
    for at, line in _lines(pieces):
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            continue
        if data:
            yield Event(at, name, "\n".join(data))
        name, data = "", []


def _lines(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    pending = b""
    for at, piece in pieces:
        pending += piece
        # A carriage return at the very end may be half of a line end.
        held = b"\r" if pending.endswith(b"\r") else b""
        *complete, pending = pending.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        pending += held
        for line in complete:
            try:
                yield at, line.decode()
            except UnicodeDecodeError as error:
                raise BrokenStream(f"a line is not UTF-8: {error}") from error
