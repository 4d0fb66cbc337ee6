"""Which network devices UCX may use where the settings name none: those behind the worker's own address.

UCX left alone listens on every interface that is up, whatever address a worker was told to keep to.
"""

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

__all__ = ["devices_at", "devices_of"]

_RDMA = Path("/sys/class/infiniband")
_IP = (socket.AF_INET, socket.AF_INET6)


def devices_at(host: str) -> str:
    """As UCX_NET_DEVICES takes them; empty, for all of them, where `host` is no address of one interface."""
    addresses = {
        name: [each.address for each in found if each.family in _IP] for name, found in psutil.net_if_addrs().items()
    }
    return devices_of(host, addresses, rdma_ports())


def devices_of(host: str, addresses: Mapping[str, Iterable[str]], rdma: Iterable[str]) -> str:
    """addresses: by interface

    rdma: ports such as mlx5_0:1, which listen on no address and are taken besides; a worker on loopback has no use for
          them.
    """
    wanted = _address(host)
    at = [name for name, found in addresses.items() if wanted is not None and wanted in map(_address, found)]
    if wanted is None or not at:
        return ""
    return ",".join([at[0], *([] if wanted.is_loopback else rdma)])


def rdma_ports(root: Path = _RDMA) -> list[str]:
    """Those that are up, as UCX names them."""
    states = sorted(root.glob("*/ports/*/state"))
    return [f"{state.parts[-4]}:{state.parts[-2]}" for state in states if "ACTIVE" in _text(state)]


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the device has gone
        return ""


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
