"""How fetching says no: one wording for each reason, so that none tells more than another."""

from triptych.errors import InvalidMedia, MediaTooLarge


def malformed() -> InvalidMedia:
    return InvalidMedia("the URL is malformed", code="invalid_image_url")


def failed(reason: str) -> InvalidMedia:
    return InvalidMedia(f"the image could not be fetched: {reason}", code="image_fetch_failed")


def not_allowed() -> InvalidMedia:
    """Whatever policy it was, and whatever is there."""
    told = "this server does not fetch images from there; send a data: URI, or its operator may allow it: docs/media.md"
    return InvalidMedia(told, code="media_url_not_allowed")


def no_such_root() -> InvalidMedia:
    """Of a file:// URL, whatever is there."""
    told = "this server reads no files from there; its operator may name their folder with --media-root"
    return InvalidMedia(told, code="media_url_not_allowed")


def too_late(seconds: float) -> InvalidMedia:
    return InvalidMedia(f"the image did not arrive within {seconds:g} seconds", code="image_fetch_timeout")


def too_large(most_bytes: int) -> MediaTooLarge:
    return MediaTooLarge(f"the image has more than {most_bytes} bytes (router.max_image_bytes)")
