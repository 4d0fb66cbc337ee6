"""Joining the Ray that runs here, or starting one for as long as this process lives."""

import logging
import os

import ray

from triptych.errors import ConfigError

log = logging.getLogger(__name__)

_OBJECT_STORE_BYTES = 100 << 20  # nothing of ours goes through it
# A resource that marks a Ray as one server's own: it ends with that server, so nobody else may build on it.
_PRIVATE = "triptych_private"


class RayRuntime:
    """A connection to Ray; `close` also ends Ray when it was started here, and only then."""

    def __init__(self, address: str = "auto", show_logs: bool = False, num_actors: int = 1) -> None:
        """address: auto joins what runs here and else starts one, local always starts one; or where Ray is.

        show_logs: print what the actors log; num_actors: that will run in a Ray of our own
        Raises ConfigError when no Ray answers at an address that was named.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # two workers' equal lines are two facts
        # A fractional or zero GPU share must not hide the device from an actor that asked for the CPU.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        self.started_here = False
        self._joined_here = False
        self._show_logs = show_logs
        if ray.is_initialized():
            return
        if address == "local" or not self._join(address):
            self._start(num_actors)
        self._joined_here = True

    def _start(self, num_actors: int) -> None:
        ray.init(
            address="local",
            # Our actors ask for none. Ray starts as many processes ahead, and one for each core would be many.
            num_cpus=num_actors,
            include_dashboard=False,
            log_to_driver=self._show_logs,
            logging_level=logging.ERROR,
            object_store_memory=_OBJECT_STORE_BYTES,
            resources={_PRIVATE: 1},
        )
        self.started_here = True

    def _join(self, address: str) -> bool:
        """Whether a Ray was there to join; a missing one matters only where it was named."""
        try:
            ray.init(address=address, log_to_driver=self._show_logs, logging_level=logging.ERROR)
        except ConnectionError as error:
            if address != "auto":
                raise ConfigError(f"no Ray lets us in at serve.ray = {address!r}: {error}") from error
            return False
        if address == "auto" and _PRIVATE in ray.cluster_resources():
            ray.shutdown()
            return False
        return True

    def close(self) -> None:
        if self._joined_here:
            ray.shutdown()
            self._joined_here = False
