"""Images from URLs of strangers, without becoming their way into this network.

A name is resolved once; unless every address it has may be reached, nothing is dialled; what is dialled is one of
those very addresses, while Host and SNI keep the name. Each redirect is a URL like the first. Messages never tell an
address, nor whether something listens inside: everything that is not allowed reads the same.

A tenant's requests for one URL at the same moment are one fetch; what its server lets us keep may serve later ones.
"""

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpcore
import httpx

from triptych.config import RouterSettings
from triptych.errors import TriptychError
from triptych.metrics import RouterMetrics
from triptych.router.edge.budget import ByteBudget
from triptych.router.media.cache import Kept, MediaCache
from triptych.router.media.errors import failed, too_large, too_late
from triptych.router.media.file_media import FileMedia, is_file_url
from triptych.router.media.flights import Flights
from triptych.router.media.freshness import Freshness
from triptych.router.media.network import media_pool
from triptych.router.media.slots import FetchSlots
from triptych.router.media.urls import MediaURLs, joined

USER_AGENT = b"triptych-media-fetcher/1"
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_HEADERS = ((b"User-Agent", USER_AGENT), (b"Accept", b"image/*"), (b"Accept-Encoding", b"identity"))
# ssl's own, too: httpcore names its errors of the handshake, not those of reading behind it.
_BROKEN = (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, ssl.SSLError)


class MediaFetcher:
    """Fetches with limits on bytes, time, redirects, hosts, ports and addresses; keeps no cookies, and uses no proxy
    but the one in the settings.
    """

    def __init__(
        self,
        settings: RouterSettings,
        tls: ssl.SSLContext | None = None,
        *,
        budget: ByteBudget | None = None,
        metrics: RouterMetrics | None = None,
    ) -> None:
        """budget: what is being fetched counts there until it is handed over. Raises ConfigError."""
        self._settings = settings
        self._urls = MediaURLs(settings)
        self._files = FileMedia(settings)
        self._slots = FetchSlots(settings.concurrent_fetches, settings.fetches_per_host)
        self._flights: Flights[tuple[str, str], bytes] = Flights(settings.fetch_timeout_seconds)
        self._resolver = ThreadPoolExecutor(16, thread_name_prefix="media-dns")
        self._pool = media_pool(settings, self._resolver, tls)
        self._budget = budget or ByteBudget(settings.media_budget_bytes)
        self._metrics = metrics or RouterMetrics()
        self._cache = MediaCache(
            settings.media_cache_bytes, lambda held: self._metrics.set("triptych:media_cache_bytes", held)
        )

    @property
    def num_running(self) -> int:
        """Fetches under way, each for one requester or several."""
        return self._flights.num_running

    async def close(self) -> None:
        await self._flights.close()
        await self._pool.aclose()
        self._resolver.shutdown(wait=False, cancel_futures=True)
        self._files.close()

    async def fetch(self, url: str, tenant: str = "") -> bytes:
        """What is behind a URL. Raises InvalidMedia with a code that tells why not, MediaTooLarge, Overloaded."""
        try:
            if is_file_url(url):
                return self._counted("file", await self._files.read(url))
            key = (tenant, _address(self._urls.check(url)))
            joins = self._flights.joins(key)
            async with asyncio.timeout(self._settings.fetch_timeout_seconds):
                data = await self._flights.share(key, lambda: self._follow(url, tenant))
            return self._counted("joined", data) if joins else data
        except TimeoutError:
            self._counted("failed", b"")
            raise too_late(self._settings.fetch_timeout_seconds) from None
        except TriptychError:
            self._counted("failed", b"")
            raise

    def _counted(self, outcome: str, data: bytes) -> bytes:
        self._metrics.count("triptych:media_fetches_total", outcome=outcome)
        return data

    async def _follow(self, url: str, tenant: str) -> bytes:
        came_by_https = False
        for _ in range(self._settings.max_redirects + 1):
            target = self._urls.check(url, came_by_https)
            came_by_https = target.scheme == "https"
            body = await self._ask(target, tenant)
            if isinstance(body, bytes):
                return body
            url = joined(target, body.location)
        raise failed(f"more than {self._settings.max_redirects} redirects")

    async def _ask(self, target: httpx.URL, tenant: str) -> "bytes | _Redirect":
        """One hop: from what is kept, or from its server."""
        address = _address(target)
        kept = self._cache.find(tenant, address)
        if kept is not None and kept.is_fresh(_now()):
            return self._counted("kept", kept.data)
        async with self._slots.of(target.host):
            answer = await self._get_with_retry(target, kept)
        if isinstance(answer, _Redirect):
            return answer
        self._cache.put(tenant, address, answer.data, answer.freshness, _now())
        return self._counted("renewed" if answer.was_kept else "fetched", answer.data)

    async def _get_with_retry(self, target: httpx.URL, kept: Kept | None) -> "_Body | _Redirect":
        try:
            return await self._get(target, kept)
        except _BROKEN:
            pass  # once more, within the same deadline
        try:
            return await self._get(target, kept)
        except _BROKEN:
            raise failed("the connection failed") from None

    async def _get(self, target: httpx.URL, kept: Kept | None) -> "_Body | _Redirect":
        url = httpcore.URL(scheme=target.raw_scheme, host=target.raw_host, port=target.port, target=target.raw_path)
        conditions = kept.freshness.conditions if kept is not None else ()
        sent = [(b"Host", target.netloc), *_HEADERS, *conditions]
        async with self._pool.stream("GET", url, headers=sent) as response:
            headers = _headers(response.headers)
            if response.status in _REDIRECTS and b"location" in headers:
                return _Redirect(headers[b"location"].decode("latin-1"))
            if response.status == 304 and kept is not None and conditions:
                return _Body(kept.data, kept.freshness.renewed(headers), was_kept=True)
            if response.status != 200:
                raise failed(f"its server answered {response.status}")
            if headers.get(b"content-encoding", b"identity").lower() != b"identity":
                raise failed("its server compressed it unasked")
            data = await self._read(response, headers.get(b"content-length", b""))
            return _Body(data, Freshness.of(headers))

    async def _read(self, response: httpcore.Response, declared: bytes) -> bytes:
        most = self._settings.max_image_bytes
        length = int(declared[:20]) if declared.isdigit() else None
        if length is not None and length > most:
            raise too_large(most)
        body = bytearray()
        with self._budget.holding() as holding:
            holding.take(length or 0)
            async for piece in response.aiter_stream():
                body += piece
                if len(body) > most:
                    raise too_large(most)
                if length is None:
                    holding.take(len(piece))
        return bytes(body)


@dataclass(frozen=True, slots=True)
class _Redirect:
    location: str


@dataclass(frozen=True, slots=True)
class _Body:
    data: bytes
    freshness: Freshness
    was_kept: bool = False


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Names in lower case, several of a name joined; of a redirect's target the first counts."""
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        name = name.lower()
        if name not in headers:
            headers[name] = value
        elif name != b"location":
            headers[name] += b"," + value
    return headers


def _address(target: httpx.URL) -> str:
    """The URL as its server sees it: without the fragment, in one spelling."""
    return (target.raw_scheme + b"://" + target.netloc + target.raw_path).decode("ascii")


def _now() -> float:
    return asyncio.get_running_loop().time()
