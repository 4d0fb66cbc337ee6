"""Fetched bodies kept for the next request that names their URL. No sockets, and no clock of its own."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from triptych.router.media.freshness import Freshness

_ENTRY_BYTES = 1024  # what an entry takes beside its body and URL


@dataclass(frozen=True, slots=True)
class Kept:
    data: bytes
    freshness: Freshness
    fresh_until: float

    def is_fresh(self, now: float) -> bool:
        return now < self.fresh_until


class MediaCache:
    """By tenant and URL, the least recently used goes first. What an image *is* its digest says, never its URL."""

    def __init__(self, limit_bytes: int, changed: Callable[[int], None] = lambda held: None) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._changed = changed
        self._by_key: OrderedDict[tuple[str, str], Kept] = OrderedDict()

    def find(self, tenant: str, url: str) -> Kept | None:
        kept = self._by_key.get((tenant, url))
        if kept is not None:
            self._by_key.move_to_end((tenant, url))
        return kept

    def put(self, tenant: str, url: str, data: bytes, freshness: Freshness, now: float) -> None:
        """Takes the place of what was kept of this URL, or removes it, where the new body may not be kept."""
        self._drop((tenant, url))
        kept = Kept(data, freshness, now + freshness.fresh_seconds)
        size = _size(url, kept)
        if freshness.may_keep and size <= self.limit_bytes:
            while self.held_bytes + size > self.limit_bytes:
                self._drop(next(iter(self._by_key)))
            self._by_key[tenant, url] = kept
            self.held_bytes += size
        self._changed(self.held_bytes)

    def _drop(self, key: tuple[str, str]) -> None:
        kept = self._by_key.pop(key, None)
        if kept is not None:
            self.held_bytes -= _size(key[1], kept)


def _size(url: str, kept: Kept) -> int:
    return len(kept.data) + len(url) + _ENTRY_BYTES
