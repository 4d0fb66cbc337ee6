"""Joining the Ray that runs here, or starting one for as long as this process lives."""

import logging
import os

import ray

log = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 100 << 20  # nothing of ours goes through it


class RayRuntime:
    """A connection to Ray; `close` also ends Ray when it was started here, and only then."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # A fractional or zero GPU share must not hide the device from an actor that asked for the CPU.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self.started_here = False
        self.joined_here = False
        if ray.is_initialized():
            return
        try:
            ray.init(address="auto", log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError:
            # Loopback only: a laptop's server must not listen on the network it happens to be in.
            ray.init(
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
                object_store_memory=_OBJECT_STORE_BYTES,
                _node_ip_address="127.0.0.1",
            )
            self.started_here = True
        self.joined_here = True

    def close(self) -> None:
        if self.joined_here:
            ray.shutdown()
            self.joined_here = False
