"""Server-sent events that have names, for tests of the APIs that stream them."""

import json
from typing import Any


def events_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each; checks that the stream ends with a whole one."""
    *frames, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert name == f"event: {told['type']}"
        events.append((told["type"], told))
    return events
