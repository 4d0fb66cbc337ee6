"""The images of a request: from URLs to bytes, digests and header facts."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from triptych.config import RouterSettings
from triptych.errors import InvalidMedia, MediaTooLarge, TriptychError
from triptych.journey import Media
from triptych.multimodal.digest import source_digest
from triptych.multimodal.sniff import MediaHeader, glance, sniff
from triptych.router.api.messages import ImagePart, Message, images_of
from triptych.router.edge.budget import Holding
from triptych.router.media.data_uri import is_data_uri, read_data_uri
from triptych.router.media.fetch import MediaFetcher
from triptych.router.media.file_media import is_file_url
from triptych.router.media.names import MediaNames, Named, Names, Namespace, named_otherwise
from triptych.router.observe.timeline import Timeline
from triptych.router.tasks import all_or_first_error

_HASH_IN_THREAD_BYTES = 1 << 20  # a tenth of a millisecond; more threads make it dearer, and not faster below 4 MiB
_END_CHARACTERS = 64
_SNIFF_IN_THREAD_BYTES = 16 << 10  # a header may be made of as many pieces as fit


@dataclass(frozen=True, slots=True)
class Picture:
    """One image part of the request, and what its file's header says."""

    part: ImagePart
    media: Media
    header: MediaHeader


def at_image(error: TriptychError, index: int, part: ImagePart) -> TriptychError:
    """The error, told which image it is about."""
    error.item_index = index
    error.param = error.param or part.param
    return error


def waits_for_others(messages: Sequence[Message]) -> bool:
    """Whether an image has to be fetched."""
    return any(part.url and not is_data_uri(part.url) for part in images_of(messages))


class MediaLoader:
    """Loads every distinct source once, however often the request names it."""

    def __init__(self, settings: RouterSettings, fetcher: MediaFetcher, names: Names | None = None) -> None:
        """names: where they are kept; None: here, of this loader alone"""
        self._settings = settings
        self._fetcher = fetcher
        self._names = names or MediaNames(settings.media_names_bytes)

    async def load(
        self, parts: Sequence[ImagePart], holding: Holding, timeline: Timeline, space: Namespace = ("", "")
    ) -> list[Picture]:
        """In prompt order; media are numbered by their first mention. Raises what the first bad image fails with.

        space: whose names and URLs these are
        """
        sent = [index for index, part in enumerate(parts) if part.url or not part.uuid]
        room = _Room(self._settings, holding)
        places = _places(parts, sent)
        with timeline.measure("fetch"):
            data_by_place = await self._bytes(parts, sorted(set(places.values())), room, space[0], timeline)
        with timeline.measure("hash"):
            digest_by_place = {place: await _digest(data) for place, data in data_by_place.items()}
        by_digest: dict[bytes, Named] = {}
        by_uuid: dict[str, Named] = {}
        with timeline.measure("sniff"):
            for index, place in places.items():
                data, digest = data_by_place[place], digest_by_place[place]
                with _blaming(index, parts[index]):
                    if digest not in by_digest:
                        by_digest[digest] = Named(data, digest, await self._header(data, room))
                    self._name(parts[index].uuid, by_digest[digest], by_uuid, space)
        for index, part in enumerate(parts):
            with _blaming(index, part):
                if index not in places and part.uuid not in by_uuid:
                    named = by_uuid[part.uuid] = self._names.find(space, part.uuid)
                    if by_digest.setdefault(named.digest, named) is named:
                        room.take_bytes(len(named.data))
                        room.take_pixels(named.header)
        found = [
            by_digest[digest_by_place[places[index]]] if index in places else by_uuid[part.uuid]
            for index, part in enumerate(parts)
        ]
        return _numbered(parts, found)

    async def _bytes(
        self, parts: Sequence[ImagePart], places: Sequence[int], room: "_Room", tenant: str, timeline: Timeline
    ) -> dict[int, bytes]:
        """What every distinct URL holds, by the place of its first mention."""
        data_by_place: dict[int, bytes] = {}

        async def load(place: int) -> None:
            with _blaming(place, parts[place]):
                data = data_by_place[place] = await self._load(parts[place].url, tenant, timeline)
                room.take_bytes(len(data))

        if all(is_data_uri(parts[place].url) for place in places):  # nothing to wait for
            for place in places:
                await load(place)
        else:
            await all_or_first_error(load(place) for place in places)
        return data_by_place

    async def _load(self, url: str, tenant: str, timeline: Timeline) -> bytes:
        if is_data_uri(url):
            return await read_data_uri(url, self._settings.max_image_bytes)
        if is_file_url(url):
            return await self._fetcher.fetch(url, tenant)
        began = time.perf_counter()
        try:
            return await self._fetcher.fetch(url, tenant)
        finally:
            timeline.host_answered(began)

    async def _header(self, data: bytes, room: "_Room") -> MediaHeader:
        header = await _sniffed(data)
        most = self._settings.max_image_pixels
        if header.pixels > most:
            raise InvalidMedia(
                f"the image has {header.width}x{header.height} pixels, more than {most} (router.max_image_pixels)",
                code="image_too_large",
            )
        room.take_pixels(header)
        return header

    def _name(self, uuid: str, named: Named, by_uuid: dict[str, Named], space: Namespace) -> None:
        """by_uuid: what this request has named so far, whether or not there is room to remember it."""
        if uuid:
            if by_uuid.setdefault(uuid, named).digest != named.digest:
                raise named_otherwise(uuid)
            self._names.learn(space, uuid, named)


