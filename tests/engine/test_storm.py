"""Many requests at once, some of which leave at any moment: the answers of the others, and books that balance."""

import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.engine.prompts import layout_of, picture, rows_of, text_layout, user
from tests.engine.rig import Asked, Pair, PromptSink, running
from tests.reference import Reference
from triptych.errors import TriptychError
from triptych.journey import Token, new_request_id
from triptych.models.base import LanguageModel, VisionTower
from triptych.models.card import ModelCard
from triptych.sampling import Sampling

REQUESTS = 120
Answers = dict[int, list[int]]


@pytest.fixture(scope="module")
def questions(card: ModelCard, tower: VisionTower, reference: Reference) -> list[Asked]:
    one, two = picture(1, 112, 84), picture(2, 56, 84)
    ids = reference.inputs([user("Look: ", one, " and ", two, " What are they?")], [one, two])["input_ids"][0].tolist()
    layout, rows = layout_of(card, ids, [one, two]), rows_of(reference, tower, [one, two])
    text = text_layout(card, reference, "Say something about the sea, the sky and the land.")
    greedy = Sampling(temperature=0.0, max_tokens=12, ignore_eos=True)
    drawn = replace(greedy, temperature=1.0, seed=4, top_p=0.9, frequency_penalty=0.2)
    return [
        Asked(text, greedy),
        Asked(layout, greedy, rows),
        Asked(text, drawn, branches=3),
        Asked(layout, drawn, rows, branches=2),
        Asked(text, greedy, generated=(5, 6, 7)),
    ]


def ids_of(answer: dict[int, list[Token]]) -> Answers:
    return {choice: [token.id for token in tokens] for choice, tokens in answer.items()}


class Client:
    """One request's journey, which a cancel may end anywhere."""

    def __init__(self, pair: Pair, asked: Asked, leave_after: float | None) -> None:
        self.pair = pair
        self.asked = asked
        self.request_id = new_request_id()
        self.leave_after = leave_after

    def run(self) -> Answers | TriptychError:
        timer = threading.Timer(self.leave_after, self.leave) if self.leave_after is not None else None
        if timer is not None:
            timer.start()
        try:
            return self.travel()
        except TriptychError as error:
            return error
        finally:
            if timer is not None:
                timer.join()
            self.leave()  # whatever failed may have left its other half behind

    def leave(self) -> None:
        self.pair.cancel(self.request_id)

    def travel(self) -> Answers:
        pair, asked = self.pair, self.asked
        cached = pair.reserve(self.request_id, asked).granted().cached_tokens
        sink = PromptSink()
        try:
            self.prefill(sink, cached)
            first = sink.result()
        except TriptychError:
            sink.has_ended.wait()  # no more shares come after the end
            pair.give_back(sink)
            raise
        try:
            pair.hand_over(self.request_id, sink, cached)
        except TriptychError:
            pair.give_back(sink)
            raise
        pair.decode.decode(asked.decode_job(self.request_id, first), pair.sink)
        return ids_of(pair.sink.answer(self.request_id, first))

    def prefill(self, sink: PromptSink, cached: int) -> None:
        self.pair.prefill.prefill(self.asked.prefill_job(self.request_id, kv_begin=cached), sink)
        self.pair.land_all(self.request_id, self.asked, sink)


def check_while(pair: Pair, over: threading.Event) -> int:
    rounds = 0
    while not over.wait(0.003):
        for engine in pair.engines:
            engine.check()
        rounds += 1
    return rounds


def storm(pair: Pair, questions: Sequence[Asked], seed: int) -> list[tuple[int, Answers | TriptychError]]:
    """Each request's question and what came of it."""
    rng = random.Random(seed)
    clients = []
    for _ in range(REQUESTS):
        place = rng.randrange(len(questions))
        leave_after = rng.random() * 0.08 if rng.random() < 0.4 else None
        clients.append((place, Client(pair, questions[place], leave_after)))
    over = threading.Event()
    with ThreadPoolExecutor(13) as pool:
        checking = pool.submit(check_while, pair, over)
        outcomes = list(pool.map(Client.run, [client for _, client in clients]))
        over.set()
        assert checking.result() > 5
    return [(place, outcome) for (place, _), outcome in zip(clients, outcomes, strict=True)]


AHEAD = {"pipeline": "on", "graphs": "on"}


@pytest.mark.parametrize("ahead", [{}, AHEAD], ids=["step by step", "ahead"])
@pytest.mark.parametrize("split", [True, False], ids=["p+d", "pd"])
def test_a_storm_of_requests_and_departures_leaves_nothing_and_spoils_no_answer(
    model: LanguageModel, questions: list[Asked], split: bool, ahead: dict[str, str]
) -> None:
    with running(model, split) as pair:
        alone = [ids_of(pair.answer(asked)) for asked in questions]
    room = 40 * model.kv.block_bytes(16)  # two or three requests: the others queue
    most_rows = max(item.rows for asked in questions for item in asked.layout.items)
    landing = {"max_item_rows": most_rows, "landing_bytes": 2 * most_rows * model.hidden_size * 4}
    with running(model, split, prefill_chunk_tokens=33, max_sequences=6, kv_bytes=room, **landing, **ahead) as pair:
        outcomes = storm(pair, questions, seed=int(split))
        assert pair.prefill.snapshot()["prefix_hit_tokens_total"] > 0
    answered = [(place, outcome) for place, outcome in outcomes if not isinstance(outcome, TriptychError)]
    assert REQUESTS * 0.4 < len(answered) < REQUESTS, "some leave and some stay, or this proves nothing"
    for place, answer in answered:
        assert answer == alone[place]
