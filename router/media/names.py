"""Images that clients have named, so that a later request may send the name alone.

A name belongs to one tenant and one cache salt: nobody can ask for, or find out about, what somebody else has named.
It stands for the bytes it came with: the same name with other bytes is refused, since one of the two is a mistake.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from triptych.errors import InvalidMedia
from triptych.multimodal.header import MediaHeader

Namespace: TypeAlias = tuple[str, str]  # tenant, cache salt
ENTRY_BYTES = 1024  # what an entry takes beside its image


@dataclass(frozen=True, slots=True)
class Named:
    data: bytes
    digest: bytes
    header: MediaHeader


class Names(Protocol):
    """What a router knows of them."""

    def find(self, space: Namespace, uuid: str) -> Named:
        """Raises InvalidMedia for a name that was never heard, or is forgotten by now: both read the same."""

    def learn(self, space: Namespace, uuid: str, named: Named) -> None:
        """Raises InvalidMedia where the name is known to stand for another image."""


class MediaNames:
    """Of one router. Holds the bytes, for any encoder may need them again; the least recently used go first."""

    def __init__(self, limit_bytes: int, changed: Callable[[int], None] = lambda held: None) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._changed = changed
        self._by_name: OrderedDict[tuple[Namespace, str], Named] = OrderedDict()

    def find(self, space: Namespace, uuid: str) -> Named:
        """Raises InvalidMedia for a name that was never heard, or is forgotten by now: both read the same."""
        named = self._by_name.get((space, uuid))
        if named is None:
            raise unknown_name(uuid)
        self._by_name.move_to_end((space, uuid))
        return named

    def learn(self, space: Namespace, uuid: str, named: Named) -> None:
        """Raises InvalidMedia where the name is known to stand for another image."""
        known = self._by_name.get((space, uuid))
        if known is not None:
            self._by_name.move_to_end((space, uuid))
            if known.digest != named.digest:
                raise named_otherwise(uuid)
            return
        size = _size(uuid, named)
        if size > self.limit_bytes:
            return
        while self.held_bytes + size > self.limit_bytes:
            (_, name), oldest = self._by_name.popitem(last=False)
            self.held_bytes -= _size(name, oldest)
        self._by_name[space, uuid] = named
        self.held_bytes += size
        self._changed(self.held_bytes)


def unknown_name(uuid: str) -> InvalidMedia:
    return InvalidMedia(
        f"no image is known by the uuid {uuid[:64]!r} (any more); send the image again with it",
        code="image_uuid_unknown",
    )


def named_otherwise(uuid: str) -> InvalidMedia:
    return InvalidMedia(
        f"the uuid {uuid[:64]!r} came with another image before; give this one a uuid of its own",
        code="image_uuid_mismatch",
    )


def _size(uuid: str, named: Named) -> int:
    return len(named.data) + len(uuid) + ENTRY_BYTES
