"""The four budgets: resolved once, told in one line, and each a gate of its own."""

import dataclasses
import logging
from dataclasses import replace

import pytest
import torch

from tests.engine_encoder.rig import Front, Gate, budgets_of, item_of, picture, running
from triptych.config import EncoderSettings, Settings, TransferSettings
from triptych.engine.encoder_budgets import EncoderBudgets, ItemCost, resolve_budgets, row_bytes
from triptych.errors import ConfigError, InvalidMedia, MediaTooLarge
from triptych.journey import Endpoint, Modality
from triptych.metrics import WORKER_GAUGES
from triptych.models.base import VisionTower
from triptych.models.card import ModelCard
from triptych.services.encoder.prepare import Preparer
from triptych.services.encoder.worker import EncoderWorker
from triptych.services.guard import Door
from triptych.services.site import Site

LARGEST = {Modality.IMAGE: ItemCost(encoder_tokens=8192, rows=2048)}


def resolved(
    tokens: int = 16_384, output_bytes: int = 0, arena_bytes: int = 1, kinds: tuple[str, ...] = ()
) -> EncoderBudgets:
    settings = EncoderSettings(
        max_encoder_tokens_per_batch=tokens, output_bytes=output_bytes, arena_bytes=arena_bytes, max_items_per_batch=7
    )
    return resolve_budgets(settings, LARGEST, row_bytes=100, context_kinds=kinds)


def site_of(card: ModelCard, tower: VisionTower, encoder: EncoderSettings) -> Site:
    door = Door(incarnation=17, fingerprint=card.fingerprint, longest_lease_seconds=60.0)
    settings = Settings(encoder=encoder, transfer=TransferSettings())
    return Site("e0", Endpoint("127.0.0.1:1", 17), card, tower.device, tower.dtype, settings, door)


def test_a_token_budget_below_the_largest_item_is_raised_to_it_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        budgets = resolved(tokens=4096)
    assert (budgets.configured_tokens, budgets.tokens) == (4096, 8192)
    (said,) = [record.getMessage() for record in caplog.records if "go alone" in record.getMessage()]
    assert "4096" in said
    assert "8192" in said
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]  # it is nobody's mistake


def test_a_token_budget_that_the_largest_item_fits_is_kept_silently(caplog: pytest.LogCaptureFixture) -> None:
    assert resolved(tokens=9000).tokens == 9000
    assert not caplog.records


def test_output_bytes_are_what_one_batch_can_make_at_most() -> None:
    assert resolved(tokens=16_384).output_bytes == 4096 * 100
    assert resolved(tokens=4096).output_bytes == 2048 * 100  # the largest item, alone
    assert resolved(output_bytes=555).output_bytes == 555


def test_65536_tokens_of_four_levels_of_a_4096_wide_bf16_model_are_512_mib() -> None:
    width = row_bytes(4096, 4, torch.bfloat16.itemsize)
    assert width == 32_768
    settings = EncoderSettings(max_encoder_tokens_per_batch=65_536)
    largest = {Modality.IMAGE: ItemCost(16_384, 4096)}
    assert resolve_budgets(settings, largest, width, ()).output_bytes == 512 << 20


def test_output_and_reuse_share_one_arena_as_large_as_the_larger_of_the_two() -> None:
    assert resolved(output_bytes=1000, arena_bytes=400).arena_bytes == 1000
    assert resolved(output_bytes=1000, arena_bytes=4000).arena_bytes == 4000
    budgets = resolved(output_bytes=1000, arena_bytes=400)
    assert [budgets.units(unit_bytes) for unit_bytes in (100, 300, 999, 1000)] == [10, 4, 2, 1]


def test_the_largest_item_always_fits_an_arena_that_was_not_set_smaller() -> None:
    budgets = resolved(tokens=100, arena_bytes=1)
    assert budgets.max_item_tokens == 8192
    assert resolved(output_bytes=100 * 100, arena_bytes=1).max_item_tokens == 4 * 100


def test_an_arena_that_holds_no_row_is_an_error_that_names_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"output_bytes is 99 and encoder.arena_bytes 1, .* at least 100,"):
        resolved(output_bytes=99, arena_bytes=1)
    assert resolved(output_bytes=1, arena_bytes=100).max_item_tokens == 4


