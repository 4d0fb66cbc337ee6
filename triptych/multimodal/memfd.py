"""Source bytes handed to another process of the same host without a copy through a socket.

The owner keeps a sealed memfd; the reader opens it as /proc/PID/fd/FD. There is no name in a file system to clean up:
the memory goes when the last descriptor does, also when the owner is killed.
"""

import fcntl
import functools
import os
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from triptych.errors import TransferFailed

_NAME = "triptych-media"
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass(frozen=True, slots=True)
class MemfdDescriptor:
    """Where the memory can be opened: only by processes with the same host id."""

    host_id: str
    pid: int
    fd: int


@functools.cache
def host_id() -> str:
    """Names the set of processes that see each other's /proc/PID: boot id and pid namespace.

    Where the kernel tells neither, an id that only this process has, so that nobody tries.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return f"alone-{uuid.getnode():x}-{os.getpid()}"
    return f"{boot}-{namespace}"


class MediaMemory:
    """Owns a copy of the bytes in a sealed memfd until it is closed; nobody can change or shrink it.

    Raises TransferFailed when the host has no memfd or no room.
    """

    def __init__(self, data: bytes) -> None:
        self.num_bytes = len(data)
        self._fd = -1
        if not hasattr(os, "memfd_create"):
            raise TransferFailed("this host has no memfd; media bytes must travel as chunks")
        try:
            self._fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            _write_all(self._fd, data)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        except OSError as error:
            self.close()
            raise TransferFailed(f"cannot put {len(data)} media bytes into a memfd: {error}") from error

    @property
    def descriptor(self) -> MemfdDescriptor:
        """Raises TransferFailed after close: the number may already name something else."""
        if self._fd < 0:
            raise TransferFailed("media memory is closed")
        return MemfdDescriptor(host_id(), os.getpid(), self._fd)

    def close(self) -> None:
        """Frees the memory once readers that have it open are done; closing again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()


def read_memfd(descriptor: MemfdDescriptor, num_bytes: int) -> bytes:
    """The bytes behind a descriptor; the caller compares their digest.

    Raises TransferFailed with the reason: another host, owner gone, not media memory of ours, another size.
    """
    here = host_id()
    if descriptor.host_id != here:
        raise TransferFailed(f"media memory is on {descriptor.host_id}, this process on {here}")
    path = f"/proc/{descriptor.pid}/fd/{descriptor.fd}"
    try:
        # The number may have been reused for anything: look before opening, and again at what was opened.
        _require_media(path, os.readlink(path))
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _require_media(path, os.readlink(f"/proc/self/fd/{fd}"))
            return _read_all(path, fd, num_bytes)
        finally:
            os.close(fd)
    except OSError as error:
        raise TransferFailed(f"cannot read media memory {path}: {error}") from error


def _require_media(path: str, target: str) -> None:
    if not target.startswith(f"/memfd:{_NAME}"):
        raise TransferFailed(f"{path} is {target!r}, expected media memory")


def _read_all(path: str, fd: int, num_bytes: int) -> bytes:
    size = os.fstat(fd).st_size
    if size != num_bytes:
        raise TransferFailed(f"{path} holds {size} bytes, expected {num_bytes}")
    pieces: list[bytes] = []
    done = 0
    while done < num_bytes:  # one call reads at most 2 GiB
        pieces.append(os.pread(fd, num_bytes - done, done))
        if not pieces[-1]:
            raise TransferFailed(f"{path} ended after {done} of {num_bytes} bytes")
        done += len(pieces[-1])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
