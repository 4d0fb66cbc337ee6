"""`python -m triptych.router`: a router over workers that are already there."""

import argparse
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from triptych.config import load_settings
from triptych.config.addresses import host_and_port
from triptych.garbage import settle
from triptych.journey import Endpoint
from triptych.logs import log_to_stderr
from triptych.models.card import load_card
from triptych.router.fleet.link import KnownWorker
from triptych.router.server import RouterServer


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    flags = {
        "serve.model": options.model,
        "serve.dtype": options.dtype,
        "router.host": options.host,
        "router.port": options.port,
    }
    settings = load_settings(options.config, flags=flags)
    log_to_stderr(settings.router.log_level, settings.observe.log_format, "router")
    serve = settings.serve
    card = load_card(serve.model, serve.dtype, print, serve.load_format, settings.language.precision)
    workers = [KnownWorker(address, Endpoint(address, incarnation=0)) for address in options.worker]
    server = RouterServer(settings, card, workers)
    port = server.start()
    settle()
    print(f"router ready at http://{host_and_port(settings.router.host, port)}", flush=True)
    _wait_for_signal()
    server.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m triptych.router", description=__doc__)
    parser.add_argument("--model", help="the embedded model's name, a folder, or a hub id")
    parser.add_argument("--dtype", help="as the workers were started with: float32, bfloat16, float16 or auto")
    parser.add_argument("--worker", action="append", default=[], metavar="HOST:PORT", help="repeat for each worker")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--config", type=Path, help="a TOML file of settings")
    return parser


def _wait_for_signal() -> None:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


if __name__ == "__main__":
    main()
