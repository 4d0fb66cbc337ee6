import dataclasses
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.multimodal.parts import IMAGE_ID, image, masked, random_parts, text
from triptych.errors import InvalidRecord, LayoutMismatch
from triptych.journey import Grid, Layout, Modality, RopeRun, Run
from triptych.multimodal.layout import ItemPart, TextPart, lay_out, layout_digest, verify_layout


def test_parts_follow_one_another_in_the_prompt() -> None:
    layout = lay_out([text(3), image(2, 3), text(2, first=50), image(1, 1, media=1)])
    assert layout.token_ids.tolist() == [100, 101, 102, *[IMAGE_ID] * 6, 50, 51, IMAGE_ID]
    assert [item.span for item in layout.items] == [Run(3, 6), Run(11, 1)]
    assert [item.index for item in layout.items] == [0, 1]
    assert layout.num_rows == 7


def test_an_item_keeps_what_its_part_says() -> None:
    part = image(2, 3, media=4)
    (item,) = lay_out([part]).items
    shared = {field.name for field in dataclasses.fields(item)} & {field.name for field in dataclasses.fields(part)}
    assert shared >= {"digest", "modality", "width", "height", "grid", "encoder_tokens", "rows", "media"}
    assert all(getattr(item, name) == getattr(part, name) for name in shared)


def test_separators_inside_a_span_take_no_rows() -> None:
    layout = lay_out([text(2), masked((False, True, True, False, True, False))])
    assert layout.items[0].span == Run(2, 6)
    assert layout.items[0].runs == (Run(3, 2), Run(6, 1))


def test_an_id_that_looks_like_a_placeholder_stays_text() -> None:
    layout = lay_out([TextPart((1, IMAGE_ID, 2)), image(1, 2)])
    assert layout.items[0].runs == (Run(3, 2),)


def test_neighbouring_text_becomes_one_rope_run() -> None:
    layout = lay_out([text(2), text(0), text(3), masked((True, False)), text(1)])
    assert layout.rope == (RopeRun(8, (0, 0, 0)),)
    assert layout.rope_delta == 0


def test_text_goes_on_behind_the_longer_side_of_a_grid() -> None:
    layout = lay_out([text(4), image(2, 5), text(3)])
    assert layout.rope == (
        RopeRun(4, (0, 0, 0)),
        RopeRun(10, (4, 4, 4), Grid(1, 2, 5), 1),
        RopeRun(3, (9, 9, 9)),
    )
    assert layout.rope_delta == 12 - 17


def test_frames_with_text_between_them_get_a_grid_each() -> None:
    part = dataclasses.replace(masked((False, True, True, False, True, True)), rope_grid=Grid(2, 1, 2), rope_step_t=3)
    layout = lay_out([part, text(1)])
    assert layout.rope == (
        RopeRun(1, (0, 0, 0)),
        RopeRun(2, (1, 1, 1), Grid(1, 1, 2), 3),
        RopeRun(1, (3, 3, 3)),
        RopeRun(2, (4, 4, 4), Grid(1, 1, 2), 3),
        RopeRun(1, (6, 6, 6)),
    )


def test_a_grid_that_does_not_divide_into_its_runs_is_refused() -> None:
    part = dataclasses.replace(masked((True, False, True, True)), rope_grid=Grid(3, 1, 1))
    with pytest.raises(InvalidRecord, match="does not divide"):
        lay_out([part])


def test_atomic_parts_are_listed_with_their_whole_span() -> None:
    layout = lay_out([text(1), masked((False, True, False), atomic=True), image(1, 2), image(1, 1, atomic=True)])
    assert layout.atomic == (Run(1, 3), Run(6, 1))


def test_an_empty_prompt_has_a_layout() -> None:
    layout = lay_out([])
    assert (layout.num_tokens, layout.items, layout.rope, layout.rope_delta) == (0, (), (), 0)
    verify_layout(layout)


