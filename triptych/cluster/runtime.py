"""Joining the Ray that runs here, or starting one for as long as this process lives."""

import contextlib
import logging
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import psutil
import ray
from ray._private import auto_init_hook
from ray.experimental.internal_kv import _internal_kv_get

from triptych.cluster.ray_here import PRIVATE, joinable, on_loopback
from triptych.cluster.raylet import RayletWatch
from triptych.errors import ClusterError, ConfigError, InternalError

log = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 100 << 20  # nothing of ours goes through it
_DISK_BYTES = 16 << 20  # for what every start writes; logs of a long life are more
_STARTS = 3
_LOG_LINES = 5
# A raylet waits a minute for its head, and so does Ray's client in this process: both end then.
_AWAY_SECONDS = 50.0
_JOIN_SECONDS = 60.0  # a head's first, on a machine that starts everything at once
_AGAIN_SECONDS = 0.5


class RayRuntime:
    """A connection to Ray; `close` also ends Ray when it was started here, and only then."""

    def __init__(
        self, address: str = "auto", show_logs: bool = False, num_actors: int = 1, namespace: str | None = None
    ) -> None:
        """address: auto joins what runs here and else starts one, local always starts one; or where Ray is.

        show_logs: print what the actors log; num_actors: that will run in a Ray of our own
        namespace: of named actors in a Ray that is joined
        Raises ConfigError when no Ray answers at an address that was named.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's workers would come after whatever else this machine does (15): routers first, then what they wait for.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # A fractional or zero GPU share must not hide the device from an actor that asked for the CPU.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Else whichever thread asks Ray last, while this process ends, starts another Ray for its answer. There is a
        # variable for it, which Ray has read by now.
        auto_init_hook.enable_auto_connect = False
        self.started_here = False
        self._joined_here = False
        self._raylet: RayletWatch | None = None
        self._address, self._gcs_address = address, ""
        self.may_return = False  # once `watch` was called: whether its head keeps what it knows
        self._show_logs = show_logs
        self._namespace = namespace
        if ray.is_initialized():
            return
        if address == "local" or not self._join(address):
            self._start(num_actors)
        self._joined_here = True

    def watch(self) -> None:
        """From now on `is_gone` tells."""
        try:
            self._gcs_address = ray.get_runtime_context().gcs_address
            self.may_return = _remembers()
            self._raylet = RayletWatch()
        except OSError as error:  # of another user's, say
            log.warning("the end of Ray will be noticed late, as its process cannot be watched: %s", error)

    @property
    def is_gone(self) -> bool:
        """Whether this node's part of Ray has ended, for good: whatever asks Ray from then on waits for a minute."""
        return self._raylet is not None and self._raylet.has_ended()

    def rejoin(self, given_up: threading.Event) -> bool:
        """Waits for Ray to be back where it was, and joins it, as `watch` left it. Whether it is.

        Nothing of Ray may be called from the moment when it has gone until this returns.
        """
        ends_at = time.monotonic() + _AWAY_SECONDS
        while not _listens(self._gcs_address):
            if time.monotonic() > ends_at or given_up.wait(_AGAIN_SECONDS):
                return False
        self.close()
        ends_at = time.monotonic() + _JOIN_SECONDS
        while True:
            try:
                self._joined_here = self._join(self._address)
                self.watch()
                return True
            except Exception as error:  # of no narrower class: its raylet comes behind its head
                ray.shutdown()
                if time.monotonic() > ends_at or given_up.wait(_AGAIN_SECONDS):
                    log.warning("Ray is back, and does not let this server in: %s", error)
                    return False

    def _start(self, num_actors: int) -> None:
        """Raises InternalError where Ray does not come up, with the end of its log.

        Raises ConfigError at once where it has nowhere to write: it would wait for files, and log nothing.
        """
        _require_disk()
        for left in reversed(range(_STARTS)):
            before = _ray_children()
            try:
                self._start_once(num_actors)
                break
            except Exception as error:  # of no narrower class
                # A node that takes more than Ray's half minute, on a disk or cores that are busy, comes up next time.
                _end_processes(_ray_children() - before)
                if not left:
                    raise InternalError(f"Ray did not start: {error}{_log_end()}") from error
                log.warning("Ray did not start, trying again: %s", error)
        self.started_here = True

    def _start_once(self, num_actors: int) -> None:
        with on_loopback(), _handler_of_sigterm_kept():
            ray.init(
                address="local",
                # Our actors ask for none. Ray starts as many processes ahead, and one for each core would be many.
                num_cpus=num_actors,
                include_dashboard=False,
                log_to_driver=self._show_logs,
                logging_level=logging.ERROR,
                object_store_memory=_OBJECT_STORE_BYTES,
                resources={PRIVATE: 1},
            )

    def _join(self, address: str) -> bool:
        """Whether a Ray was there to join; a missing one matters only where it was named.

        Raises ClusterError where one that is there does not let us in, nor says why.
        """
        found = joinable() if address == "auto" else address
        if found is None:
            return False
        # Not in this thread, which nothing could interrupt.
        joining: Future[None] = Future()
        threading.Thread(target=self._init, args=(found, joining), name="join Ray", daemon=True).start()
        try:
            with _handler_of_sigterm_kept():
                joining.result(_JOIN_SECONDS)
        except ConnectionError as error:
            if address != "auto":
                raise ConfigError(f"no Ray lets us in at serve.ray = {address!r}: {error}") from error
            return False
        except TimeoutError:
            raise ClusterError(
                f"Ray at {found} has not let us in within {_JOIN_SECONDS:g} s; end it, or set serve.ray = 'local'"
            ) from None
        return True

    def _init(self, address: str, joining: "Future[None]") -> None:
        try:
            ray.init(
                address=address,
                log_to_driver=self._show_logs,
                logging_level=logging.ERROR,
                namespace=self._namespace,
            )
        except BaseException as error:
            joining.set_exception(error)
        else:
            joining.set_result(None)

    def close(self) -> None:
        if self._raylet is not None:
            self._raylet.close()
            self._raylet = None
        if self._joined_here:
            ray.shutdown()
            self._joined_here = False


