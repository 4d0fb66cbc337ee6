"""`triptych serve`: start a cluster, stay until told to stop, end what was started and nothing else."""

import argparse
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from rich.console import Console

from triptych.cluster.supervisor import Supervisor, plan_workers
from triptych.config import Settings, load_settings
from triptych.models.folder import resolve_folder


def run(arguments: argparse.Namespace) -> int:
    console = Console(stderr=True)
    settings = settings_from(arguments)
    console.print(f"model {settings.serve.model}", style="dim", highlight=False)
    resolve_folder(settings.serve.model, lambda text: console.print(text, style="dim", highlight=False))
    stop = threading.Event()
    supervisor = Supervisor(settings, lambda text: console.print(text, style="dim", highlight=False))
    try:
        _on_signals(signal.default_int_handler)  # until it is up, any of them ends it like Ctrl-C
        port = supervisor.start()
        # Again: Ray has put a handler of its own in place when it started.
        _on_signals(_setter(stop))
        names = ", ".join(name for name, _ in plan_workers(settings))
        print(f"Triptych is ready on http://{settings.router.host}:{port}/v1 with {names}", flush=True)
        stop.wait()
        console.print("stopping", style="dim")
    finally:
        supervisor.stop()
    return 0


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Settings of file and environment, overridden by the flags that were given."""
    given = vars(arguments)
    flags = {f"serve.{name}": given.get(name) for name in _SERVE_FLAGS}
    flags |= {"router.host": given.get("host"), "router.port": given.get("port")}
    flags["router.allow_media_cidrs"] = given.get("allow_media_cidr")
    return load_settings(given.get("config"), flags=flags)


_SERVE_FLAGS = (
    *("model", "served_name", "topology", "encoders", "prefills", "decodes"),
    *("device", "dtype"),
)


def _on_signals(handler: Callable[[int, FrameType | None], Any]) -> None:
    """For every way of asking a server to end; a hangup that is ignored (nohup) stays so."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, handler)


def _setter(event: threading.Event) -> Any:
    def handle(number: int, frame: FrameType | None) -> None:
        event.set()

    return handle
