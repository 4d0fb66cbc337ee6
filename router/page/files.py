"""The page's files, read once, answered from memory, asked for again only when they have changed."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

INDEX = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

# Nothing of another origin, nothing inline; blob: is the preview of a picture that has not left the browser.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # kept, and asked about each time: a new server's page is never an old one's
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """etag: of the content, in its quotes"""

    content: bytes
    media_type: str
    etag: str


class PageFiles:
    """By name, in one flat folder."""

    def __init__(self) -> None:
        self._files: Mapping[str, PageFile] = {
            entry.name: _read(entry.name, entry.read_bytes())
            for entry in files("triptych.router.page").iterdir()
            if entry.name.rpartition(".")[2] in _TYPES
        }

    def names(self) -> list[str]:
        return sorted(self._files)

    def answer(self, http: HTTPRequest, name: str) -> Response | None:
        """None where there is no such file."""
        file = self._files.get(name)
        if file is None:
            return None
        headers = _HEADERS | {"etag": file.etag}
        if _has(http.headers.get("if-none-match", ""), file.etag):
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)


def _read(name: str, content: bytes) -> PageFile:
    digest = hashlib.sha256(content).hexdigest()[:24]
    return PageFile(content, _TYPES[name.rpartition(".")[2]], f'"{digest}"')


def _has(told: str, etag: str) -> bool:
    """Whether a client that tells these has what we would send."""
    return any(each.strip().removeprefix("W/") in (etag, "*") for each in told.split(","))
