"""Sizes become the very grids that the model's own image processor makes."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor, smart_resize

from triptych.errors import ConfigError, InvalidMedia, InvalidRequest
from triptych.journey import Grid
from triptych.models.adapter import adapter_for
from triptych.models.qwen2_5_vl.adapter import Qwen25VLAdapter
from triptych.models.qwen2_5_vl.geometry import Cells, PixelLimits, fit, limits_leading_to, most_cells

CONFIG: Mapping[str, Any] = {
    "model_type": "qwen2_5_vl",
    "image_token_id": 5,
    "vision_config": {"patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2},
}
FULL: Mapping[str, Any] = {"min_pixels": 3136, "max_pixels": 12845056}
SMALL: Mapping[str, Any] = {"size": {"shortest_edge": 3136, "longest_edge": 200704}}


def adapter(processor: Mapping[str, Any]) -> Qwen25VLAdapter:
    return Qwen25VLAdapter.from_config(CONFIG, processor)


def sizes(seed: int, count: int) -> list[tuple[int, int]]:
    """Widths and heights over five decades of area, thin ones and exact multiples of a cell among them."""
    chosen = random.Random(seed)
    found: list[tuple[int, int]] = []
    while len(found) < count:
        side = int(2 ** chosen.uniform(0, 12.5))
        other = max(1, int(side * 2 ** chosen.uniform(-8, 8)))
        if chosen.random() < 0.2:
            side, other = max(28, side // 28 * 28), max(28, other // 28 * 28)
        if max(side, other) <= 200 * min(side, other):
            found.append((side, other))
    return found


@pytest.mark.parametrize("processor", [FULL, SMALL], ids=["full", "small"])
def test_plans_equal_the_image_processor_for_2000_sizes(processor: Mapping[str, Any]) -> None:
    reference = Qwen2VLImageProcessor(**processor)
    planner = adapter(processor)
    for width, height in sizes(seed=1, count=2000):
        plan = planner.plan(width, height, {})
        assert plan.encoder_tokens == reference.get_number_of_image_patches(height, width, {})
        assert plan.encoder_tokens == 4 * plan.rows
        edges = reference.size
        tall, wide = smart_resize(height, width, 28, edges["shortest_edge"], edges["longest_edge"])
        assert plan.grid == Grid(1, tall // 14, wide // 14)
        assert plan.merged == Grid(1, tall // 28, wide // 28)
        assert plan.encoder_tokens <= planner.max_item_tokens


def test_plans_equal_the_image_processor_under_options() -> None:
    reference = Qwen2VLImageProcessor(**FULL)
    planner = adapter(FULL)
    chosen = random.Random(2)
    for width, height in sizes(seed=3, count=2000):
        options = {"min_pixels": chosen.randint(1, 100_000), "max_pixels": chosen.randint(100_000, 2_000_000)}
        if chosen.random() < 0.5:
            del options[chosen.choice(sorted(options))]
        plan = planner.plan(width, height, options)
        assert plan.encoder_tokens == reference.get_number_of_image_patches(height, width, options)


def test_every_planned_grid_leads_back_to_limits_that_make_it() -> None:
    chosen = random.Random(4)
    for width, height in sizes(seed=5, count=2000):
        smallest = int(2 ** chosen.uniform(0, 20))
        limits = PixelLimits(smallest, int(smallest * 2 ** chosen.uniform(0, 6)))
        wanted = fit(width, height, 28, limits)
        found = limits_leading_to(wanted, width, height, 28)
        assert found is not None
        assert fit(width, height, 28, found) == wanted


def test_a_grid_of_another_shape_has_no_limits() -> None:
    assert limits_leading_to(Cells(3, 30), width=640, height=480, cell=28) is None
    with pytest.raises(InvalidMedia, match="640x480 pixels cannot become 1x6x60"):
        adapter(FULL).processor_options(640, 480, Grid(1, 6, 60))
    with pytest.raises(InvalidMedia):
        adapter(FULL).processor_options(640, 480, Grid(2, 34, 46))
    with pytest.raises(InvalidMedia):
        adapter(FULL).processor_options(640, 480, Grid(1, 1, 1))


def test_no_image_exceeds_the_most_cells_and_the_limit_is_reached_where_areas_allow() -> None:
    chosen = random.Random(6)
    for _ in range(200):
        smallest = int(2 ** chosen.uniform(0, 16))
        limits = PixelLimits(smallest, int(smallest * 2 ** chosen.uniform(0, 8)))
        bound = most_cells(28, limits)
        for width, height in [*sizes(chosen.randint(0, 99), 20), (1, 200), (200, 1), (4000, 20), (20, 4000)]:
            assert fit(width, height, 28, limits).count <= bound
    assert most_cells(28, PixelLimits(3136, 12845056)) == 16384
    assert fit(3584, 3584, 28, PixelLimits(3136, 12845056)).count == 16384


@pytest.mark.parametrize(("width", "height"), [(201, 1), (1, 201), (28, 5700)])
def test_aspect_ratios_above_200_are_refused(width: int, height: int) -> None:
    with pytest.raises(InvalidMedia, match=f"{width}x{height} pixels; this model takes aspect ratios up to 200"):
        adapter(FULL).plan(width, height, {})
    with pytest.raises(ValueError, match="aspect ratio"):
        smart_resize(height, width)


def test_an_empty_image_is_refused() -> None:
    with pytest.raises(InvalidMedia, match="0x10"):
        adapter(FULL).plan(0, 10, {})


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"depth": 3}, "depth"),
        ({"min_pixels": 0}, "min_pixels"),
        ({"max_pixels": -5}, "max_pixels"),
        ({"max_pixels": True}, "max_pixels"),
        ({"max_pixels": 100}, "max_pixels"),
        ({"min_pixels": 99_999_999}, "min_pixels"),
        ({"min_pixels": 90_000_000, "max_pixels": 99_000_000}, "max_pixels"),
    ],
)
def test_options_that_cannot_work_are_named(options: Mapping[str, int], param: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        adapter(FULL).plan(640, 480, options)
    assert raised.value.param == param


def test_a_part_takes_one_row_per_placeholder() -> None:
    planner = adapter(FULL)
    plan = planner.plan(640, 480, {})
    part = planner.part(plan, b"d" * 32, 640, 480, media=3)
    assert part.span_token_ids == (5,) * plan.rows
    assert all(part.embed_mask)
    assert part.rope_grid == plan.merged
    assert (part.media, part.atomic) == (3, False)


def test_unknown_families_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'llava'; known ones: qwen2_5_vl"):
        adapter_for({"model_type": "llava"}, {})


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        ({"patch_size": 16}, "patch_size is 16, vision_config.patch_size is 14"),
        ({"merge_size": 4}, "merge_size is 4, vision_config.spatial_merge_size is 2"),
        ({"do_resize": False}, "do_resize"),
        ({"size": {"height": 224, "width": 224}}, "shortest_edge is None"),
        ({"size": 224}, "size is 224"),
        ({"min_pixels": 9999, "max_pixels": 3136}, "9999 to 3136"),
    ],
)
def test_a_processor_that_does_not_fit_the_model_is_named(processor: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapter(processor)
