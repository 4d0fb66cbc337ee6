"""Whether this node's part of Ray is still there, without asking Ray: a call of its own may wait a minute for that."""

import os
import select
import socket
import struct
from typing import Any

import ray
from ray._private import state

_CREDENTIALS = struct.Struct("3i")  # pid, user and group, as SO_PEERCRED has them


def has_process(actor: Any) -> bool:
    """Whether Ray has found a place for it, and started its process there; what the public API tells only where a
    dashboard runs."""
    return bool(state.actors(actor._actor_id.hex()).get("Pid"))


class RayletWatch:
    """The raylet through which this process, connected to Ray, reaches it. It ends once: a Ray that is started again
    at the same place has another."""

    def __init__(self) -> None:
        """Raises OSError where it has ended already."""
        node_id = ray.get_runtime_context().get_node_id()
        name = next(node["RayletSocketName"] for node in ray.nodes() if node["NodeID"] == node_id)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(name)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, _, _ = _CREDENTIALS.unpack(credentials)
        self._process = os.pidfd_open(pid)
        self._poll = select.poll()
        self._poll.register(self._process, select.POLLIN)

    def has_ended(self) -> bool:
        """Costs a system call."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        os.close(self._process)