def test_pins_leave_room_for_the_largest_item_that_is_taken() -> None:
    assert resolved(output_bytes=1000, arena_bytes=1 << 20).pins_leave_bytes == 2048 * 100
    assert resolved(output_bytes=1000, arena_bytes=5000).pins_leave_bytes == 5000  # larger ones are refused
    assert resolved(tokens=16_384, arena_bytes=1 << 20).pins_leave_bytes == 4096 * 100  # a batch


@pytest.mark.parametrize(
    ("budget", "setting"),
    [
        (resolved(arena_bytes=1 << 20), "encoder.arena_bytes"),
        (resolved(output_bytes=2000), "encoder.output_bytes"),
        (resolved(), "encoder.max_encoder_tokens_per_batch"),
    ],
)
def test_the_setting_that_makes_the_arena_so_large_is_known(budget: EncoderBudgets, setting: str) -> None:
    assert budget.arena_setting == setting


@pytest.mark.parametrize("num_bytes", [1 << 56, 1 << 80])
@pytest.mark.parametrize("setting", ["arena_bytes", "output_bytes", "max_encoder_tokens_per_batch"])
def test_a_budget_beyond_all_memory_is_an_error_that_names_the_setting(
    setting: str, num_bytes: int, card: ModelCard, tower: VisionTower
) -> None:
    site = site_of(card, tower, replace(EncoderSettings(), **{setting: num_bytes}))
    with pytest.raises(ConfigError, match=f"what encoder.{setting} asks for cannot be had"):
        EncoderWorker(site)


def test_attention_capacity_has_the_towers_own_kinds_of_context() -> None:
    assert resolved(tokens=16_384, kinds=("frames", "windows")).attention == {"frames": 16_384, "windows": 16_384}
    assert resolved(tokens=100, kinds=("full",)).attention == {"full": 8192}  # the budget as raised


@pytest.mark.parametrize(("tokens", "capacity"), [(100, 8192), (9000, 9000)])
def test_a_tower_that_names_no_contexts_gets_at_least_8192_tokens_of_attention(tokens: int, capacity: int) -> None:
    largest = {Modality.IMAGE: ItemCost(80, 20)}
    settings = EncoderSettings(max_encoder_tokens_per_batch=tokens)
    assert resolve_budgets(settings, largest, 100, ()).attention == {"attention": capacity}


def test_one_line_tells_all_budgets() -> None:
    line = resolved(tokens=4096, arena_bytes=777, kinds=("frames", "windows")).line()
    assert "\n" not in line
    for part in (
        "A 7 items",
        "configured=4096",
        "effective=8192",
        "model_atomic_max=(image=8192)",
        "attention_capacity=(frames=8192, windows=8192)",
        "C 204800 output bytes (derived)",
        "D 777 reuse bytes",
        "arena 204800 bytes",
    ):
        assert part in line


def test_all_four_budgets_are_gauges_of_the_metrics_list() -> None:
    gauges = resolved(output_bytes=300, arena_bytes=200).gauges()
    assert set(gauges) == {metric.name for metric in WORKER_GAUGES if metric.name.startswith("encoder_budget_")}
    assert list(gauges.values()) == [7, 16_384, 300, 200]


