"""Images from http(s) URLs of strangers, without becoming their way into this network.

A name is resolved once; unless every address it has may be reached, nothing is dialled; what is dialled is one of
those very addresses, while Host and SNI keep the name. Each redirect is a URL like the first. Messages never tell an
address, nor whether something listens inside: everything that is not allowed reads the same.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import certifi
import httpcore
import httpx

from triptych.config import RouterSettings
from triptych.errors import InvalidMedia, MediaTooLarge
from triptych.router.address_policy import AddressPolicy

logger = logging.getLogger(__name__)

USER_AGENT = b"triptych-media-fetcher/1"
CONCURRENT_FETCHES = 64
LONGEST_URL = 8192
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = ((b"User-Agent", USER_AGENT), (b"Accept", b"image/*"), (b"Accept-Encoding", b"identity"))
_MOST_ADDRESSES = 4  # dialled of one name
_ADDRESS_SECONDS = 2.0  # before the next one is dialled


class MediaFetcher:
    """Fetches with limits on bytes, time, redirects, ports and addresses; keeps no cookies, uses no proxy."""

    def __init__(self, settings: RouterSettings, tls: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(CONCURRENT_FETCHES)
        self._resolver = ThreadPoolExecutor(16, thread_name_prefix="media-dns")
        # One connection per fetch: a kept one could outlive what its name resolves to.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(cafile=certifi.where()),
            max_connections=2 * CONCURRENT_FETCHES,
            max_keepalive_connections=0,
            network_backend=_PinnedNetwork(
                AddressPolicy(settings.allow_media_cidrs, settings.allow_media_ports), self._resolver
            ),
        )

    async def close(self) -> None:
        await self._pool.aclose()
        self._resolver.shutdown(wait=False, cancel_futures=True)

    async def fetch(self, url: str) -> bytes:
        """The body behind a URL. Raises InvalidMedia with a code that tells why not, MediaTooLarge."""
        try:
            async with self._slots, asyncio.timeout(self._settings.fetch_timeout_seconds):
                return await self._follow(url)
        except TimeoutError:
            seconds = self._settings.fetch_timeout_seconds
            raise InvalidMedia(
                f"the image did not arrive within {seconds:g} seconds", code="image_fetch_timeout"
            ) from None

    async def _follow(self, url: str) -> bytes:
        came_by_https = False
        for _ in range(self._settings.max_redirects + 1):
            target = self._checked(url, came_by_https)
            came_by_https = target.scheme == "https"
            body = await self._get_with_retry(target)
            if isinstance(body, bytes):
                return body
            url = _joined(target, body.location)
        raise _failed(f"more than {self._settings.max_redirects} redirects")

    def _checked(self, url: str, came_by_https: bool) -> httpx.URL:
        if len(url) > LONGEST_URL:
            raise _not_allowed()
        target = _parsed(url)
        if target.scheme not in ("http", "https") or not target.host:
            raise InvalidMedia("the URL is neither http(s) nor a data URI", code="invalid_image_url")
        if target.userinfo or (came_by_https and target.scheme == "http"):
            raise _not_allowed()
        return target

    async def _get_with_retry(self, target: httpx.URL) -> "bytes | _Redirect":
        try:
            return await self._get(target)
        except (httpcore.NetworkError, httpcore.ProtocolError):
            pass  # once more, within the same deadline
        try:
            return await self._get(target)
        except (httpcore.NetworkError, httpcore.ProtocolError):
            raise _failed("the connection failed") from None

    async def _get(self, target: httpx.URL) -> "bytes | _Redirect":
        url = httpcore.URL(scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path)
        sent = [(b"Host", target.netloc), *_HEADERS]
        async with self._pool.stream("GET", url, headers=sent) as response:
            headers = {name.lower(): value for name, value in response.headers}
            if response.status in _REDIRECTS and b"location" in headers:
                return _Redirect(headers[b"location"].decode("latin-1"))
            if response.status != 200:
                raise _failed(f"its server answered {response.status}")
            if headers.get(b"content-encoding", b"identity").lower() != b"identity":
                raise _failed("its server compressed it unasked")
            return await self._read(response, headers.get(b"content-length", b""))

    async def _read(self, response: httpcore.Response, declared: bytes) -> bytes:
        most = self._settings.max_image_bytes
        if declared.isdigit() and int(declared) > most:
            raise _too_large(most)
        body = bytearray()
        async for piece in response.aiter_stream():
            body += piece
            if len(body) > most:
                raise _too_large(most)
        return bytes(body)


@dataclass(frozen=True, slots=True)
class _Redirect:
    location: str


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
            raise _not_allowed()
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
            raise _failed("its host is not known") from None
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _parsed(url: str) -> httpx.URL:
    try:
        target = httpx.URL(url)
        # Some of what it is made of is only looked at when asked for: names that IDNA does not know, say.
        port, _ = target.port, (target.host, target.netloc, target.raw_path, target.userinfo)
    except (httpx.InvalidURL, ValueError):
        raise _malformed() from None
    if port is not None and not 0 < port < 65536:
        raise _malformed()
    return target


def _joined(base: httpx.URL, location: str) -> str:
    try:
        return str(base.join(location))
    except (httpx.InvalidURL, ValueError):
        raise _failed("it redirects to a malformed URL") from None


def _malformed() -> InvalidMedia:
    return InvalidMedia("the URL is malformed", code="invalid_image_url")


def _failed(reason: str) -> InvalidMedia:
    return InvalidMedia(f"the image could not be fetched: {reason}", code="image_fetch_failed")


def _not_allowed() -> InvalidMedia:
    return InvalidMedia("this server does not fetch images from there", code="media_url_not_allowed")


def _too_large(most: int) -> MediaTooLarge:
    return MediaTooLarge(f"the image has more than {most} bytes")
