"""Videos and recordings are the same where what the model sees and hears of them is."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from triptych.errors import InvalidRecord
from triptych.multimodal.clips import audio_value, frames_digest, video_options
from triptych.multimodal.digest import encode_canonical, item_digest, source_digest

SOURCE, FINGERPRINT = source_digest(b"film"), b"f" * 32
FRAMES = [np.full((4, 6, 3), level, dtype=np.uint8) for level in (0, 7, 9)]
SAMPLES = np.linspace(-1, 1, 160, dtype=np.float32)


def test_only_what_decides_about_frames_enters_a_video() -> None:
    metadata = {"frames_indices": [0, 8], "fps": 24, "duration": 2.5, "total_num_frames": 60}
    options = video_options(metadata)
    assert options == metadata
    assert video_options(metadata | {"codec": "h264", "title": object()}) == options
    digests = {item_digest(SOURCE, options, FINGERPRINT)}
    for change in ({"fps": 2}, {"frames_indices": [0, 9]}, {"frames_indices": [0]}, {"duration": 3}, {"fps": None}):
        digests.add(item_digest(SOURCE, video_options(metadata | change), FINGERPRINT))
    assert len(digests) == 6


def test_a_number_is_the_same_whatever_type_it_came_in() -> None:
    plain = video_options({"frames_indices": [0, 8], "fps": 24, "total_num_frames": 60})
    other = video_options({"frames_indices": np.array([0, 8]), "fps": np.float32(24), "total_num_frames": np.int64(60)})
    assert encode_canonical(plain) == encode_canonical(other)


@pytest.mark.parametrize(
    "metadata",
    [{"fps": "fast"}, {"frames_indices": 3}, {"frames_indices": [0.5]}, {"total_num_frames": float("inf")}],
)
def test_metadata_that_is_not_a_number_is_named(metadata: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord, match=f"video metadata has {next(iter(metadata))} "):
        video_options(metadata)


def unreadable() -> Iterator[npt.NDArray[np.uint8]]:
    raise AssertionError("a frame was looked at")
    yield


def test_frames_are_not_looked_at_where_the_source_is_known() -> None:
    assert frames_digest(SOURCE, unreadable()) == frames_digest(SOURCE, FRAMES)
    assert frames_digest(SOURCE, FRAMES) != frames_digest(source_digest(b"other"), FRAMES)


def test_without_a_source_every_frame_counts_in_its_order() -> None:
    base = frames_digest(None, FRAMES)
    assert base == frames_digest(None, iter(FRAMES))
    others = [FRAMES[:2], FRAMES[::-1], [*FRAMES, FRAMES[0]], [frame.reshape(6, 4, 3) for frame in FRAMES]]
    changed = [frame.copy() for frame in FRAMES]
    changed[2][3, 5, 2] ^= 1
    digests = {base, frames_digest(SOURCE, FRAMES), *(frames_digest(None, each) for each in [*others, changed])}
    assert len(digests) == 7


def test_a_video_without_source_and_frames_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="has no frames"):
        frames_digest(None, [])
    with pytest.raises(InvalidRecord, match="has 5 bytes, expected 32"):
        frames_digest(b"short", FRAMES)


def test_a_sampling_rate_is_part_of_a_recording() -> None:
    low, high = audio_value(SAMPLES, 16_000), audio_value(SAMPLES, 44_100)
    assert encode_canonical(low) != encode_canonical(high)
    assert encode_canonical(low) != encode_canonical(audio_value(SAMPLES.reshape(2, 80), 16_000))
    assert encode_canonical(low) != encode_canonical(audio_value(SAMPLES.astype(np.float64), 16_000))


def test_a_track_is_part_of_its_video() -> None:
    silent = frames_digest(SOURCE, FRAMES)
    tracks = [frames_digest(SOURCE, FRAMES, audio_value(SAMPLES, rate)) for rate in (16_000, 44_100)]
    assert len({silent, *tracks, frames_digest(None, FRAMES, audio_value(SAMPLES, 16_000))}) == 4


@pytest.mark.parametrize(("samples", "rate"), [(SAMPLES, 0), (SAMPLES, 16e3), (SAMPLES, True), (SAMPLES[:0], 16_000)])
def test_a_recording_without_rate_or_samples_is_refused(samples: npt.NDArray[Any], rate: Any) -> None:
    with pytest.raises(InvalidRecord):
        audio_value(samples, rate)
