"""The command line of a worker that is started by hand instead of by the cluster."""

import argparse
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

from triptych.config import load_settings
from triptych.garbage import settle
from triptych.journey import Role
from triptych.logs import log_to_stderr
from triptych.services.host import Builder, Placement, WorkerHost, parse_roles


def run_worker(builders: Mapping[Role, Builder]) -> None:
    """Serve the given roles until SIGINT or SIGTERM; prints one line `ready HOST:PORT INCARNATION` when up."""
    parser = argparse.ArgumentParser(description="One Triptych worker")
    parser.add_argument("--model")
    parser.add_argument("--device")
    parser.add_argument("--dtype")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--worker-id", default="")
    parser.add_argument("--roles", default=",".join(sorted(builders)), help="comma-separated")
    parser.add_argument("--config", type=Path)
    arguments = parser.parse_args()
    flags = {f"serve.{name}": getattr(arguments, name) for name in ("model", "device", "dtype")}
    settings = load_settings(arguments.config, flags=flags)
    roles = parse_roles(arguments.roles.split(","))
    log_to_stderr("info", settings.observe.log_format, arguments.worker_id)
    placement = Placement(
        worker_id=arguments.worker_id or "-".join(sorted(roles)),
        roles=roles,
        bind_host=arguments.host,
        port=arguments.port,
        device=settings.serve.device,
    )
    done = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: done.set())
    host = WorkerHost(placement, builders, settings)
    endpoint = host.start()
    settle()
    print(f"ready {endpoint.address} {endpoint.incarnation}", flush=True)
    done.wait()
    host.stop()
