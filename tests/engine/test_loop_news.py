"""What the engine's sinks hear, and in which order; how answers end."""

from dataclasses import replace

import pytest

from tests.engine.rig import GREEDY, SETTINGS, Asked, Pair, PromptSink, running, wait_until
from triptych.engine.loop import LanguageEngine, StepReport
from triptych.journey import new_request_id
from triptych.models.base import LanguageModel


def test_news_of_a_prefill_come_in_order(model: LanguageModel, image: Asked) -> None:
    with running(model, prefill_chunk_tokens=17) as pair:
        request_id = new_request_id()
        sink = pair.start_prefill(request_id, image)
        sink.result()
        chunks = -(-image.layout.num_tokens // 16)
        assert sink.events[0] == "granted"
        assert sink.events[-1] == "first_tokens"
        assert [window.items for window in sink.windows] == [tuple(range(len(image.layout.items)))]
        assert set(sink.events[1:-1]) == {"kv_ready"}
        assert [ready.last for ready in sink.kv] == [False] * (len(sink.kv) - 1) + [True]
        assert [ready.tokens_begin for ready in sink.kv[1:]] == [ready.tokens_end for ready in sink.kv[:-1]]
        assert sum(len(ready.ids) for ready in sink.kv) == chunks
        assert {span.stage for span in sink.times} == {"prefill_queue", "prefill_wait", "prefill"}
        assert [span.end for span in sink.times[:-1]] == [span.begin for span in sink.times[1:]]
        assert all(span.begin <= span.end < span.begin + 30 for span in sink.times)
        pair.give_back(sink)


def test_text_before_an_image_is_computed_while_the_image_is_being_encoded(model: LanguageModel, image: Asked) -> None:
    before = image.layout.items[0].runs[0].start
    assert before > 16
    with running(model) as pair:
        request_id = new_request_id()
        sink = PromptSink()
        pair.prefill.prefill(image.prefill_job(request_id), sink)
        wait_until(lambda: bool(sink.kv), "the text was never computed")
        assert sink.kv[0].tokens_end == before // 16 * 16
        assert not sink.has_ended.is_set()
        pair.land(request_id, 0, image.rows[0])
        sink.result()
        pair.give_back(sink)


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["computed again", "cached"])
def test_blocks_are_stamped_with_the_generation_that_is_announced(
    model: LanguageModel, text: Asked, prefix_cache: bool
) -> None:
    need = -(-text.layout.num_tokens // 16)
    with running(model, kv_bytes=need * model.kv.block_bytes(16), prefix_cache=prefix_cache) as pair:
        for _ in range(3):
            sink = pair.start_prefill(new_request_id(), text)
            sink.result()
            for block in (block for ready in sink.kv for block in ready.blocks):
                assert int(pair.prefill_slab.words[block.id]) == block.generation
            pair.give_back(sink)
        kept = [1] * (need - 1) if prefix_cache else [3] * (need - 1)
        assert pair.prefill_slab.words.tolist() == [*kept, 3], "what is found again keeps its generation"


def test_kv_that_nobody_will_decode_is_not_announced(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        sink = pair.start_prefill(new_request_id(), text, keep_kv=False)
        assert len(sink.result()) == 1
        assert sink.events == ["granted", "first_tokens"]


def test_a_step_tells_a_sink_of_all_its_tokens_at_once(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        pair.answer(replace(text, branches=4))
        assert all(len(batch) == 4 for batch in pair.sink.batches)
        assert len(pair.sink.batches) == GREEDY.max_tokens - 1


def test_steps_are_reported(model: LanguageModel, text: Asked) -> None:
    reports: list[StepReport] = []
    pair = Pair(model, split=False, settings=SETTINGS)
    pair.prefill = pair.decode = LanguageEngine(model, pair.prefill_slab, SETTINGS, reports.append)
    pair.prefill.start()
    pair.answer(text)
    pair.prefill.stop()
    assert sum(report.num_prefill_tokens for report in reports) == text.layout.num_tokens
    assert sum(report.num_decode_tokens for report in reports) == GREEDY.max_tokens - 1
    assert all(report.seconds > 0 for report in reports)


def test_an_end_token_ends_the_branch_that_drew_it(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        tokens = pair.answer(text)[0]
        place = next(place for place in range(2, 12) if tokens[place].id not in [token.id for token in tokens[:place]])
        stopping = replace(GREEDY, ignore_eos=False, stop_token_ids=(tokens[place].id,))
        stopped = pair.answer(replace(text, sampling=stopping))[0]
        later = pair.answer(replace(text, sampling=replace(stopping, min_tokens=place + 1)))[0]
    assert [token.id for token in stopped] == [token.id for token in tokens[: place + 1]]
    assert [token.finish_reason for token in stopped[-2:]] == ["", "stop"]
    assert [token.id for token in later[:place]] == [token.id for token in tokens[:place]]
    assert later[place].id != tokens[place].id


def test_a_branch_that_ends_with_its_first_token_is_not_decoded(model: LanguageModel, text: Asked) -> None:
    with running(model) as pair:
        sampling = replace(GREEDY, temperature=1.0, seed=3, max_tokens=8)
        free = pair.answer(replace(text, sampling=sampling, branches=2))
        assert free[0][0].id != free[1][0].id
        stopping = replace(sampling, ignore_eos=False, stop_token_ids=(free[0][0].id,))
        half = pair.answer(replace(text, sampling=stopping, branches=2))
        none = pair.answer(replace(text, sampling=replace(sampling, max_tokens=1), branches=2))
    assert [token.finish_reason for token in half[0]] == ["stop"]
    assert [token.id for token in half[1]] == [token.id for token in free[1]]
    assert [[token.finish_reason for token in none[choice]] for choice in (0, 1)] == [["length"], ["length"]]


def test_the_context_ends_an_answer(model: LanguageModel, text: Asked) -> None:
    longest = text.layout.num_tokens + 5
    with running(model, max_model_len=longest) as pair:
        tokens = pair.answer(text)[0]
    assert len(tokens) == 5
    assert tokens[-1].finish_reason == "length"