class _Room:
    """What a request's different images may come to together."""

    def __init__(self, settings: RouterSettings, holding: Holding) -> None:
        self._settings = settings
        self._holding = holding
        self._bytes = 0
        self._pixels = 0

    def take_bytes(self, count: int) -> None:
        """Raises MediaTooLarge; Overloaded where others hold too much."""
        self._bytes += count
        most = self._settings.max_request_media_bytes
        if self._bytes > most:
            raise MediaTooLarge(
                f"the images of the request have more than {most} bytes together (router.max_request_media_bytes)"
            )
        self._holding.take(count)

    def take_pixels(self, header: MediaHeader) -> None:
        """Raises InvalidMedia."""
        self._pixels += header.pixels
        most = self._settings.max_request_pixels
        if self._pixels > most:
            raise InvalidMedia(
                f"the images of the request have more than {most} pixels together (router.max_request_pixels)",
                code="image_too_large",
            )


@contextmanager
def _blaming(index: int, part: ImagePart) -> Iterator[None]:
    try:
        yield
    except (InvalidMedia, MediaTooLarge) as error:
        raise at_image(error, index, part) from None


def _numbered(parts: Sequence[ImagePart], found: Sequence[Named]) -> list[Picture]:
    media_by_digest: dict[bytes, Media] = {}
    for each in found:
        media_by_digest.setdefault(each.digest, Media(len(media_by_digest), each.data, each.digest))
    return [Picture(part, media_by_digest[each.digest], each.header) for part, each in zip(parts, found, strict=True)]


def _places(parts: Sequence[ImagePart], chosen: Sequence[int]) -> dict[int, int]:
    """For every part that is chosen, where its URL is mentioned first among them.

    URLs that hold megabytes are hashed only where length and end agree with another's: it takes longer than all else
    that is done to them here.
    """
    places: dict[int, int] = {}
    first_alike: dict[tuple[int, str], int] = {}
    place_by_url: dict[str, int] = {}
    for index in chosen:
        url = parts[index].url
        alike = first_alike.setdefault((len(url), url[-_END_CHARACTERS:]), index)
        if alike != index:
            place_by_url.setdefault(parts[alike].url, alike)
            alike = place_by_url.setdefault(url, index)
        places[index] = alike
    return places


async def _sniffed(data: bytes) -> MediaHeader:
    if len(data) < _SNIFF_IN_THREAD_BYTES:
        return sniff(data)
    header = glance(data)
    return header if header is not None else await asyncio.to_thread(sniff, data)


async def _digest(data: bytes) -> bytes:
    if len(data) < _HASH_IN_THREAD_BYTES:
        return source_digest(data)
    return await asyncio.to_thread(source_digest, data)
