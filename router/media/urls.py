"""Which URLs are fetched at all, judged by their text alone: before a name is resolved or a byte is sent."""

import ipaddress
import socket
from collections.abc import Sequence

import httpx

from triptych.config import RouterSettings
from triptych.errors import ConfigError, InvalidMedia
from triptych.router.media.address_policy import AddressPolicy
from triptych.router.media.errors import failed, malformed, not_allowed

LONGEST_URL = 8192
_PORTS = {"http": 80, "https": 443}


class HostList:
    """`example.com` is that host, `.example.com` it and everything below, `*.example.com` everything below."""

    def __init__(self, patterns: Sequence[str], setting: str = "router.allow_media_hosts") -> None:
        """An empty list lets everything through. Raises ConfigError for what is no host."""
        self._exact: set[str] = set()
        self._below: set[str] = set()
        for pattern in patterns:
            bare = pattern.removeprefix("*").removeprefix(".")
            try:
                host = _plain(httpx.URL(scheme="http", host=bare).raw_host)
            except (httpx.InvalidURL, ValueError):
                host = ""
            if not host or set(host) & set("*/@:%") - set(":" if host.count(":") > 1 else ""):
                raise ConfigError(f"{setting} has {pattern!r}, expected a host as example.com or .example.com")
            if not pattern.startswith("*"):
                self._exact.add(host)
            if bare != pattern:
                self._below.add("." + host)

    def allows(self, target: httpx.URL) -> bool:
        if not self._exact and not self._below:
            return True
        host = _plain(target.raw_host)
        return host in self._exact or any(host.endswith(tail) for tail in self._below)


class MediaURLs:
    """The operator's policy on URLs; addresses are judged when a name has been resolved (address_policy.py)."""

    def __init__(self, settings: RouterSettings) -> None:
        self._hosts = HostList(settings.allow_media_hosts)
        self._ports = frozenset(settings.allow_media_ports)
        self._by_proxy = bool(settings.media_proxy)
        self._addresses = AddressPolicy(settings.allow_media_cidrs, settings.allow_media_ports)

    def check(self, url: str, came_by_https: bool = False) -> httpx.URL:
        """came_by_https: a redirect must not lead from there to plain http. Raises InvalidMedia."""
        if len(url) > LONGEST_URL:
            raise not_allowed()
        target = _parsed(url)
        if target.scheme not in _PORTS or not target.host:
            raise InvalidMedia("the URL is neither http(s) nor a data URI", code="invalid_image_url")
        if target.userinfo or (came_by_https and target.scheme == "http"):
            raise not_allowed()
        if not self._hosts.allows(target) or (self._by_proxy and not self._goes_to_proxy(target)):
            raise not_allowed()
        return target

    def _goes_to_proxy(self, target: httpx.URL) -> bool:
        """What can be judged of a URL that somebody else will resolve.

        Numbers are read as leniently as any resolver reads them: 2130706433 is an address of theirs, too.
        """
        host, port = _plain(target.raw_host), target.port or _PORTS[target.scheme]
        address = _numeric(host)
        if address is not None:
            return self._addresses.allows(address, port)
        if host == "localhost" or host.endswith(".localhost"):
            return self._addresses.allows("127.0.0.1", port)
        return not self._ports or port in self._ports


def joined(base: httpx.URL, location: str) -> str:
    """Where a redirect leads. Raises InvalidMedia."""
    try:
        return str(base.join(location))
    except (httpx.InvalidURL, ValueError):
        raise failed("it redirects to a malformed URL") from None


def _parsed(url: str) -> httpx.URL:
    try:
        target = httpx.URL(url)
        # Some of what it is made of is only looked at when asked for: names that IDNA does not know, say.
        port, _ = target.port, (target.host, target.netloc, target.raw_path, target.userinfo)
    except (httpx.InvalidURL, ValueError):
        raise malformed() from None
    if port is not None and not 0 < port < 65536:
        raise malformed()
    return target


def _plain(raw_host: bytes) -> str:
    """In IDNA, lower case, and without the dot that ends a full name."""
    return raw_host.decode("ascii").lower().rstrip(".")


def _numeric(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return None
