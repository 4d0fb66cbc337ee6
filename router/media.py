"""The images of a request: from URLs to bytes, digests and header facts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.config import RouterSettings
from triptych.errors import InvalidMedia, MediaTooLarge, TriptychError
from triptych.journey import Media
from triptych.multimodal.digest import source_digest
from triptych.multimodal.sniff import MediaHeader, glance, sniff
from triptych.router.budget import Holding
from triptych.router.data_uri import is_data_uri, read_data_uri
from triptych.router.fetch import MediaFetcher
from triptych.router.messages import ImagePart
from triptych.router.tasks import all_or_first_error
from triptych.router.timeline import Timeline

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


class MediaLoader:
    """Loads every distinct source once, however often the request names it."""

    def __init__(self, settings: RouterSettings, fetcher: MediaFetcher) -> None:
        self._settings = settings
        self._fetcher = fetcher

    async def load(self, parts: Sequence[ImagePart], holding: Holding, timeline: Timeline) -> list[Picture]:
        """In prompt order; media are numbered by their first mention. Raises what the first bad image fails with."""
        places = _places(parts)
        with timeline.measure("fetch"):
            data_by_place = await self._bytes(parts, places, holding)
        with timeline.measure("hash"):
            digest_by_place = {place: await _digest(data) for place, data in data_by_place.items()}
        known: dict[bytes, tuple[Media, MediaHeader]] = {}
        with timeline.measure("sniff"):
            for index, place in enumerate(places):
                digest = digest_by_place[place]
                if digest not in known:
                    media = Media(len(known), data_by_place[place], digest)
                    known[digest] = (media, await self._header(index, parts[index], media))
        return [Picture(part, *known[digest_by_place[place]]) for part, place in zip(parts, places, strict=True)]

    async def _bytes(self, parts: Sequence[ImagePart], places: Sequence[int], holding: Holding) -> dict[int, bytes]:
        """What every distinct URL holds, by the place of its first mention."""
        data_by_place: dict[int, bytes] = {}

        async def load(place: int) -> None:
            try:
                data_by_place[place] = await self._load(parts[place].url)
                holding.take(len(data_by_place[place]))
            except (InvalidMedia, MediaTooLarge) as error:
                raise at_image(error, place, parts[place]) from None

        distinct = sorted(set(places))
        if all(is_data_uri(parts[place].url) for place in distinct):  # nothing to wait for
            for place in distinct:
                await load(place)
        else:
            await all_or_first_error(load(place) for place in distinct)
        return data_by_place

    async def _load(self, url: str) -> bytes:
        if is_data_uri(url):
            return await read_data_uri(url, self._settings.max_image_bytes)
        return await self._fetcher.fetch(url)

    async def _header(self, index: int, part: ImagePart, media: Media) -> MediaHeader:
        try:
            header = await _sniffed(media.data)
            most = self._settings.max_image_pixels
            if header.pixels > most:
                raise InvalidMedia(
                    f"the image has {header.width}x{header.height} pixels, more than {most} (router.max_image_pixels)",
                    code="image_too_large",
                )
            return header
        except (InvalidMedia, MediaTooLarge) as error:
            raise at_image(error, index, part) from None


def _places(parts: Sequence[ImagePart]) -> list[int]:
    """For every part, where its URL is mentioned first.

    URLs that hold megabytes are hashed only where length and end agree with another's: it takes longer than all else
    that is done to them here.
    """
    places: list[int] = []
    first_alike: dict[tuple[int, str], int] = {}
    place_by_url: dict[str, int] = {}
    for index, part in enumerate(parts):
        alike = first_alike.setdefault((len(part.url), part.url[-_END_CHARACTERS:]), index)
        if alike != index:
            place_by_url.setdefault(parts[alike].url, alike)
            alike = place_by_url.setdefault(part.url, index)
        places.append(alike)
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
