"""Which port a router listens on, settled before anything is started."""

import errno
import socket
from dataclasses import replace

from triptych.config import Settings
from triptych.errors import ConfigError


def with_port(settings: Settings) -> Settings:
    """The settings with a port that is free now: a router that is restarted must come back where clients know it.

    Raises ConfigError, before anything is started, when the port is taken.
    """
    host, port = settings.router.host, settings.router.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            other = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
            raise ConfigError(f"cannot listen on {host}:{port} ({error.strerror}); name another {other}") from error
        return replace(settings, router=replace(settings.router, port=trial.getsockname()[1]))
