"""What there is of Ray on this machine, found out without joining any: which one may be, and which GPUs it would have.

A private Ray is another server's own. To join it only to see that takes seconds, and may hang while that server ends.
"""

import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import psutil
from ray._private import ray_constants
from ray._private.accelerators import NvidiaGPUAcceleratorManager
from ray._private.utils import read_ray_address

# A resource that marks a Ray as one server's own: it ends with that server, so nobody else may build on it.
PRIVATE = "triptych_private"
_CONNECT_SECONDS = 2.0
_LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def joinable() -> str | None:
    """The address of a Ray that may be joined: what RAY_ADDRESS names, else what `ray start` has begun last, or any."""
    named = os.environ.get("RAY_ADDRESS", "")
    if named and named != "auto":
        return named if _answers(named) else None
    found = [address for address in _shared() if _answers(address)]
    latest = read_ray_address()
    return latest if latest in found else next(iter(found), None)


def num_gpus() -> float:
    """That a Ray which is started here will have."""
    visible = NvidiaGPUAcceleratorManager.get_current_process_visible_accelerator_ids()
    there = NvidiaGPUAcceleratorManager.get_current_node_num_accelerators()
    return float(there if visible is None else min(there, len(visible)))


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """A Ray that is started within listens on this machine's loopback alone, all its processes.

    There is no option for it: Ray replaces a loopback address by the machine's own, but where it has no clusters, as it
    says of other systems. There its processes listen on the address of their node alone.
    """
    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    variable = os.environ.get(_LOOPBACK_VARIABLE)
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ[_LOOPBACK_VARIABLE] = "0"  # for those that it starts
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        if variable is None:
            del os.environ[_LOOPBACK_VARIABLE]
        else:
            os.environ[_LOOPBACK_VARIABLE] = variable


def _shared() -> list[str]:
    """Addresses of those that run here and are nobody's own, as their raylets' command lines tell."""
    found: dict[str, None] = {}
    for process in psutil.process_iter(["cmdline"]):
        words: list[str] = process.info["cmdline"] or []
        if not words or not words[0].endswith("/raylet"):
            continue
        # Its workers' command line is one of the words.
        options = _options(" ".join(words[1:]).split())
        resources = options.get("--static_resource_list", "").split(",")
        if "--gcs-address" in options and PRIVATE not in resources:
            found[options["--gcs-address"]] = None
    return list(found)


def _options(words: list[str]) -> Mapping[str, Any]:
    return dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
            return True
    except (OSError, ValueError):
        return False