@pytest.mark.parametrize(
    ("largest", "width", "kinds", "named"),
    [
        ({}, 100, (), "names no largest item"),
        ({Modality.IMAGE: ItemCost(0, 0)}, 100, (), "0 encoder tokens"),
        ({Modality.IMAGE: ItemCost(8, 0)}, 100, (), "0 rows"),
        ({Modality.IMAGE: ItemCost(8, -1)}, 100, (), "-1 rows"),
        ({Modality.IMAGE: ItemCost(8, 9)}, 100, (), "at least as many tokens"),
        ({Modality.IMAGE: ItemCost(8, 2), Modality.VIDEO: ItemCost(-8, 2)}, 100, (), "largest video"),
        (LARGEST, 0, (), "0 bytes"),
        (LARGEST, -4, (), "-4 bytes"),
        (LARGEST, 100, ("frames", "frames"), "each once"),
        (LARGEST, 100, ("",), "none empty"),
    ],
)
def test_what_cannot_work_is_an_error_at_start(
    largest: dict[Modality, ItemCost], width: int, kinds: tuple[str, ...], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        resolve_budgets(EncoderSettings(), largest, width, kinds)


@pytest.mark.parametrize(
    "setting", ["max_items_per_batch", "max_encoder_tokens_per_batch", "arena_bytes", "output_bytes"]
)
def test_a_budget_below_nothing_is_an_error_that_names_the_setting(setting: str) -> None:
    with pytest.raises(ConfigError, match=f"encoder.{setting} is -1"):
        replace(EncoderSettings(), **{setting: -1})


@pytest.mark.parametrize(("width", "levels", "itemsize"), [(None, 1, 2), (0, 1, 2), (-8, 1, 2), (8, 0, 2), (8, 1, 0)])
def test_a_tower_without_a_usable_width_is_an_error_at_start(width: int | None, levels: int, itemsize: int) -> None:
    with pytest.raises(ConfigError, match="expected each to be 1 or more"):
        row_bytes(width, levels, itemsize)


def test_budgets_are_resolved_between_the_tower_and_the_memory(
    card: ModelCard, tower: VisionTower, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site = site_of(card, tower, EncoderSettings(arena_bytes=1 << 20))
    worker = EncoderWorker(site)
    try:
        lines = [record.getMessage() for record in caplog.records]
        [told] = [number for number, line in enumerate(lines) if line.startswith("encoder budgets: ")]
        [made] = [number for number, line in enumerate(lines) if line.startswith("arena embedding: ")]
        assert told < made
        assert "frames=" in lines[told]  # the tower had been loaded
        assert worker.max_item_tokens == card.adapter.max_item_tokens  # raised from 1 MiB to the largest item
        assert worker.gauges()["encoder_budget_reuse_bytes"] == 1 << 20
    finally:
        worker.stop()
        for slab in site.slabs.values():
            slab.close()


# One test for each gate


@pytest.mark.parametrize(
    "settings",
    [EncoderSettings(max_items_per_batch=2), EncoderSettings(max_encoder_tokens_per_batch=40)],
    ids=["gate A: items", "gate B: tokens, two items of 16"],
)
def test_items_over_a_batch_budget_are_left_for_the_next_batch(
    card: ModelCard, tower: VisionTower, prepare: Preparer, settings: EncoderSettings
) -> None:
    front = Front(tower)
    gate = Gate(front)
    with running(card, gate, prepare, settings=settings) as rig:
        wishes = [rig.wish(picture(seed)) for seed in range(6)]
        gate.open.set()
        assert all(wish.ref for wish in wishes)
        assert max(len(batch) for batch in front.batches) <= 2


def test_gate_c_refuses_only_what_can_never_fit_and_names_both_numbers(
    card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare, arena_rows=8) as rig:
        refused = rig.wish(picture(1, 112, 112)).error
        assert isinstance(refused, MediaTooLarge)
        assert "64" in refused.message
        assert "32" in refused.message
        for seed in range(4):  # 16 rows in all, through an arena of 8
            wish = rig.wish(picture(seed))
            assert wish.ref.rows == 4
            rig.release([wish])


def test_gate_d_evicts_what_is_kept_for_reuse(card: ModelCard, tower: VisionTower, prepare: Preparer) -> None:
    with running(card, tower, prepare, arena_rows=8) as rig:
        for seed in range(4):
            rig.release([rig.wish(picture(seed))])
        assert rig.gauge("cache_evictions_total") == 2


def test_attention_capacity_never_changes_once_resolved(tower: VisionTower, prepare: Preparer) -> None:
    budgets = budgets_of(tower, prepare, 64, EncoderSettings())
    assert set(budgets.attention) == set(tower.context_kinds)
    with pytest.raises(dataclasses.FrozenInstanceError):
        budgets.attention = {}  # type: ignore[misc]


@pytest.mark.parametrize("modality", [Modality.VIDEO, Modality.AUDIO])
def test_an_item_of_a_modality_that_the_tower_does_not_take_is_refused(
    modality: Modality, card: ModelCard, tower: VisionTower, prepare: Preparer
) -> None:
    with running(card, tower, prepare) as rig:
        item = replace(item_of(card, picture(1), index=2), modality=modality)
        error = rig.wish(picture(1), item=item).error
        assert isinstance(error, InvalidMedia)
        assert modality.value in error.message
        assert "image" in error.message
        assert error.item_index == 2
