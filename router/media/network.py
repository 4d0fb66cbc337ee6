"""The way out for fetched media: straight to an address that has been judged, or by the operator's proxy."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import certifi
import httpcore
import httpx

from triptych.config import RouterSettings
from triptych.errors import ConfigError
from triptych.router.media.address_policy import AddressPolicy
from triptych.router.media.errors import failed, not_allowed

logger = logging.getLogger(__name__)

_MOST_ADDRESSES = 4  # dialled of one name
_ADDRESS_SECONDS = 2.0  # before the next one is dialled


def media_pool(
    settings: RouterSettings, resolver: ThreadPoolExecutor, tls: ssl.SSLContext | None = None
) -> httpcore.AsyncConnectionPool:
    """Connections for one fetch each: a kept one could outlive what its name resolves to. Raises ConfigError."""
    tls = tls or ssl.create_default_context(cafile=certifi.where())
    most = 2 * settings.concurrent_fetches
    if settings.media_proxy:
        proxy, auth = _proxy(settings.media_proxy)
        return httpcore.AsyncHTTPProxy(
            proxy_url=proxy, proxy_auth=auth, ssl_context=tls, max_connections=most, max_keepalive_connections=0
        )
    policy = AddressPolicy(settings.allow_media_cidrs, settings.allow_media_ports)
    return httpcore.AsyncConnectionPool(
        ssl_context=tls,
        max_connections=most,
        max_keepalive_connections=0,
        network_backend=_PinnedNetwork(policy, resolver),
    )


class _PinnedNetwork(httpcore.AsyncNetworkBackend):
    """Resolves a name once, judges all of its addresses, and dials one of them; TLS above still sees the name."""

    def __init__(self, policy: AddressPolicy, resolver: ThreadPoolExecutor) -> None:
        self._policy = policy
        self._resolver = resolver
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        if not all(self._policy.allows(address, port) for address in addresses):
            # The operator is told what the client must not learn.
            logger.info("refused to fetch media from %s:%d: neither public with a usual port nor opened", host, port)
            raise not_allowed()
        *others, last = addresses[:_MOST_ADDRESSES]
        for address in others:
            try:
                return await self._network.connect_tcp(address, port, _ADDRESS_SECONDS, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _resolve(self, host: str, port: int) -> list[str]:
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                self._resolver, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError):
            raise failed("its host is not known") from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _proxy(url: str) -> tuple[httpcore.URL, tuple[str, str] | None]:
    """Where it listens, and name and password for it. The setting may hold a password, so no message repeats it."""
    try:
        proxy = httpx.URL(url)
        sound = proxy.scheme == "http" and bool(proxy.host) and proxy.raw_path in (b"", b"/")
        auth = (proxy.username, proxy.password) if proxy.userinfo else None
    except (httpx.InvalidURL, ValueError):
        sound = False
    if not sound:
        raise ConfigError("router.media_proxy is not a proxy's URL, expected http://host:port")
    return httpcore.URL(scheme=b"http", host=proxy.raw_host, port=proxy.port or 80, target=b"/"), auth
