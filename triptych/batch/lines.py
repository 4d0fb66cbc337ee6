"""Batch lines in and out: OpenAI's file format, read with line numbers, written as it asks."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triptych.errors import InvalidRequest

URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
LONGEST_ID = 512  # characters of a custom_id
_FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request, and where in the input file it stands."""

    number: int  # of the line, from 1
    custom_id: str
    url: str
    begin: int  # first byte of the line in the file
    num_bytes: int

    def body(self, source: Path) -> bytes:
        """What is sent, read once more: a file of images is larger than memory."""
        with source.open("rb") as file:
            file.seek(self.begin)
            return json.dumps(json.loads(file.read(self.num_bytes))["body"]).encode()


def read_lines(source: Path) -> list[BatchLine]:
    """Every request of a file, in its order.

    Raises InvalidRequest that names all unusable lines: nothing is sent until there are none.
    """
    lines: list[BatchLine] = []
    faults: list[str] = []
    line_by_id: dict[str, int] = {}
    try:
        with source.open("rb") as file:
            begin = 0
            for number, raw in enumerate(file, 1):
                if raw.strip():
                    _read_line(BatchLine(number, "", "", begin, len(raw)), raw, lines, faults, line_by_id)
                begin += len(raw)
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}") from error
    if faults:
        more = [f"and {len(faults) - _FAULTS_SHOWN} more"] if len(faults) > _FAULTS_SHOWN else []
        raise InvalidRequest("\n  ".join([f"{source} cannot be sent:", *faults[:_FAULTS_SHOWN], *more]))
    if not lines:
        raise InvalidRequest(f"{source} holds no request")
    return lines


def _read_line(
    place: BatchLine, raw: bytes, lines: list[BatchLine], faults: list[str], line_by_id: dict[str, int]
) -> None:
    try:
        entry = json.loads(raw)
        fault = fault_of(entry)
    except (ValueError, RecursionError) as error:
        entry, fault = None, f"not JSON: {error}"
    custom_id = entry.get("custom_id") if isinstance(entry, dict) else None
    first = line_by_id.setdefault(custom_id, place.number) if isinstance(custom_id, str) else place.number
    if first != place.number:  # told beside what else is wrong, so that one look at the file mends both
        told = f"custom_id {custom_id!r} is that of line {first} as well"
        fault = f"{fault}; {told}" if fault else told
    if fault:
        faults.append(f"line {place.number}: {fault}")
        return
    lines.append(BatchLine(place.number, entry["custom_id"], entry["url"], place.begin, place.num_bytes))


def fault_of(entry: Any) -> str:
    """Why a line cannot be sent; empty where it can."""
    if not isinstance(entry, dict):
        return f"expected an object, got {type(entry).__name__}"
    custom_id, url, body = (entry.get(name) for name in ("custom_id", "url", "body"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= LONGEST_ID:
        return f"custom_id must be a string of 1 to {LONGEST_ID} characters"
    if entry.get("method") != "POST":
        return f"method is {entry.get('method')!r}, expected 'POST'"
    if url not in URLS:
        return f"url is {url!r}, expected one of {', '.join(URLS)}"
    if not isinstance(body, dict):
        return "body must be an object"
    if body.get("stream"):
        return "body.stream is set; an answer in a file comes whole"
    return ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request."""

    custom_id: str
    status: int  # 0: no answer came at all
    request_id: str = ""
    body: Any = None
    failure: str = ""  # why no answer came

    @property
    def is_answer(self) -> bool:
        return 200 <= self.status < 300

    def to_line(self) -> bytes:
        response = None
        if self.status:
            response = {"status_code": self.status, "request_id": self.request_id, "body": self.body}
        error: Mapping[str, str] | None = None
        if not self.status:
            error = {"code": "no_response", "message": self.failure}
        line = {"id": f"batch_req_{self.custom_id}", "custom_id": self.custom_id, "response": response, "error": error}
        return json.dumps(line).encode() + b"\n"
