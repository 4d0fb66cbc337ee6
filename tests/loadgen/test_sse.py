"""Events out of pieces that end anywhere."""

import random

from triptych.loadgen.sse import Event, read_events

STREAM = (
    'data: {"a": "grün"}\n\nevent: error\ndata: one\ndata: two\n\n: comment\n\ndata:bare\n\ndata: [DONE]\n\n'.encode()
)
EVENTS = [("", '{"a": "grün"}'), ("error", "one\ntwo"), ("", "bare"), ("", "[DONE]")]


def read(pieces: list[bytes]) -> list[tuple[str, str]]:
    return [(event.name, event.data) for event in read_events(enumerate(pieces))]


def test_events_do_not_depend_on_where_the_pieces_end() -> None:
    draw = random.Random(1)
    for _ in range(50):
        cuts = sorted(draw.sample(range(1, len(STREAM)), 8))
        pieces = [STREAM[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
        assert read(pieces) == EVENTS


def test_any_line_end_will_do() -> None:
    for line_end in (b"\r\n", b"\r"):
        stream = STREAM.replace(b"\n", line_end) + b":\n"
        assert read([stream]) == EVENTS
        assert read([bytes([byte]) for byte in stream]) == EVENTS


def test_an_unfinished_event_is_dropped() -> None:
    assert read([b"data: a\n\ndata: b\n"]) == [("", "a")]


def test_an_event_arrives_with_the_piece_that_completes_it() -> None:
    pieces = [(1.0, b"data: a\n"), (2.0, b"\ndata: b\n\n"), (3.0, b"data: c\n\n")]
    assert list(read_events(pieces)) == [Event(2.0, "", "a"), Event(2.0, "", "b"), Event(3.0, "", "c")]
