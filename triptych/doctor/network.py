"""Ports, interfaces, and who may ask."""

import errno
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from http.client import HTTPConnection, HTTPException

import psutil

from triptych.config import RouterSettings
from triptych.doctor.finding import Asked, Finding, fail, ok, warn

_SECONDS = 2.0
_RAY_PORT = 6379
_ANYWHERE = ("8.8.8.8", 53)  # nothing is sent: the kernel is asked which way it would go


def look_ports(asked: Asked) -> Finding:
    router = asked.settings.router
    wanted = {"router.port": (router.host, router.port), "router.admin_port": (router.admin_host, router.admin_port)}
    taken = {name: where for name, where in wanted.items() if where[1] and refusal_of(*where)}
    return judge_ports(
        {name: f"{host}:{port}" for name, (host, port) in wanted.items() if port},
        {name: (refusal_of(*where), version_at(*where)) for name, where in taken.items()},
        has_ray=not can_listen("", _RAY_PORT),
    )


def judge_ports(wanted: Mapping[str, str], taken: Mapping[str, tuple[str, str]], has_ray: bool) -> Finding:
    """wanted: addresses by setting; taken: why not and, where a server of ours has it, its version; by setting"""
    ray = f"{'something, Ray it seems, listens' if has_ray else 'nothing listens'} on {_RAY_PORT}"
    strangers = {name: why for name, (why, version) in taken.items() if not version}
    if strangers:
        seen = "; ".join(f"{name}: {wanted[name]} cannot be had: {why}" for name, why in strangers.items())
        return fail(seen, "end who has it, or name another port (--port, --admin-port) or address (--host)")
    told = [
        f"{address} is a running Triptych's ({taken[name][1]})" if name in taken else f"{address} is free"
        for name, address in wanted.items()
    ]
    return ok(", ".join([*told, ray]))


def can_listen(host: str, port: int) -> bool:
    return not refusal_of(host, port)


def refusal_of(host: str, port: int) -> str:
    """Why nobody could listen there now; empty if one could."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            return "it is taken" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
    return ""


def version_at(host: str, port: int) -> str:
    """Of the server of ours that answers there; empty where none does."""
    connection = HTTPConnection("127.0.0.1" if host in ("", "0.0.0.0") else host, port, timeout=_SECONDS)
    try:
        connection.request("GET", "/version")
        answer = connection.getresponse()
        text = answer.read(1024).decode(errors="replace")
    except (OSError, HTTPException):
        return ""
    finally:
        connection.close()
    return text.partition('"version":')[2].strip(' "}\n') if answer.status == 200 else ""


def look_interfaces(asked: Asked) -> Finding:
    status = psutil.net_if_stats()
    addresses = {
        name: [each.address for each in found if each.family == socket.AF_INET]
        for name, found in psutil.net_if_addrs().items()
        if name in status and status[name].isup
    }
    return judge_interfaces(addresses, own_address(), asked.settings.transfer.nixl_interface)


def judge_interfaces(addresses: Mapping[str, Sequence[str]], own: str, chosen: str) -> Finding:
    """addresses: IPv4, of interfaces that are up; own: what other nodes would reach; chosen: for NIXL, or empty"""
    outer = {name: found for name, found in addresses.items() if found and not _is_loopback(found[0])}
    seen = ", ".join(f"{name} {'/'.join(found)}" for name, found in outer.items()) or "no interface but loopback"
    named = [name.partition(":")[0] for name in chosen.split(",") if name]
    missing = [name for name in named if name not in addresses and ":" not in chosen]
    if missing:
        return fail(f"{seen}; no {missing[0]}", f"transfer.nixl_interface is {chosen!r}: name one that is up")
    if not outer:
        return ok(f"{seen}: a server of this node alone")
    seen = f"{seen}; other nodes reach it as {own or 'nobody knows'}"
    if own and ipaddress.ip_address(own).is_global:
        advice = "workers' ports ask nobody who he is: put nodes in a private network, or a firewall before them"
        return warn(f"{seen}, a public address", advice)
    if len(outer) > 1 and not named:
        return ok(f"{seen}, which NIXL goes by too; where it shall take another, name that in transfer.nixl_interface")
    return ok(seen)


def own_address() -> str:
    """Of the interface that leads elsewhere; empty where none does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANYWHERE)
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def look_access(asked: Asked) -> Finding:
    return judge_access(asked.settings.router)


def judge_access(router: RouterSettings) -> Finding:
    """Who may ask a server with these settings. Pure."""
    has_keys = bool(router.api_key or router.api_keys or router.api_keys_file)
    told = f"listens on {router.host}, {'with' if has_keys else 'without'} keys"
    if _is_loopback(router.host) or has_keys:
        return ok(told)
    advice = "set router.api_keys_file (triptych keys new NAME makes its lines), or listen on 127.0.0.1"
    return warn(f"{told}: whoever reaches it may ask", advice)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
