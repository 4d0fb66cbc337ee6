"""Memory that the routers of one server have in common, and the lock on it.

The lock is a record lock of the kernel's: it belongs to a process, so one that is killed while it holds it gives it
back. It is held for some microseconds. A process that has been stopped within them is not waited for: going on without
the lock can miscount one request, waiting would stop all routers.
"""

import fcntl
import mmap
import time
from types import TracebackType

_PATIENCE_SECONDS = 0.02
_LOOK_AGAIN_SECONDS = 2e-5


class CommonMemory:
    """A context: what is done within is done by one process at a time. Zeros at first. Not for several threads."""

    def __init__(self, num_bytes: int, descriptor: int = -1) -> None:
        """descriptor: of a file of at least so many bytes, which is borrowed; −1: memory of this process alone"""
        self.bytes = mmap.mmap(descriptor, num_bytes)
        self._descriptor = descriptor
        self._is_held = False

    def __enter__(self) -> None:
        if self._descriptor < 0 or self._try():
            return
        ends_at = time.monotonic() + _PATIENCE_SECONDS
        while not self._try() and time.monotonic() < ends_at:
            time.sleep(_LOOK_AGAIN_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_held:
            self._is_held = False
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self._is_held = True
        return True
