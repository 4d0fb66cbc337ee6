"""The router processes of one server: equal ones behind one port.

They accept on one socket, which this process holds as well and never accepts on. A client that waits for its turn when
a router dies is taken by the others, or by the one that takes its place.
"""

import contextlib
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from triptych.cluster.actors import WorkerAddress
from triptych.cluster.names import FIRST_SET, set_in
from triptych.cluster.ports import bound
from triptych.cluster.router_slot import RouterSlot
from triptych.cluster.sets import Report, report_of
from triptych.cluster.view import View
from triptych.config import Settings, settings_as_values
from triptych.errors import ClusterError, InternalError, NoWorker, TriptychError
from triptych.router.commons import Commons

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.02
_WATCH_SECONDS = 0.1
_STOP_SECONDS = 7.0  # beside what a router gives the answers that are being written


# Does what an operator wishes, and tells how things stand then. Raises what the operator is to be told.
Obey = Callable[[Mapping[str, Any]], dict[str, Any]]


class RouterProcesses:
    """From `start` to `stop` as many routers as the settings ask for: one that dies is replaced.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        settings: Settings,
        progress: Callable[[str], None],
        show_logs: bool = False,
        obey: Obey | None = None,
        first: int = FIRST_SET,
    ) -> None:
        """show_logs: let what they log go where this process's does. obey: does what operators ask for over HTTP.

        first: number of the set that has the settings' model
        Raises ConfigError where the port is taken.
        """
        self._obey = obey or _nobody
        self._settings = settings
        self._listener = bound(settings.router.host, settings.router.port)
        self.port: int = self._listener.getsockname()[1]
        self.metrics_folder = tempfile.mkdtemp(prefix="triptych-routers-") if settings.serve.routers > 1 else ""
        count = settings.serve.routers
        self._commons = Commons(count, settings.router.media_names_bytes)
        self._lock = threading.RLock()
        self._done = threading.Event()
        # Not the supervisor's watcher: that one waits for Ray, at times for seconds.
        self._watcher = threading.Thread(target=self._watch, name="routers", daemon=True)
        # Operators' wishes: whoever carries them out may wait for Ray.
        self._wishes = ThreadPoolExecutor(1, thread_name_prefix="wishes")
        self._first = first
        self._told: dict[str, Any] = {}
        self._slots = [
            RouterSlot(index, self._task(index), self._listener, self._commons, progress, show_logs, self._take_wish)
            for index in range(count)
        ]

    def start(self) -> None:
        """Returns at once; `unready` tells how far they are."""
        with self._lock:
            for slot in self._slots:
                slot.start()
        self._watcher.start()

    def update(self, view: View) -> None:
        """Which sets of workers there are from now on, and which one serves."""
        told = _told(view)
        with self._lock:
            if told == self._told:
                return
            self._told = told
            for slot in self._slots:
                slot.tell_sets(told)

    def report(self) -> Report:
        """What they say of the sets."""
        return report_of(self.ask("sets", seconds=1.0))

    def tell_coming(self, coming: Sequence[Mapping[str, Any]]) -> None:
        """Workers that routers may not have met yet, as `View.coming` has them."""
        with self._lock:
            for slot in self._slots:
                slot.tell_coming(coming)

    def unready(self) -> list[str]:
        """The routers that cannot answer yet. Raises ConfigError where one cannot start at all."""
        with self._lock:
            for slot in self._slots:
                slot.look()
                slot.check()
            return [slot.name for slot in self._slots if not slot.is_ready]

    def missing(self, worker_ids: Sequence[str]) -> set[str]:
        """The workers that some router does not call ready."""
        wanted = set(worker_ids)
        states = self.ask("workers", seconds=1.0)
        return {
            worker_id
            for known in states
            for worker_id in wanted
            if not isinstance(known, Mapping) or known.get(worker_id) != "ready"
        }

    def ask(self, what: str, seconds: float) -> list[Any]:
        """What every router answers; None for one that does not within so long, or has died meanwhile.

        Each question has a number: an answer that comes too late is not taken for that of the next one.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            asked = [(slot, slot.ask(what)) for slot in self._slots]
        while True:
            with self._lock:
                self._look()
                if all(slot.has_answered(question) for slot, question in asked) or time.monotonic() >= deadline:
                    return [slot.answer(question) for slot, question in asked]
            time.sleep(_LOOK_SECONDS)

    def pids(self, seconds: float) -> list[int]:
        """Of the routers, once all are ready. Raises ClusterError where that takes longer."""
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:  # so that none has died between the two
                waiting, pids = self.unready(), [slot.pid for slot in self._slots]
            if not waiting:
                return pids
            if time.monotonic() > deadline:
                raise ClusterError(f"{', '.join(waiting)} did not start within {seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        """Lets them finish what they have, for as long as settings say; stopping again does nothing."""
        self._done.set()
        self._wishes.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._listener.close()
            for slot in self._slots:
                slot.end()
            deadline = time.monotonic() + self._settings.router.drain_seconds + _STOP_SECONDS
            for slot in self._slots:
                slot.wait(deadline)
            self._commons.close()
        if self.metrics_folder:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.metrics_folder)

    def hurry(self) -> None:
        """While another call stops them: whatever they have is cut off."""
        for slot in self._slots:
            slot.kill()

    def _watch(self) -> None:
        while not self._done.wait(_WATCH_SECONDS):
            try:
                self._look()
            except Exception:  # a bug of ours must not end what keeps the routers
                log.exception("keeping the routers failed")

    def _look(self) -> None:
        """What they have told; and a new one wherever one has died."""
        with self._lock:
            for slot in self._slots:
                slot.look()

    def _take_wish(self, slot: RouterSlot, number: int, wish: Mapping[str, Any]) -> None:
        with contextlib.suppress(RuntimeError):  # of a server that is being stopped
            self._wishes.submit(self._answer, slot, number, wish)

    def _answer(self, slot: RouterSlot, number: int, wish: Mapping[str, Any]) -> None:
        try:
            answer = {"told": number, "value": self._obey(wish)}
        except Exception as error:
            if not isinstance(error, TriptychError):
                log.exception("an operator's wish failed")
                error = InternalError(repr(error))
            answer = {"told": number, "error": type(error).__name__, "message": error.message, "param": error.param}
        with self._lock:
            slot.tell(answer)

    def _task(self, index: int) -> dict[str, Any]:
        return {
            "settings": settings_as_values(self._settings),
            "number": self._first,
            "index": index,
            "count": self._settings.serve.routers,
            "metrics_folder": self.metrics_folder,
            "commons": self._commons.descriptors,
        }


def _nobody(wish: Mapping[str, Any]) -> dict[str, Any]:
    raise NoWorker("whoever started this router keeps no workers")


def _told(view: View) -> dict[str, Any]:
    """Sets in order; each worker with its own."""
    sets = [
        {
            "number": each.number,
            "model": each.model,
            "workers": [_worker(worker) for worker in view.addresses if set_in(worker.worker_id) == each.number],
        }
        for each in view.sets
    ]
    return {"sets": sets, "serving": view.serving, "turn": view.turn}


def _worker(worker: WorkerAddress) -> dict[str, Any]:
    return {
        "worker_id": worker.worker_id,
        "address": worker.endpoint.address,
        "incarnation": worker.endpoint.incarnation,
        "roles": sorted(worker.roles),
    }