@pytest.mark.parametrize("bad", [-1, 1 << 31, 1 << 70])
def test_ids_outside_int32_are_refused(bad: int) -> None:
    with pytest.raises(InvalidRecord, match="token id"):
        lay_out([TextPart((1, bad))])


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 5},
        {"embed_mask": (True,) * 5},
        {"span_token_ids": (), "embed_mask": ()},
        {"rope_grid": Grid(1, 3, 3)},
    ],
)
def test_a_part_that_contradicts_itself_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        dataclasses.replace(image(2, 3), **change)


def test_token_ids_cannot_be_changed_under_the_digest() -> None:
    layout = lay_out([text(3)])
    with pytest.raises(ValueError, match="read-only"):
        layout.token_ids[0] = 1


def test_the_same_parts_have_the_same_digest() -> None:
    assert lay_out(random_parts(3)).digest == lay_out(random_parts(3)).digest


@pytest.mark.parametrize("seed", range(40))
def test_any_random_layout_verifies(seed: int) -> None:
    verify_layout(lay_out(random_parts(seed)))


def _changes_of(value: Any) -> list[Any]:
    """Every value that differs from this one in a single leaf, by a little."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = []
        for field in dataclasses.fields(value):
            for other in _changes_of(getattr(value, field.name)):
                changed.append(_altered(value, field.name, other))
        return changed
    if isinstance(value, tuple):
        swaps = [(*value[:i], other, *value[i + 1 :]) for i, entry in enumerate(value) for other in _changes_of(entry)]
        return [*swaps, value[:-1]] if value else []
    if isinstance(value, Modality):
        return [Modality.AUDIO]
    if isinstance(value, np.ndarray):
        return [np.concatenate([value[:i], value[i : i + 1] + 1, value[i + 1 :]]) for i in range(len(value))] + [
            value[1:]
        ]
    if isinstance(value, bytes):
        return [bytes([value[0] ^ 1]) + value[1:], value[:-1] + bytes([value[-1] ^ 128])]
    if value is None:
        return [Grid(1, 1, 1)]
    return [value + 1]


def _altered(value: Any, name: str, other: Any) -> Any:
    """A copy with one field changed, past the checks of its class: a corrupted message, not a built value."""
    copy = object.__new__(type(value))
    for field in dataclasses.fields(value):
        object.__setattr__(copy, field.name, other if field.name == name else getattr(value, field.name))
    return copy


@pytest.mark.parametrize("seed", range(12))
def test_a_change_of_any_field_is_caught(seed: int) -> None:
    layout = lay_out(random_parts(seed))
    changed: list[Layout] = _changes_of(layout)
    assert len(changed) > 4 + layout.num_tokens
    for other in changed:
        with pytest.raises(LayoutMismatch):
            verify_layout(other)


def test_a_grid_is_not_mistaken_for_text() -> None:
    layout = lay_out([text(1), image(1, 1)])
    without = [dataclasses.replace(run, grid=None) for run in layout.rope]
    assert layout_digest(layout.token_ids, layout.items, without, ()) != layout.digest


def test_a_mismatch_names_both_digests() -> None:
    layout = lay_out([text(3)])
    other = dataclasses.replace(layout, digest=bytes.fromhex("0badf00d") * 8)
    with pytest.raises(LayoutMismatch, match=rf"{layout.digest.hex()[:8]}.*0badf00d"):
        verify_layout(other)


def test_a_number_beyond_int64_is_refused() -> None:
    layout = lay_out([text(3), image(1, 1)])
    with pytest.raises(InvalidRecord, match="int64"):
        layout_digest(layout.token_ids, [dataclasses.replace(layout.items[0], width=1 << 70)], layout.rope, ())


def _fastest(call: Callable[[], object], tries: int = 5) -> float:
    seconds = []
    for _ in range(tries):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def test_a_long_prompt_with_many_images_is_laid_out_in_milliseconds() -> None:
    rng = random.Random(0)
    parts: list[TextPart | ItemPart] = []
    for media in range(64):
        parts += [text(rng.randrange(10, 20)), image(rng.randrange(8, 13), rng.randrange(8, 13), media=media)]
    parts.append(text(500))
    layout = lay_out(parts)
    assert 6000 < layout.num_tokens < 12000
    assert _fastest(lambda: lay_out(parts)) < 0.005
    assert _fastest(lambda: verify_layout(layout)) < 0.002
