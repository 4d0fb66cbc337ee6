"""Qwen2.5-VL to the router: what an image becomes in a prompt. No torch, no pixels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from triptych.errors import ConfigError, InvalidMedia, InvalidRequest
from triptych.journey import Grid, Modality
from triptych.models.config_values import whole_number
from triptych.models.plan import ItemPlan
from triptych.models.qwen2_5_vl.geometry import Cells, PixelLimits, fit, limits_leading_to, most_cells
from triptych.models.qwen2_5_vl.patches import order_patches
from triptych.multimodal.layout import ItemPart

OPTION_NAMES = frozenset({"min_pixels", "max_pixels"})
LOW_DETAIL_PIXELS = 512 * 512  # what `detail: low` shows of an image elsewhere, too

# What the family's image processor assumes where its file is silent.
_PATCH_SIZE, _TEMPORAL_PATCH_SIZE, _MERGE_SIZE = 14, 2, 2
_SMALLEST_PIXELS, _LARGEST_PIXELS = 56 * 56, 28 * 28 * 1280
_WINDOW_SIZE = 112  # and its tower where config.json is


@dataclass(frozen=True, slots=True)
class Qwen25VLAdapter:
    """Geometry and placeholders of one Qwen2.5-VL checkpoint."""

    patch_size: int  # pixels
    merge_size: int  # patches per side of an embedding row
    limits: PixelLimits
    placeholder_id: int
    placeholder_text: str = "<|image_pad|>"
    option_names: frozenset[str] = OPTION_NAMES
    window_size: int = _WINDOW_SIZE  # pixels per side of what the tower's windowed layers attend inside
    atomic_items: bool = False  # the decoder attends causally inside an image too: a chunk may end anywhere

    @classmethod
    def from_config(cls, config: Mapping[str, Any], processor_config: Mapping[str, Any]) -> Self:
        """Of the checkpoint's `config.json` and its image processor's; ConfigError names what does not fit."""
        vision = config.get("vision_config")
        if not isinstance(vision, Mapping):
            raise ConfigError("config.json has no vision_config")
        if processor_config.get("do_resize") is False:
            raise ConfigError("the image processor has do_resize false, expected true: sizes must become whole patches")
        patch_size = _agreed(processor_config, "patch_size", _PATCH_SIZE, vision, "patch_size")
        _agreed(processor_config, "temporal_patch_size", _TEMPORAL_PATCH_SIZE, vision, "temporal_patch_size")
        merge_size = _agreed(processor_config, "merge_size", _MERGE_SIZE, vision, "spatial_merge_size")
        image_token_id = whole_number(config, "image_token_id", at_least=0)
        window_size = whole_number({"window_size": _WINDOW_SIZE} | dict(vision), "window_size")
        if window_size < patch_size * merge_size:
            raise ConfigError(
                f"vision_config.window_size is {window_size}, expected at least the {patch_size * merge_size} pixels "
                "of one embedding row"
            )
        return cls(patch_size, merge_size, _limits(processor_config), image_token_id, window_size=window_size)

    @property
    def cell(self) -> int:
        """Pixels per side of one embedding row."""
        return self.patch_size * self.merge_size

    @property
    def max_item_rows(self) -> int:
        return most_cells(self.cell, self.limits)

    @property
    def max_item_tokens(self) -> int:
        return self.max_item_rows * self.merge_size**2

    def detail_options(self, detail: str) -> Mapping[str, int]:
        if detail != "low" or self.limits.largest <= LOW_DETAIL_PIXELS:
            return {}
        return {"max_pixels": max(LOW_DETAIL_PIXELS, self.limits.smallest)}

    def plan(self, width: int, height: int, options: Mapping[str, int]) -> ItemPlan:
        """Options: `min_pixels` and `max_pixels`, those of the checkpoint where absent."""
        cells = fit(width, height, self.cell, self._limits_with(options))
        if cells.count > self.max_item_rows:
            raise InvalidRequest(
                f"an image of {width}x{height} pixels would become {cells.count} rows, "
                f"this model takes at most {self.max_item_rows}",
                param="max_pixels" if "max_pixels" in options else "min_pixels",
            )
        grid = self._grid(cells)
        return ItemPlan(grid=grid, merged=Grid(1, cells.h, cells.w), encoder_tokens=grid.patches, rows=cells.count)

    def contexts(self, grid: Grid) -> Mapping[str, tuple[int, ...]]:
        order = order_patches([grid], self.merge_size, self.window_size // self.cell)
        return {"frames": tuple(order.frame_lengths.tolist()), "windows": tuple(order.window_lengths.tolist())}

    def part(self, plan: ItemPlan, digest: bytes, width: int, height: int, media: int) -> ItemPart:
        return ItemPart(
            digest=digest,
            modality=Modality.IMAGE,
            width=width,
            height=height,
            grid=plan.grid,
            encoder_tokens=plan.encoder_tokens,
            rows=plan.rows,
            media=media,
            span_token_ids=(self.placeholder_id,) * plan.rows,
            embed_mask=(True,) * plan.rows,
            atomic=self.atomic_items,
            rope_grid=plan.merged,
            rope_step_t=1,
        )

    def processor_options(self, width: int, height: int, grid: Grid) -> Mapping[str, Any]:
        limits: PixelLimits | None = self.limits
        if self._grid(fit(width, height, self.cell, self.limits)) != grid:
            limits = self._limits_leading_to(grid, width, height)
        if limits is None:
            raise InvalidMedia(f"an image of {width}x{height} pixels cannot become {grid.t}x{grid.h}x{grid.w} patches")
        return {"size": {"shortest_edge": limits.smallest, "longest_edge": limits.largest}}

    def _grid(self, cells: Cells) -> Grid:
        return Grid(1, cells.h * self.merge_size, cells.w * self.merge_size)

    def _limits_leading_to(self, grid: Grid, width: int, height: int) -> PixelLimits | None:
        cells = Cells(grid.h // self.merge_size, grid.w // self.merge_size)
        if cells.count == 0 or self._grid(cells) != grid:
            return None
        return limits_leading_to(cells, width, height, self.cell)

    def _limits_with(self, options: Mapping[str, int]) -> PixelLimits:
        for name, value in options.items():
            if name not in self.option_names:
                known = ", ".join(sorted(self.option_names))
                raise InvalidRequest(f"unknown image option {name!r}; known ones: {known}", param=name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name} is {value!r}, expected a whole number of pixels above 0", param=name)
        smallest = options.get("min_pixels", self.limits.smallest)
        largest = options.get("max_pixels", self.limits.largest)
        if smallest > largest:
            raise InvalidRequest(
                f"min_pixels {smallest} is above max_pixels {largest}",
                param="min_pixels" if "min_pixels" in options else "max_pixels",
            )
        return PixelLimits(smallest, largest)


def _agreed(processor: Mapping[str, Any], name: str, default: int, vision: Mapping[str, Any], vision_name: str) -> int:
    """A size that the image processor and the vision tower must share."""
    cut = whole_number({name: default} | dict(processor), name)
    expected = whole_number({vision_name: default} | dict(vision), f"{vision_name}")
    if cut != expected:
        raise ConfigError(f"the image processor's {name} is {cut}, vision_config.{vision_name} is {expected}")
    return cut


def _limits(processor: Mapping[str, Any]) -> PixelLimits:
    """`min_pixels` and `max_pixels` override `size`, as in the image processor itself."""
    size = processor.get("size")
    if size is None:
        size = {"shortest_edge": _SMALLEST_PIXELS, "longest_edge": _LARGEST_PIXELS}
    if not isinstance(size, Mapping):
        raise ConfigError(f"the image processor's size is {size!r}, expected shortest_edge and longest_edge")
    chosen = dict(size)
    for edge, override in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels")):
        if processor.get(override) is not None:
            chosen[edge] = processor[override]
    limits = PixelLimits(whole_number(chosen, "shortest_edge"), whole_number(chosen, "longest_edge"))
    if limits.smallest > limits.largest:
        raise ConfigError(f"the image processor's limits are {limits.smallest} to {limits.largest} pixels")
    return limits
