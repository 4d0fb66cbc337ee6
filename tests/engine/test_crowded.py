"""Real engines with blocks for a third of what is asked of them: the answers are those that each request gets alone."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.engine.prompts import text_layout
from tests.engine.rig import Asked, Pair, running, wait_until
from tests.engine.test_storm import ids_of, storm
from tests.reference import Reference
from triptych.engine import decode_desk
from triptych.errors import Preempted, TriptychError
from triptych.journey import Token, new_request_id
from triptych.models.base import LanguageModel
from triptych.models.card import ModelCard
from triptych.sampling import Sampling

TOKENS = 90
WORDS = ("sea", "sky", "land", "rain", "snow", "wind", "sun", "moon", "star")


@pytest.fixture(scope="module")
def questions(card: ModelCard, reference: Reference) -> list[Asked]:
    greedy = Sampling(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    drawn = replace(greedy, temperature=1.0, top_p=0.9, frequency_penalty=0.2)
    return [
        Asked(
            text_layout(card, reference, f"Say something long about the {word}, please."),
            replace(drawn, seed=place) if place % 3 == 2 else replace(greedy, max_tokens=TOKENS - place),
        )
        for place, word in enumerate(WORDS)
    ]


@pytest.fixture(scope="module")
def alone(model: LanguageModel, questions: list[Asked]) -> list[list[int]]:
    with running(model, prefix_cache=False) as pair:
        return [[token.id for token in pair.answer(asked)[0]] for asked in questions]


def answer(pair: Pair, asked: Asked) -> list[int]:
    """As a router drives it: what made room is continued from what it has said."""
    while True:
        request_id, first = pair.begin(asked)
        pair.decode.decode(asked.decode_job(request_id, first), pair.sink)
        try:
            tokens: Sequence[Token] = pair.sink.answer(request_id, first)[0]
        except Preempted:
            said = [token.id for token in (*first, *pair.sink.heard(request_id))]
            asked = replace(asked, generated=(*asked.generated, *said))
        else:
            return [*asked.generated, *(token.id for token in tokens)]


@pytest.mark.parametrize("pipeline", ["off", "on"])
@pytest.mark.parametrize("swap", ["none", "one", "all"])
@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_three_times_what_fits_gets_the_answers_of_each_alone(
    model: LanguageModel, questions: list[Asked], alone: list[list[int]], split: bool, swap: str, pipeline: str
) -> None:
    block_bytes = model.kv.block_bytes(16)
    needed, largest = sum(asked.num_blocks for asked in questions), max(asked.num_blocks for asked in questions)
    swap_blocks = {"none": 0, "one": largest, "all": needed}[swap]  # whose KV finds room in host memory
    room = {"kv_bytes": needed // 3 * block_bytes, "swap_bytes": swap_blocks * block_bytes, "decode_margin_tokens": 1}
    with running(model, split, pipeline=pipeline, **room) as pair:
        with ThreadPoolExecutor(len(questions)) as pool:
            answers = list(pool.map(lambda asked: answer(pair, asked), questions))
        assert answers == alone
        gauges = pair.decode.snapshot()
        made_room = gauges["preemptions_swapped_total"] + gauges["preemptions_ended_total"]
        assert made_room > 0, "somebody must make room, or it proves nothing"
        assert (gauges["preemptions_swapped_total"] > 0) == (swap_blocks > 0)
        assert gauges["swap_free_bytes"] == gauges["swap_bytes"] == swap_blocks * block_bytes
        assert gauges["preempted_sequences"] == 0


@pytest.mark.parametrize("pipeline", ["off", "on"])
def test_departures_at_any_moment_leave_nothing_where_others_make_room(
    model: LanguageModel, questions: list[Asked], pipeline: str
) -> None:
    short = [replace(asked, sampling=replace(asked.sampling, max_tokens=40)) for asked in questions]
    short += [replace(short[2], branches=2)]
    with running(model) as pair:
        alone = [ids_of(pair.answer(asked)) for asked in short]
    block_bytes = model.kv.block_bytes(16)
    room = {"kv_bytes": 16 * block_bytes, "swap_bytes": 200 * block_bytes, "decode_margin_tokens": 1}
    with running(model, split=False, pipeline=pipeline, max_sequences=6, **room) as pair:
        outcomes = storm(pair, short, seed=7)
        assert pair.decode.snapshot()["preemptions_swapped_total"] > 0
        assert pair.decode.snapshot()["preemptions_ended_total"] == 0
    answered = [(place, outcome) for place, outcome in outcomes if not isinstance(outcome, TriptychError)]
    assert len(answered) > 20, "some stay, or this proves nothing"
    for place, got in answered:
        assert got == alone[place]


def test_one_that_stands_still_is_told_of_until_it_goes_on(
    model: LanguageModel, questions: list[Asked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode_desk, "STILL_HERE_SECONDS", 0.02)
    asked = questions[0]
    room = {"kv_bytes": asked.num_blocks * model.kv.block_bytes(16), "swap_bytes": 0, "decode_margin_tokens": 1}
    with running(model, **room) as pair:
        request_id, first = pair.begin(asked)
        holder = new_request_id()
        pair.reserve(holder, asked).result()
        pair.decode.decode(asked.decode_job(request_id, first), pair.sink)
        wait_until(lambda: pair.sink.waits.count(request_id) > 3, "nobody was told that it is still here")
        assert pair.decode.snapshot()["preemptions_stalled_total"] == 1
        pair.decode.cancel(holder)
        assert len(pair.sink.answer(request_id, first)[0]) == asked.sampling.max_tokens
        assert set(pair.sink.waits) == {request_id}
