"""From a header and options alone: tokens, rows, span and contexts, as the real processor and tower have them."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.vision_utils import get_vision_cu_seqlens, get_vision_window_index

from tests.models.test_geometry import CONFIG, FULL, adapter, sizes
from tests.multimodal.images import chunk, png, tiff
from triptych.errors import ConfigError
from triptych.journey import Grid
from triptych.models.adapter import Adapter, adapter_for
from triptych.multimodal.layout import ItemPart, TextPart, lay_out
from triptych.multimodal.sniff import MediaHeader, sniff

MOST_PIXELS = 28 * 28 * 32  # of pictures that are really resized
TURNED = (5, 6, 7, 8)  # orientations under which width and height change places


def header_of(width: int, height: int, orientation: int) -> MediaHeader:
    """Of a file that has a header and not a pixel."""
    return sniff(png(width, height, 8, 2, b"", before=chunk(b"eXIf", tiff(orientation))))


def random_options(chosen: random.Random, most: int) -> dict[str, int]:
    options = {"min_pixels": chosen.randint(1, most // 10), "max_pixels": chosen.randint(most // 10, most)}
    return {name: pixels for name, pixels in options.items() if chosen.random() < 0.7}


def planned(planner: Adapter, header: MediaHeader, options: Mapping[str, int]) -> ItemPart:
    plan = planner.plan(header.width, header.height, options)
    return planner.part(plan, bytes(32), header.width, header.height, media=0)


def check_contexts(planner: Adapter, grid: Grid, window: int) -> None:
    thw = torch.tensor([[grid.t, grid.h, grid.w]])
    boundaries = get_vision_window_index(thw, 2, window, 14)[1]
    contexts = planner.contexts(grid)
    assert contexts["windows"] == tuple(boundaries.diff().tolist())
    assert contexts["frames"] == tuple(get_vision_cu_seqlens(thw).diff().tolist())
    assert sum(contexts["windows"]) == sum(contexts["frames"]) == grid.patches


def test_2000_headers_are_planned_as_the_real_processor_and_tower_have_them() -> None:
    reference, planner = Qwen2VLImageProcessor(**FULL), adapter(FULL)
    chosen = random.Random(11)
    for width, height in sizes(seed=12, count=2000):
        orientation = chosen.randint(1, 8)
        header = header_of(width, height, orientation)
        seen = (height, width) if orientation in TURNED else (width, height)
        assert (header.width, header.height) == seen
        options = random_options(chosen, most=2_000_000)
        part = planned(planner, header, options)
        assert part.encoder_tokens == reference.get_number_of_image_patches(seen[1], seen[0], options)
        assert part.rows * 4 == part.encoder_tokens == part.grid.patches
        layout = lay_out([TextPart((1,)), part, TextPart((2,))])
        assert layout.items[0].span.length == part.rows
        assert [(run.start, run.length) for run in layout.items[0].runs] == [(1, part.rows)]
        check_contexts(planner, part.grid, window=112)


def test_2000_pictures_become_the_planned_grid_in_the_real_processor() -> None:
    processor, planner = Qwen2VLImageProcessor(**FULL), adapter(FULL)
    chosen = random.Random(13)
    few = [(width, height) for width, height in sizes(seed=14, count=4000) if width * height <= 200_000][:2000]
    assert len(few) == 2000
    for width, height in few:
        options = {"min_pixels": 1, "max_pixels": MOST_PIXELS} | random_options(chosen, MOST_PIXELS)
        header = header_of(width, height, chosen.randint(1, 8))
        part = planned(planner, header, options)
        pixels = torch.from_numpy(np.zeros((3, header.height, header.width), np.uint8))
        limits = {"shortest_edge": options["min_pixels"], "longest_edge": options["max_pixels"]}
        made = processor(images=[pixels], return_tensors="pt", input_data_format="channels_first", size=limits)
        assert made["image_grid_thw"].tolist() == [[part.grid.t, part.grid.h, part.grid.w]]
        assert len(made["pixel_values"]) == part.encoder_tokens


@pytest.mark.parametrize("window", [112, 56, 28, 100])
def test_contexts_follow_the_windows_of_the_checkpoint(window: int) -> None:
    config: dict[str, Any] = dict(CONFIG)
    planner = adapter_for(config | {"vision_config": config["vision_config"] | {"window_size": window}}, FULL)
    chosen = random.Random(window)
    for _ in range(200):
        grid = Grid(chosen.randint(1, 3), 2 * chosen.randint(1, 40), 2 * chosen.randint(1, 40))
        check_contexts(planner, grid, window)


@pytest.mark.parametrize(
    ("window", "message"),
    [(27, "window_size is 27, expected at least the 28 pixels"), ("wide", "window_size is 'wide'")],
)
def test_a_window_that_cannot_hold_a_row_is_named(window: Any, message: str) -> None:
    config: dict[str, Any] = dict(CONFIG)
    with pytest.raises(ConfigError, match=message):
        adapter_for(config | {"vision_config": config["vision_config"] | {"window_size": window}}, FULL)