@contextlib.contextmanager
def _handler_of_sigterm_kept() -> Iterator[None]:
    """Ray's own, and its core's that prints a stack, stay no longer than Ray needs to start: they end this process
    wherever it is, also where it ends what it has started. A signal that comes within is the caller's own affair."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Ray puts none in place there
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit:  # by Ray's
        if callable(before):
            before(signal.SIGTERM, None)
        raise
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _remembers() -> bool:
    """Whether Ray's head keeps what it knows somewhere: it says so among its usage tags, which it always writes."""
    storage = _internal_kv_get(b"extra_usage_tag_gcs_storage", namespace=b"usage_stats")
    return storage in (b"rocksdb", b"redis")


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_AGAIN_SECONDS):
            return True
    except OSError:
        return False


def _ray_children() -> set[psutil.Process]:
    """Processes of Ray's own that this one has started."""
    home = str(Path(ray.__file__).parent)
    found = set()
    for child in psutil.Process().children():
        try:
            if any(home in word for word in child.cmdline()):
                found.add(child)
        except psutil.Error:
            pass  # it has ended
    return found


def _end_processes(processes: set[psutil.Process]) -> None:
    """What a start that failed has left; else it stays until this process ends."""
    for each in processes:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(processes, timeout=5)


def _require_disk() -> None:
    """Raises ConfigError."""
    for variable in ("RAY_TMPDIR", "TMPDIR"):
        folder = Path(os.environ.get(variable) or "/tmp")
        if folder.is_dir() and (free := shutil.disk_usage(folder).free) < _DISK_BYTES:
            raise ConfigError(
                f"{folder} has {free >> 10} KiB left, where Ray and its processes want {_DISK_BYTES >> 20} MiB and "
                f"more for sockets and logs; make room there, or let {variable} name another folder"
            )


def _log_end() -> str:
    """Of the node that did not come up, as far as it has said anything."""
    logs = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "session_latest" / "logs"
    for name in ("raylet.err", "raylet.out", "gcs_server.err", "gcs_server.out"):
        try:
            lines = (logs / name).read_text(errors="replace").splitlines()
        except OSError:
            continue
        if lines:
            return f"; {name} ends with: " + " | ".join(lines[-_LOG_LINES:])
    return ""
