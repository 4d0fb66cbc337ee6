"""The prefix cache under a real model: answers stay what they were, and what is there is not computed again."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from PIL import Image
from torch import Tensor

from tests.engine.prompts import layout_of, picture, rows_of, user
from tests.engine.rig import SETTINGS, Asked, Pair, PromptSink, running
from tests.engine.test_loop_faults import Front
from tests.reference import Reference
from triptych.engine.loop import LanguageEngine, StepReport
from triptych.errors import InternalError
from triptych.journey import Token, new_request_id
from triptych.models.base import LanguageModel, PagedInputs, VisionTower
from triptych.models.card import ModelCard
from triptych.sampling import Sampling

GREEDY = Sampling(temperature=0.0, max_tokens=20, ignore_eos=True)
ONE, TWO = picture(11, 112, 112), picture(12, 84, 140)
LONG = "This is a rather long beginning, which many questions share, word by word, before they ask. "


class Desk:
    """Makes questions of strings and pictures."""

    def __init__(self, card: ModelCard, tower: VisionTower, reference: Reference) -> None:
        self._card, self._tower, self._reference = card, tower, reference

    def ask(self, *parts: str | Image.Image, atomic: bool = False) -> Asked:
        pictures = [part for part in parts if not isinstance(part, str)]
        inputs = self._reference.inputs([user(*parts)], pictures)
        layout = layout_of(self._card, inputs["input_ids"][0].tolist(), pictures, atomic)
        return Asked(layout, GREEDY, rows_of(self._reference, self._tower, pictures))


@pytest.fixture(scope="module")
def desk(card: ModelCard, tower: VisionTower, reference: Reference) -> Desk:
    return Desk(card, tower, reference)


def ids(answer: dict[int, list[Token]]) -> list[int]:
    return [token.id for token in answer[0]]


def fresh(model: LanguageModel, asked: Asked) -> list[int]:
    """The answer without any cache."""
    with running(model, prefix_cache=False) as pair:
        return ids(pair.answer(asked))


def prefill(pair: Pair, asked: Asked, **changes: object) -> PromptSink:
    """One prefill, its blocks given back."""
    sink = pair.start_prefill(new_request_id(), asked, **changes)
    sink.result()
    pair.give_back(sink)
    return sink


@pytest.mark.parametrize("chunk", [17, 4096])
@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_cached_answers_are_the_uncached_ones(model: LanguageModel, desk: Desk, split: bool, chunk: int) -> None:
    asked = [
        desk.ask(LONG, "What is it?"),
        desk.ask(LONG, ONE, "What is it?"),
        desk.ask(LONG, ONE, "What else is it, and why?"),
        desk.ask(LONG, TWO, "What is it?"),
        desk.ask(LONG, ONE, "Then this: ", TWO, "Compare them."),
        desk.ask(LONG, ONE, "Then this: ", ONE, "Compare them."),
    ]
    alone = [fresh(model, one) for one in asked]
    with running(model, split, prefill_chunk_tokens=chunk) as pair:
        for _ in range(2):
            assert [ids(pair.answer(one)) for one in asked] == alone
        gauges = pair.prefill.snapshot()
        assert gauges["prefix_hit_tokens_total"] > 0.6 * gauges["prefix_lookup_tokens_total"]


def test_an_image_that_is_covered_is_not_asked_for_again(model: LanguageModel, desk: Desk) -> None:
    asked = desk.ask(LONG, ONE, "And ", TWO, "what are these, if one may ask?")
    with running(model) as pair:
        first, again = prefill(pair, asked), prefill(pair, asked)
        assert (first.windows[0].items, first.num_cached) == ((0, 1), 0)
        assert again.windows[0].items == ()
        assert again.num_cached == (asked.layout.num_tokens - 1) // 16 * 16
        assert [token.id for token in again.tokens] == [token.id for token in first.tokens]
        other = prefill(pair, desk.ask(LONG, ONE, "And ", picture(13, 84, 140), "what are these, if one may ask?"))
        assert other.windows[0].items == (1,)
        assert other.num_cached < asked.layout.items[1].runs[0].start


def test_the_same_text_with_another_image_or_tenant_is_answered_anew(model: LanguageModel, desk: Desk) -> None:
    changed = ONE.copy()
    changed.putpixel((50, 50), (255, 0, 0))
    asked, pixel = desk.ask(ONE, LONG), desk.ask(changed, LONG)
    with running(model) as pair:
        prefill(pair, asked)
        assert prefill(pair, pixel).num_cached <= asked.layout.items[0].runs[0].start
        assert prefill(pair, asked, cache_salt=b"tenant").num_cached == 0
        assert ids(pair.answer(pixel)) == fresh(model, pixel)


def test_an_item_whose_beginning_is_cached_is_fused_for_its_rest_alone(model: LanguageModel, desk: Desk) -> None:
    """The image ends inside a block, which the next question does not share."""
    large = picture(14, 280, 196)
    for padding in range(1, 20):
        asked = desk.ask(LONG + "a " * padding, large, "What is it?")
        (run,) = asked.layout.items[0].runs
        if 1 <= run.end % 16 <= 8:
            break
    other = desk.ask(LONG + "a " * padding, large, "Is that all there is in the picture?")
    with running(model) as pair:
        prefill(pair, asked)
        sink = prefill(pair, other)
        assert run.start < sink.num_cached == run.end // 16 * 16 < run.end
        assert sink.windows[0].items == (0,)
        assert ids(pair.answer(other)) == fresh(model, other)


def test_equal_prompts_at_once_are_computed_once(model: LanguageModel, desk: Desk) -> None:
    asked = desk.ask(LONG, ONE, "What is it?")
    reports: list[StepReport] = []
    settings = replace(SETTINGS, prefill_chunk_tokens=16)
    pair = Pair(model, True, settings)
    pair.prefill = LanguageEngine(model, pair.prefill_slab, settings, reports.append)
    for engine in pair.engines:
        engine.start()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(pair.answer, [asked] * 8))
    for engine in pair.engines:
        engine.stop()
    assert len({tuple(ids(answer)) for answer in answers}) == 1
    computed = sum(report.num_prefill_tokens for report in reports)
    tail = asked.layout.num_tokens - (asked.layout.num_tokens - 1) // 16 * 16
    assert computed == asked.layout.num_tokens + 7 * tail


def test_atomic_images_are_found_whole_or_not_at_all(model: LanguageModel, desk: Desk) -> None:
    asked = desk.ask(LONG, ONE, "What is it?", atomic=True)
    longer = desk.ask(LONG, ONE, "What else?", atomic=True)
    with running(model, prefill_chunk_tokens=11) as pair:
        prefill(pair, asked)
        sink = prefill(pair, longer)
        (span,) = longer.layout.atomic
        assert not span.start < sink.num_cached < span.end
        assert ids(pair.answer(longer)) == fresh(model, longer)


def test_kv_of_a_step_that_went_wrong_is_never_found(model: LanguageModel, desk: Desk) -> None:
    asked = desk.ask(LONG, "What is it?")
    front = Front(model)
    pair = Pair(model, True, replace(SETTINGS, prefill_chunk_tokens=16))
    pair.prefill = LanguageEngine(front, pair.prefill_slab, replace(SETTINGS, prefill_chunk_tokens=16))

    def spoil(inputs: PagedInputs, logits: Tensor) -> Tensor:
        return torch.full_like(logits, float("nan"))

    front.spoil = spoil
    for engine in pair.engines:
        engine.start()
    try:
        sink = pair.start_prefill(new_request_id(), asked)
        with pytest.raises(InternalError, match="not finite"):
            sink.result()
        pair.give_back(sink)
        assert pair.prefill.snapshot()["kv_cached_blocks"] == 0
        front.spoil = lambda inputs, logits: logits
        assert prefill(pair, asked).num_cached == 0
        assert prefill(pair, asked).num_cached > 0
        assert ids(pair.answer(asked)) == fresh(model, asked)
        pair.wait_idle()
    finally:
        for engine in pair.engines:
            engine.stop()


@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_twelve_images_are_answered_through_landing_memory_for_two(
    model: LanguageModel, desk: Desk, split: bool
) -> None:
    pictures = [picture(20 + number, 84, 84) for number in range(12)]
    asked = desk.ask(*interleaved(pictures), "Which is the odd one out?")
    rows = asked.layout.items[0].rows
    whole = fresh(model, asked)
    landing = 2 * rows * model.hidden_size * 4
    with running(model, split, max_item_rows=rows, landing_bytes=landing, prefill_chunk_tokens=64) as pair:
        with ThreadPoolExecutor(3) as pool:
            others = [replace(asked, generated=(1,) * count) for count in (1, 2)]
            answers = list(pool.map(pair.answer, [asked, *others]))
        assert ids(answers[0]) == whole
        sink = prefill(pair, replace(asked, rows=asked.rows), cache_salt=b"other")
        assert [window.items for window in sink.windows] == [(number,) for number in range(12)]
        assert [window.last for window in sink.windows] == [False] * 11 + [True]


def interleaved(pictures: Sequence[Image.Image]) -> list[str | Image.Image]:
    return [part for number, one in enumerate(pictures) for part in (f"Number {number}: ", one)]
