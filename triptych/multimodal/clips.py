"""What makes two videos, or two recordings, the same to the cluster.

Nothing here decodes: frames and samples come from whoever has them. Where the source's bytes are known, their digest
stands for all of it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy.typing as npt
from blake3 import blake3

from triptych.errors import InvalidRecord
from triptych.journey import DIGEST_BYTES
from triptych.multimodal.digest import OptionValue, encode_canonical
from triptych.multimodal.values import ArrayValue, array_value

FRAMES_DOMAIN = "triptych.frames.v1"


def _whole(value: Any) -> int:
    if value != int(value):
        raise ValueError
    return int(value)


# What decides which frames the model sees, and at what times. A number is the same number whatever type it came in.
_OPTIONS: Mapping[str, Callable[[Any], OptionValue]] = {
    "frames_indices": lambda indices: [_whole(index) for index in indices],
    "fps": float,
    "duration": float,
    "total_num_frames": _whole,
}


def video_options(metadata: Mapping[str, Any]) -> dict[str, OptionValue]:
    """Of a video's metadata what the rows depend on, as options of `item_digest`; other keys are left out.

    Raises InvalidRecord for a value that is not a number where one is expected.
    """
    chosen: dict[str, OptionValue] = {}
    for name, read in _OPTIONS.items():
        if metadata.get(name) is None:
            continue
        try:
            chosen[name] = read(metadata[name])
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRecord(f"video metadata has {name} {metadata[name]!r:.80}, expected numbers") from error
    return chosen


def audio_value(samples: ArrayValue | npt.NDArray[Any], rate: int) -> OptionValue:
    """A recording as a value: samples [time] or [channels, time], and how many of them make a second."""
    if isinstance(rate, bool) or not isinstance(rate, int) or rate <= 0:
        raise InvalidRecord(f"sampling rate is {rate!r}, expected whole samples per second above 0")
    value = samples if isinstance(samples, ArrayValue) else array_value(samples)
    if not value.shape or 0 in value.shape:
        raise InvalidRecord(f"audio has samples of shape {value.shape}, expected at least one sample")
    return {"samples": value, "rate": rate}


def frames_digest(source: bytes | None, frames: Iterable[OptionValue], audio: "OptionValue | None" = None) -> bytes:
    """32 bytes that name a video's content: what `item_digest` takes as its source digest.

    source: digest of the source bytes, 32 bytes; where it is known no frame is looked at
    frames: arrays or images, in order
    audio:  the track, as `audio_value` makes it; none where the model does not hear it
    Raises InvalidRecord where there is neither a source digest nor a frame.
    """
    if source is not None and len(source) != DIGEST_BYTES:
        raise InvalidRecord(f"source digest has {len(source)} bytes, expected {DIGEST_BYTES}")
    # One frame at a time: a minute of decoded video is gigabytes.
    content: OptionValue = source if source is not None else [_digest(frame) for frame in frames]
    if not content:
        raise InvalidRecord("a video without source digest has no frames, expected at least one")
    return _digest([FRAMES_DOMAIN, content] if audio is None else [FRAMES_DOMAIN, content, audio])


def _digest(value: OptionValue) -> bytes:
    return bytes(blake3(encode_canonical(value)).digest())
