"""How each process of ours logs: lines of text, or of JSON, that name the request they are about.

Lines go to stderr; whoever has started the process takes them from there.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

FIELDS = "fields"  # of a record's `extra`: what a line of JSON tells beside its message
_LONGEST_NAME = 128

_about: ContextVar[tuple[str, str]] = ContextVar("about", default=("", ""))  # request id, trace id


def about(request_id: str, trace_id: str = "") -> None:
    """What this task or thread, and what it starts, logs from now on is about this request."""
    _about.set((_plain(request_id), _plain(trace_id)))


def log_to_stderr(level: str, log_format: str, process: str = "") -> None:
    """log_format: text or json; process: how lines call this one, as encode-1"""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONFormatter(process) if log_format == "json" else TextFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """For people, who have lines of several processes before them."""

    def __init__(self, process: str = "") -> None:
        who = f"{process} ".replace("%", "%%") if process else ""
        super().__init__(f"%(asctime)s {who}%(name)s %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        line, (request_id, _) = super().formatMessage(record), _about.get()
        return f"{line} (request {request_id})" if request_id and request_id not in line else line


class JSONFormatter(logging.Formatter):
    """For machines: one object a line, whatever is in a message."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        request_id, trace_id = _about.get()
        fields: Mapping[str, Any] = getattr(record, FIELDS, {})
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        told = {"process": self._process, "request_id": request_id, "trace_id": trace_id, **fields}
        line |= {name: value for name, value in told.items() if value != ""}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"), default=str)


def _plain(name: str) -> str:
    """A stranger's name, so that it is one word of a line."""
    if len(name) <= _LONGEST_NAME and name.isprintable():
        return name
    return "".join(character if character.isprintable() else "?" for character in name[:_LONGEST_NAME])
