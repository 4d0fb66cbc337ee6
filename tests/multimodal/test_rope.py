import dataclasses
import random

import numpy as np
import pytest
import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

from tests.multimodal.parts import image, random_parts, text
from triptych.errors import InvalidRecord
from triptych.journey import Grid, Int64Array, Layout, Modality
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.multimodal.rope import rope_positions

MERGE = 2


@pytest.fixture(scope="module")
def reference() -> Qwen2_5_VLModel:
    """The reference's own rope index; it needs no weights."""
    config = Qwen2_5_VLConfig(
        text_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32},
        vision_config={"hidden_size": 16, "depth": 1, "num_heads": 2, "spatial_merge_size": MERGE},
    )
    with torch.device("meta"):
        return Qwen2_5_VLModel(config)


def _reference_positions(model: Qwen2_5_VLModel, layout: Layout, kind: int = 1) -> tuple[Int64Array, int]:
    types = torch.zeros(1, layout.num_tokens, dtype=torch.int32)
    for item in layout.items:
        types[0, item.span.start : item.span.end] = kind
    grids = torch.tensor([[item.grid.t, item.grid.h, item.grid.w] for item in layout.items]).reshape(-1, 3)
    positions, delta = model.get_rope_index(
        torch.from_numpy(layout.token_ids.astype(np.int64))[None],
        types,
        image_grid_thw=grids if kind == 1 else None,
        video_grid_thw=grids if kind == 2 else None,
    )
    return positions[:, 0].numpy(), int(delta)


def _mixed_parts(seed: int) -> list[TextPart | ItemPart]:
    """Text and images by turns; between two images there is text, as in every template of the family."""
    rng = random.Random(seed)
    parts: list[TextPart | ItemPart] = [text(rng.randrange(1, 9))] if rng.random() < 0.7 else []
    for _ in range(rng.randrange(1, 7)):
        parts += [image(rng.randrange(1, 9), rng.randrange(1, 9)), text(rng.randrange(1, 9))]
    return parts[:-1] if rng.random() < 0.3 else parts


@pytest.mark.parametrize("seed", range(40))
def test_positions_equal_the_reference_for_any_mix_of_text_and_images(seed: int, reference: Qwen2_5_VLModel) -> None:
    layout = lay_out(_mixed_parts(seed))
    positions, delta = _reference_positions(reference, layout)
    np.testing.assert_array_equal(rope_positions(layout, 0, layout.num_tokens), positions)
    assert layout.rope_delta == delta


@pytest.mark.parametrize("frames", [1, 2, 9])
def test_positions_equal_the_reference_for_several_frames(frames: int, reference: Qwen2_5_VLModel) -> None:
    step = int(reference.config.vision_config.tokens_per_second)
    still = image(2, 3)
    part = dataclasses.replace(
        still,
        modality=Modality.VIDEO,
        grid=Grid(frames, 4, 6),
        rows=6 * frames,
        span_token_ids=still.span_token_ids * frames,
        embed_mask=still.embed_mask * frames,
        rope_grid=Grid(frames, 2, 3),
        rope_step_t=step,
    )
    layout = lay_out([text(5), part, text(4)])
    positions, delta = _reference_positions(reference, layout, kind=2)
    np.testing.assert_array_equal(rope_positions(layout, 0, layout.num_tokens), positions)
    assert layout.rope_delta == delta


@pytest.mark.parametrize("seed", range(20))
def test_any_stretch_is_a_slice_of_the_whole(seed: int) -> None:
    layout = lay_out(random_parts(seed))
    whole = rope_positions(layout, 0, layout.num_tokens + 10)
    rng = random.Random(seed)
    for _ in range(40):
        begin, end = sorted(rng.choices(range(layout.num_tokens + 10), k=2))
        part = rope_positions(layout, begin, end)
        assert part.dtype == np.int64
        np.testing.assert_array_equal(part, whole[:, begin:end])


def test_generated_text_goes_on_behind_the_highest_position() -> None:
    layout = lay_out([text(3), image(2, 4)])
    assert rope_positions(layout, 11, 14).tolist() == [[7, 8, 9]] * 3


def test_plain_positions_count_up_on_all_axes() -> None:
    layout = lay_out([text(4)])
    assert rope_positions(layout, 1, 6).tolist() == [[1, 2, 3, 4, 5]] * 3


def test_an_empty_stretch_has_no_positions() -> None:
    layout = lay_out([text(4)])
    assert rope_positions(layout, 2, 2).shape == rope_positions(layout, 9, 9).shape == (3, 0)
    assert rope_positions(lay_out([]), 0, 2).tolist() == [[0, 1]] * 3


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2)])
def test_negative_and_reversed_stretches_are_refused(begin: int, end: int) -> None:
    with pytest.raises(InvalidRecord):
        rope_positions(lay_out([text(4)]), begin, end)
