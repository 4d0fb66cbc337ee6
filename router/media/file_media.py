"""Images from file:// URLs, below folders that the operator has named, and nowhere else.

A path is walked from the folder's own descriptor, part by part, and no part may be a symbolic link: what is swapped
while we look cannot lead out. Whatever is outside reads the same, be it there or not.
"""

import asyncio
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import PurePosixPath
from urllib.parse import unquote_to_bytes, urlsplit

from triptych.config import RouterSettings
from triptych.errors import ConfigError, InvalidMedia
from triptych.router.media.errors import failed, malformed, no_such_root, not_allowed, too_large, too_late

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Nobody waits for the other end of a pipe.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_THREADS = 8  # a file system that hangs takes these, and no others


def is_file_url(url: str) -> bool:
    return url[:5].lower() == "file:"


class FileMedia:
    """Reads files below the roots; owns their descriptors."""

    def __init__(self, settings: RouterSettings) -> None:
        """Raises ConfigError for a root that is no folder."""
        self._most_bytes = settings.max_image_bytes
        self._seconds = settings.fetch_timeout_seconds
        self._stack = ExitStack()
        self._roots = [(_parts(root), self._opened(root)) for root in settings.media_roots]
        self._roots.sort(key=lambda root: len(root[0]), reverse=True)  # the innermost that holds a path
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="media-files")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stack.close()

    async def read(self, url: str) -> bytes:
        """Raises InvalidMedia, MediaTooLarge."""
        root, below = self._place(url)
        reading = asyncio.get_running_loop().run_in_executor(self._threads, self._read, root, below)
        try:
            async with asyncio.timeout(self._seconds):
                return await reading
        except TimeoutError:
            raise too_late(self._seconds) from None

    def _opened(self, root: str) -> int:
        try:
            descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"router.media_roots has {root!r}: {error.strerror}, expected a folder") from error
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _place(self, url: str) -> tuple[int, Sequence[str]]:
        """A root's descriptor, and the names that lead from there to the file."""
        parts = _parts_of(url)
        for root, descriptor in self._roots:
            if len(parts) > len(root) and parts[: len(root)] == root:
                return descriptor, parts[len(root) :]
        raise no_such_root()

    def _read(self, root: int, below: Sequence[str]) -> bytes:
        *folders, name = below
        with ExitStack() as stack:
            try:
                folder = root
                for each in folders:
                    folder = os.open(each, _FOLDER, dir_fd=folder)
                    stack.callback(os.close, folder)
                file = os.open(name, _FILE, dir_fd=folder)
                stack.callback(os.close, file)
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    raise _not_there()
                return self._bytes(file)
            except OSError:
                raise _not_there() from None

    def _bytes(self, file: int) -> bytes:
        pieces, left = [], self._most_bytes + 1
        if os.fstat(file).st_size >= left:
            raise too_large(self._most_bytes)
        while left and (piece := os.read(file, min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
        if not left:
            raise too_large(self._most_bytes)
        return b"".join(pieces)


def _parts(root: str) -> tuple[str, ...]:
    path = PurePosixPath(root)
    if not path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"router.media_roots has {root!r}, expected an absolute path without '..'")
    return path.parts[1:]


def _parts_of(url: str) -> tuple[str, ...]:
    try:
        split = urlsplit(url)
        path = unquote_to_bytes(split.path)
    except ValueError:
        raise malformed() from None
    if split.netloc.lower() not in ("", "localhost") or split.query or split.fragment:
        raise not_allowed()
    names = os.fsdecode(path).split("/")
    # What the URL says is the path: no part is resolved, so none may ask to be.
    if names[0] or b"\0" in path or any(name in ("", ".", "..") for name in names[1:]):
        raise not_allowed()
    return tuple(names[1:])


def _not_there() -> InvalidMedia:
    """Below a root: missing, no regular file, a link on the way, or not ours to read."""
    return failed("there is no such file that may be read")
