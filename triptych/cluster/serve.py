"""`triptych serve`: start a cluster, stay until told to stop, end what was started and nothing else."""

import argparse
import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from rich.console import Console

from triptych.cluster.preflight import check
from triptych.cluster.supervisor import Supervisor
from triptych.config import Settings, load_settings
from triptych.config.addresses import host_and_port
from triptych.logs import log_to_stderr
from triptych.models.card import ModelCard, load_card
from triptych.models.folder import EMBEDDED_MODEL

log = logging.getLogger(__name__)


class Terminal(Console):
    """Where a server says how things go. It goes on, and ends in order, where nobody reads that any more."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):  # as of a terminal that was closed
            self.print(text, style="dim", soft_wrap=True)  # a line each, also where it goes to a file

    def on_broken_pipe(self) -> None:
        """As where Ctrl-C has ended whoever it was piped to, too. Rich would end this program, or its thread."""
        self.quiet = True


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    tell = _teller(settings)
    tell(f"model {settings.serve.model}")
    settings, card = with_card(settings, tell)
    check(settings, card)
    stop = threading.Event()
    supervisor = Supervisor(settings, tell, show_logs=True)
    port = 0
    try:
        _on_signals(_interrupter(supervisor))  # until it is up, any of them ends it like Ctrl-C
        try:
            port = supervisor.start()
        except SystemExit:  # by the handler that Ray puts in place for SIGTERM when it is started here
            raise KeyboardInterrupt from None
        _on_signals(_setter(stop))
        names = ", ".join(supervisor.worker_ids())
        root = f"http://{host_and_port(settings.router.host, port)}"
        print(f"Triptych is ready on {root}/v1 with {names}; in a browser: {root}/", flush=True)
        while not (stop.wait(_LOOK_SECONDS) or supervisor.lost.is_set()):
            pass
    finally:
        if port:  # one that could not start has only its reason to tell
            seconds = settings.router.drain_seconds
            tell(f"stopping; answers get {seconds:g} s, a second Ctrl-C cuts them off")
            _on_signals(lambda *_: supervisor.hurry())
        supervisor.stop()
    return 1 if supervisor.lost.is_set() else 0


def _teller(settings: Settings) -> Callable[[str], None]:
    """Says how far things are: to a person, or in lines like all others to what reads JSON."""
    if settings.observe.log_format == "json":
        log_to_stderr(settings.router.log_level, "json", "serve")
        return log.info
    return Terminal().say


def with_card(settings: Settings, progress: Callable[[str], None]) -> tuple[Settings, ModelCard]:
    """The settings with the model's folder, fetched where need be: actors may run in another working directory.

    Raises ConfigError, before anything is started, for a folder that holds no model of ours.
    """
    serve = settings.serve
    card = load_card(serve.model, serve.dtype, progress, serve.load_format, settings.language.precision)
    if serve.model == EMBEDDED_MODEL:
        return settings, card
    name = serve.served_name or card.name
    return replace(settings, serve=replace(serve, model=str(card.folder.resolve()), served_name=name)), card


def settings_from(arguments: argparse.Namespace) -> Settings:
    """Settings of file and environment, overridden by the flags that were given."""
    given = vars(arguments)
    flags = {f"serve.{name}": given.get(name) for name in _SERVE_FLAGS}
    flags |= {setting: given.get(flag) for setting, flag in _OTHER_FLAGS.items()}
    flags |= {f"router.{setting}": given.get(flag) for setting, flag in _ROUTER_FLAGS.items()}
    return load_settings(given.get("config"), flags=flags)


_LOOK_SECONDS = 0.5

_SERVE_FLAGS = (
    *("model", "served_name", "topology", "encoders", "prefills", "decodes", "routers"),
    *("device", "dtype", "load_format"),
)

_OTHER_FLAGS = {
    "serve.gpu_shares": "gpu_share",
    "serve.gpu_share": "gpu_memory",
    "language.kv_bytes": "kv_bytes",
    "language.max_model_len": "max_model_len",
    "router.max_images_per_prompt": "images_per_prompt",
    "observe.log_format": "log_format",
}

_ROUTER_FLAGS = {  # by setting: those that may be repeated have a singular name
    "host": "host",
    "port": "port",
    "admin_port": "admin_port",
    "chat_template": "chat_template",
    "allow_media_cidrs": "allow_media_cidr",
    "allow_media_hosts": "allow_media_host",
    "media_roots": "media_root",
    "media_proxy": "media_proxy",
}


def _on_signals(handler: Callable[[int, FrameType | None], Any]) -> None:
    """For every way of asking a server to end; a hangup that is ignored (nohup) stays so."""
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    for number in numbers:
        signal.signal(number, handler)


def _interrupter(supervisor: Supervisor) -> Any:
    def handle(number: int, frame: FrameType | None) -> None:
        # What has been started is ended from now on. Cut off half-way, it would be left where it is.
        _on_signals(lambda *_: supervisor.hurry())
        raise KeyboardInterrupt

    return handle


def _setter(event: threading.Event) -> Any:
    def handle(number: int, frame: FrameType | None) -> None:
        event.set()

    return handle
