"""`python -m triptych.router.router_process`: one router of a server, told everything by the process that started it.

It inherits two sockets: the one that all routers of the server accept on, and one end of a pair whose other end the
supervisor holds; beside them, where it is one of several, the memory that they have in common. On the
pair it reads its settings and who the workers are, and it ends when the pair does: so it outlives its supervisor by no
more than the answers that are being written, however the supervisor ends.
"""

import argparse
import logging
import os
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import values

from triptych.config import Settings, load_settings
from triptych.errors import TriptychError
from triptych.garbage import settle
from triptych.journey import Endpoint, Role
from triptych.json_lines import JsonLines
from triptych.logs import log_to_stderr
from triptych.metrics import FOLDER_VARIABLE
from triptych.models.card import load_card
from triptych.router.admin.supervision import Supervision
from triptych.router.commons import Commons
from triptych.router.fleet.link import KnownWorker
from triptych.router.model_set import KnownSet
from triptych.router.pulses import Pulses
from triptych.router.server import RouterServer

logger = logging.getLogger(__name__)

_END_SECONDS = 5.0  # behind the last answer, or what was given it


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m triptych.router.router_process", description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the socket to accept on")
    parser.add_argument("--control", type=int, required=True, help="descriptor of the supervisor's socket")
    options = parser.parse_args(arguments)
    control = JsonLines(socket.socket(fileno=options.control))
    sending = threading.Lock()
    told_to_end = threading.Event()

    def end(*_: Any) -> None:
        told_to_end.set()
        control.hang_up()

    def send(message: dict[str, Any]) -> None:
        with sending:
            control.send(message)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    task = control.receive()
    if task is None:
        return 0
    try:
        supervision = Supervision(send)
        server = _start(task, socket.socket(fileno=options.listener), supervision)
        send({"ready": True})
    except TriptychError as error:
        send({"failed": str(error)})
        return 1
    except BrokenPipeError:
        return 0
    threading.Thread(target=_tell_end, args=(server, end), daemon=True).start()
    _obey(control, server, supervision, send)
    is_orphan = not told_to_end.is_set()
    last = threading.Timer(server.settings.router.drain_seconds + _END_SECONDS, os._exit, (1,))
    last.daemon = True
    last.start()
    server.stop()
    if task["metrics_folder"] and is_orphan:
        shutil.rmtree(task["metrics_folder"], ignore_errors=True)  # whose supervisor cannot do it any more
    return 0


def share_of(settings: Settings, count: int) -> Settings:
    """What one of so many equal routers may use of what the settings give to the server."""
    if count == 1:
        return settings
    router = settings.router
    shared = {name: -(-getattr(router, name) // count) for name in _DIVIDED}  # what is 0 stays so
    return replace(settings, router=replace(router, **shared))


_DIVIDED = (
    *("media_budget_bytes", "media_cache_bytes"),
    *("concurrent_fetches", "fetches_per_host"),
)


def _start(task: Mapping[str, Any], listener: socket.socket, supervision: Supervision) -> RouterServer:
    settings = share_of(load_settings(environment={}, flags=task["settings"]), task["count"])
    log_to_stderr(settings.router.log_level, settings.observe.log_format, f"router-{task['index']}")
    if task["metrics_folder"]:
        _count_in(task["metrics_folder"], task["index"])
    serve, precision = settings.serve, settings.language.precision
    card = load_card(serve.model, serve.dtype, load_format=serve.load_format, precision=precision)
    commons = None
    if task["count"] > 1:
        commons = Commons(task["count"], settings.router.media_names_bytes, task["commons"])
    pulses = Pulses(task["commons"]["pulses"], task["count"])
    server = RouterServer(
        *(settings, card, None, listener, commons),
        index=task["index"],
        supervision=supervision,
        number=task["number"],
        beat=lambda: pulses.beat(task["index"]),
    )
    server.start()
    settle()
    return server


def _count_in(folder: str, index: int) -> None:
    """Every router counts in files of its own there, and any of them tells the sums.

    They go by its place among the routers: whoever takes the place of one that died goes on counting where it was, so
    that no counter falls.
    """
    os.environ[FOLDER_VARIABLE] = folder
    values.ValueClass = values.MultiProcessValue(lambda: index)  # type: ignore[no-untyped-call]


def _obey(
    control: JsonLines, server: RouterServer, supervision: Supervision, send: Callable[[dict[str, Any]], None]
) -> None:
    """Until the supervisor is gone, or wants this to end."""
    while (message := control.receive()) is not None:
        if "sets" in message:
            server.tell([_set(entry) for entry in message["sets"]], message["serving"], message["turn"])
        elif "coming" in message:
            server.tell_coming({each["worker_id"]: (each["roles"], each["note"]) for each in message["coming"]})
        elif "told" in message:
            supervision.told(message)
        elif "ask" in message:
            answer = _ANSWERS[message["ask"]](server)
            try:
                send({"answer": message["number"], "value": answer})
            except OSError:
                return


def _modules(server: RouterServer) -> list[str]:
    """Top-level packages that are loaded; a test looks for torch."""
    return sorted({name.partition(".")[0] for name in sys.modules})


_ANSWERS: Mapping[str, Callable[[RouterServer], Any]] = {
    "modules": _modules,
    "workers": RouterServer.worker_states,
    "reasons": RouterServer.worker_reasons,
    "faulty": RouterServer.faulty_workers,
    "sets": RouterServer.told_of_sets,
}


def _set(entry: Mapping[str, Any]) -> KnownSet:
    return KnownSet(entry["number"], entry["model"], tuple(_worker(each) for each in entry["workers"]))


def _worker(entry: Mapping[str, Any]) -> KnownWorker:
    endpoint = Endpoint(entry["address"], entry["incarnation"])
    return KnownWorker(entry["worker_id"], endpoint, frozenset(Role(role) for role in entry["roles"]))


def _tell_end(server: RouterServer, end: Callable[[], None]) -> None:
    """A router whose server has ended for a reason of its own is of no use: another takes its place."""
    server.wait()
    end()


if __name__ == "__main__":
    sys.exit(main())
