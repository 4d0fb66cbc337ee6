"""A step that is launched while the one before it runs: the same answers, nothing wasted that need not be."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.rig import ENDLESS, GREEDY, SETTINGS, Asked, Pair, TokenSink, running, wait_until
from tests.engine.test_loop_faults import Front
from triptych.errors import Cancelled, InternalError
from triptych.journey import RequestId, Token
from triptych.models.base import LanguageModel, PagedInputs

# Penalties below nothing draw a token that was told once again and again: it must be known at once.
WISHES: Sequence[dict[str, Any]] = (
    {},
    {"temperature": 1.0, "seed": 4, "top_p": 0.9, "frequency_penalty": -2.0, "presence_penalty": -1.0},
    {"repetition_penalty": 0.5, "top_logprobs": 3},
    {"temperature": 0.8, "seed": 9, "top_k": 30, "min_p": 0.01, "logit_bias": {5: 2.0, 9: -3.0}},
    {"frequency_penalty": -2.0, "logit_bias": {7: 9.0}, "min_tokens": 6, "stop_token_ids": (7, 2), "ignore_eos": False},
)


def answers(pair: Pair, questions: Sequence[Asked]) -> list[dict[int, list[Token]]]:
    """All at once."""
    begun = [(asked, *pair.begin(asked)) for asked in questions]
    for asked, request_id, first in begun:
        pair.decode.decode(asked.decode_job(request_id, first), pair.sink)
    return [pair.sink.answer(request_id, first) for _, request_id, first in begun]


def told(answer: dict[int, list[Token]]) -> dict[int, list[tuple[object, ...]]]:
    """Tokens without the digits of their logprobs that the shape of a batch changes."""
    return {
        choice: [(token.id, token.position, token.finish_reason, round(token.logprob, 3)) for token in tokens]
        for choice, tokens in answer.items()
    }


@pytest.mark.parametrize("graphs", ["off", "on"], ids=["eager", "recorded"])
def test_every_kind_of_sampling_gives_the_tokens_of_one_step_after_the_other(
    model: LanguageModel, text: Asked, image: Asked, graphs: str
) -> None:
    questions = [
        replace(asked, sampling=replace(GREEDY, **wishes), branches=branches)
        for asked, branches in ((text, 1), (image, 2))
        for wishes in WISHES
    ]
    with running(model, pipeline="off") as pair:
        alone = [told(pair.answer(asked)) for asked in questions]
    with running(model, pipeline="on", graphs=graphs, max_sequences=9) as pair:
        together = answers(pair, questions)
    assert [told(answer) for answer in together] == alone
    assert len({str(answer) for answer in alone}) == len(questions), "wishes that change nothing would prove nothing"


class Counting(Front):
    """Counts the decoding steps that were launched; `ahead` are those whose tokens nobody had been told."""

    def __init__(self, model: LanguageModel, sink: TokenSink) -> None:
        super().__init__(model)
        self.launched = 0
        self.ahead: list[int] = []
        self._sink = sink
        self.spoil = self.count

    def count(self, inputs: PagedInputs, logits: Tensor) -> Tensor:
        if max(inputs.query_lengths) == 1:
            self.launched += 1
            self.ahead.append(self.launched - 1 - len(self._sink.batches))
        return logits


def counted(model: LanguageModel, asked: Asked, **settings: Any) -> tuple[Counting, list[Token]]:
    sink = TokenSink()
    front = Counting(model, sink)
    with running(front, **settings) as pair:
        pair.sink = sink
        tokens = pair.answer(asked)[0]
        wait_until(pair.decode.idle, "the engine never became idle")
    return front, tokens


def test_a_step_is_launched_before_the_tokens_of_the_one_before_it_are_told(model: LanguageModel, text: Asked) -> None:
    front, _ = counted(model, text, pipeline="on")
    assert front.ahead == [0] + [1] * (GREEDY.max_tokens - 2)
    front, _ = counted(model, text, pipeline="off")
    assert front.ahead == [0] * (GREEDY.max_tokens - 1)


def test_an_answer_that_ends_by_length_wastes_no_step(model: LanguageModel, text: Asked) -> None:
    front, tokens = counted(model, text, pipeline="on")
    assert front.launched == len(tokens) - 1 == GREEDY.max_tokens - 1
    longest = text.layout.num_tokens + 5
    front, tokens = counted(model, text, pipeline="on", max_model_len=longest)
    assert front.launched == len(tokens) - 1 == 4


def test_what_follows_an_end_token_is_computed_and_seen_by_nobody(model: LanguageModel, text: Asked) -> None:
    _, tokens = counted(model, text, pipeline="off")
    place = next(place for place in range(2, 11) if tokens[place].id not in [token.id for token in tokens[:place]])
    stopping = replace(GREEDY, ignore_eos=False, stop_token_ids=(tokens[place].id,))
    front, stopped = counted(model, replace(text, sampling=stopping), pipeline="on")
    assert [token.id for token in stopped] == [token.id for token in tokens[: place + 1]]
    assert stopped[-1].finish_reason == "stop"
    assert front.launched == len(stopped), "one more than the tokens behind the first"


def test_a_request_that_leaves_with_a_token_in_flight_hears_no_more(model: LanguageModel, text: Asked) -> None:
    class Leaving(TokenSink):
        """Leaves when its third token is told: the fourth is in flight then."""

        heard = 0

        def tokens(self, batch: Sequence[tuple[RequestId, int, Token]]) -> None:
            super().tokens(batch)
            self.heard += 1
            if self.heard == 3:
                pair.decode.cancel(request_id)

    with running(model, pipeline="on") as pair:
        request_id, first = pair.begin(replace(text, sampling=ENDLESS))
        sink = Leaving()
        pair.decode.decode(replace(text, sampling=ENDLESS).decode_job(request_id, first), sink)
        with pytest.raises(Cancelled):
            sink.answer(request_id, first)
        wait_until(pair.decode.idle, "the engine never became idle")
        assert sink.heard == 3


def test_a_step_that_fails_behind_another_leaves_that_ones_token(
    model: LanguageModel, text: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    sink = TokenSink()
    front = Counting(model, sink)

    def fail_fourth(inputs: PagedInputs, logits: Tensor) -> Tensor:
        if front.count(inputs, logits) is logits and front.launched == 4:
            raise ValueError("a kernel of clay")
        return logits

    front.spoil = fail_fourth
    with caplog.at_level(logging.CRITICAL), running(front, pipeline="on") as pair:
        request_id, first = pair.begin(text)
        pair.decode.decode(text.decode_job(request_id, first), sink)
        with pytest.raises(InternalError, match="a kernel of clay"):
            sink.answer(request_id, first)
        assert len(pair.answer(text)[0]) == GREEDY.max_tokens
    assert len(sink.batches) == 3


def test_logits_of_nan_in_a_step_ahead_end_their_own_request_alone(
    model: LanguageModel, text: Asked, image: Asked
) -> None:
    front = Front(model)

    def spoil_third(inputs: PagedInputs, logits: Tensor) -> Tensor:
        at = [row for row, length in enumerate(inputs.kv_lengths) if length == text.layout.num_tokens + 3]
        if max(inputs.query_lengths) == 1:
            logits[at] = torch.nan
        return logits

    with running(front, pipeline="on") as pair:
        begun = [(asked, *pair.begin(asked)) for asked in (text, image)]
        front.spoil = spoil_third
        for asked, request_id, first in begun:
            pair.decode.decode(asked.decode_job(request_id, first), pair.sink)
        with pytest.raises(InternalError, match="not finite"):
            pair.sink.answer(*begun[0][1:])
        assert len(pair.sink.answer(*begun[1][1:])[0]) == GREEDY.max_tokens


def test_stopping_tells_the_tokens_that_are_in_flight(model: LanguageModel, text: Asked) -> None:
    asked, sink = replace(text, sampling=ENDLESS), TokenSink()
    front = Counting(model, sink)
    pair = Pair(front, split=False, settings=replace(SETTINGS, pipeline="on"))
    pair.decode.start()
    request_id, first = pair.begin(asked)
    pair.decode.decode(asked.decode_job(request_id, first), sink)
    sink.wait_for_tokens(request_id, 3)
    pair.decode.stop()
    assert len(sink.batches) == front.launched
    assert max(front.ahead) == 1
    pair.wait_idle()
