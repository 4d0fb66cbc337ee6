"""Which port routers listen on, settled before anything is started."""

import errno
import socket

from triptych.config.addresses import host_and_port
from triptych.errors import ConfigError


def bound(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A socket that has the port, and listens when the first router does: until then clients are refused.

    flag: by which the port was named
    It stays open for as long as the server lives, so a router that is restarted comes back where clients know it.
    Raises ConfigError, before anything is started, when the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        other = flag if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
        raise ConfigError(
            f"cannot listen on {host_and_port(host, port)} ({error.strerror}); name another {other}"
        ) from error
    except (TypeError, ValueError) as error:  # a text that no host can have as its name
        listener.close()
        raise ConfigError(f"cannot listen on {host!r}, which is no host's name or address: {error}") from error
    return listener
