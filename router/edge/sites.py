"""Which web pages may have somebody's browser ask a server that wants no key.

A browser reaches a loopback address for every page that it shows, wherever the page is from, and none of them needs a
key here. What they send tells them apart: a page cannot forge `Origin` and `Sec-Fetch-Site`, and one whose name has
been made to lead to this machine (DNS rebinding) still says that name as `Host`. Clients that are no browsers send none
of the first two, and name the address that they were given.
"""

import ipaddress

from starlette.types import Scope

from triptych.config import RouterSettings
from triptych.errors import HostNotAllowed, OriginNotAllowed

OF_ADMIN_PORT = "of_admin_port"  # in the scope's state: whether the request came by the operators' port

_READ = frozenset({b"host", b"origin", b"sec-fetch-site"})
_CHANGING_NOTHING = frozenset({"GET", "HEAD", "OPTIONS"})  # and no page reads the answer, unless CORS lets it
_OURS = frozenset({"same-origin", "none"})  # none: somebody's own doing, or an extension's of the browser
_ANY = "*"


class Sites:
    """Of one server; for requests of servers without keys."""

    def __init__(self, settings: RouterSettings) -> None:
        self._origins = frozenset(settings.cors_origins)
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._is_loopback = {False: is_loopback(settings.host), True: is_loopback(settings.admin_host)}

    def check(self, scope: Scope) -> None:
        """Raises HostNotAllowed, OriginNotAllowed."""
        told = {name: value.decode("latin-1") for name, value in scope["headers"] if name in _READ}
        host = told.get(b"host", "").lower()
        if self._is_loopback[bool(scope["state"].get(OF_ADMIN_PORT))] and not self._is_known(host):
            raise HostNotAllowed(
                f"this server wants no key and answers on loopback alone, not as {host[:100]!r}: name it in"
                " router.allowed_hosts, or give the server keys"
            )
        origin = told.get(b"origin", "")
        if scope["method"] not in _CHANGING_NOTHING and not self._is_ours(origin, told.get(b"sec-fetch-site"), host):
            raise OriginNotAllowed(
                f"this server wants no key and answers no pages of {origin[:100] or 'other sites'!r}: name the origin"
                " in router.cors_origins, or give the server keys"
            )

    def _is_known(self, host: str) -> bool:
        """Whether it is none that a stranger may have made to lead here: those have a dot, and end in a letter."""
        name = name_of(host)
        if not name or _ANY in self._hosts or name in self._hosts:
            return True
        return "." not in name or name.endswith(".localhost") or _is_address(name)

    def _is_ours(self, origin: str, site: str | None, host: str) -> bool:
        """site: what newer browsers tell, where the page has come by TLS or from this machine"""
        if origin in self._origins or _ANY in self._origins:
            return True
        if site is not None:
            return site in _OURS
        return not origin or origin.partition("://")[2].lower() == host


def name_of(host: str) -> str:
    """Of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches what listens there."""
    if host == "localhost":
        return True
    return _is_address(host) and ipaddress.ip_address(host).is_loopback


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
