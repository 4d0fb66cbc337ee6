"""Streams to the byte, and the choices they are made of."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.router.requests import text_request, token, tokens_of
from triptych.errors import WorkerLost
from triptych.journey import Token
from triptych.metrics import RouterMetrics
from triptych.models.card import ModelCard
from triptych.router.api.choices import Choices, Delta
from triptych.router.api.completion import CompletionHead
from triptych.router.api.sse import DONE, ChunkWriter, error_frame
from triptych.router.edge.failures import error_body
from triptych.router.pipeline.detokenize import Detokenizer
from triptych.router.pipeline.prompt import PromptBuilder
from triptych.router.pipeline.request import Request

HEAD = CompletionHead("chatcmpl-0", 1700000000, "m")


@pytest.fixture(scope="session")
def detokenizer(card: ModelCard, prompts: PromptBuilder) -> Detokenizer:
    return Detokenizer(prompts.tokenizer, card.vocab_size)


def choices_of(
    request: Request, detokenizer: Detokenizer, stops: Sequence[str] = (), logprobs: bool = False
) -> Choices:
    return Choices(request, detokenizer, RouterMetrics(), stops, logprobs)


def fed(choices: Choices, request: Request, tokens: Sequence[Token]) -> list[Delta]:
    """One token at a time, as they come."""
    deltas = []
    for each in tokens:
        request.deliver([each])
        deltas += choices.feed([each])
    return deltas


def ids_of(prompts: PromptBuilder, text: str) -> list[int]:
    return prompts.encode_text(text)


def writer(branches: int = 1, token_ids: bool = False) -> ChunkWriter:
    return ChunkWriter(HEAD, branches, token_ids=token_ids, prompt_token_ids=(1, 2) if token_ids else ())


def events(frames: str) -> list[dict[str, Any]]:
    assert "\r" not in frames
    pieces = frames.split("\n\n")
    assert pieces.pop() == ""
    assert all(piece.startswith("data: {") and "\n" not in piece for piece in pieces)
    return [json.loads(piece.removeprefix("data: ")) for piece in pieces]


def test_a_stream_is_to_the_byte_what_clients_read() -> None:
    frames = writer().frames(Delta(0, text='a "b"\n'))
    begin = (
        'data: {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1700000000, "model": "m", "choices": '
    )
    role = '[{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]}\n\n'
    text = '[{"index": 0, "delta": {"content": "a \\"b\\"\\n"}, "logprobs": null, "finish_reason": null}]}\n\n'
    assert frames == begin + role + begin + text
    assert DONE == "data: [DONE]\n\n"


def test_the_role_comes_once_per_choice_and_the_finish_has_an_empty_delta() -> None:
    write = writer(branches=2)
    frames = "".join(
        [
            write.frames(Delta(0, text="a")),
            write.frames(Delta(1, text="b")),
            write.frames(Delta(0, text="c", finish_reason="stop")),
            write.frames(Delta(1, finish_reason="length")),
        ]
    )
    shape = [
        (choice["index"], choice["delta"], choice["finish_reason"])
        for event in events(frames)
        for choice in event["choices"]
    ]
    assert shape == [
        (0, {"role": "assistant", "content": ""}, None),
        (0, {"content": "a"}, None),
        (1, {"role": "assistant", "content": ""}, None),
        (1, {"content": "b"}, None),
        (0, {"content": "c"}, None),
        (0, {}, "stop"),
        (1, {}, "length"),
    ]


def test_tokens_without_text_are_told_by_an_empty_content_chunk() -> None:
    write = writer()
    first, second = events(write.frames(Delta(0))), events(write.frames(Delta(0)))
    assert [event["choices"][0]["delta"] for event in first] == [{"role": "assistant", "content": ""}, {"content": ""}]
    assert [event["choices"][0]["delta"] for event in second] == [{"content": ""}]


def test_usage_is_a_chunk_without_choices() -> None:
    (event,) = events(writer().usage({"prompt_tokens": 3}))
    assert event["choices"] == []
    assert event["usage"] == {"prompt_tokens": 3}


def test_continuous_usage_is_on_every_chunk() -> None:
    frames = writer().frames(Delta(0, text="a", finish_reason="stop"), usage={"completion_tokens": 1})
    assert [event["usage"] for event in events(frames)] == [{"completion_tokens": 1}] * 3


def test_a_failure_is_an_error_event() -> None:
    frame = error_frame(error_body(WorkerLost("gone")))
    assert frame == (
        'event: error\ndata: {"error": {"message": "the cluster could not finish the request; try again", '
        '"type": "server_error", "param": null, '
        '"code": "service_unavailable"}}\n\n'
    )


def test_token_ids_come_with_every_chunk_when_asked_for() -> None:
    write = writer(token_ids=True)
    frames = write.frames(Delta(0, text="a", token_ids=[5, 6])) + write.frames(
        Delta(0, token_ids=[7], finish_reason="stop")
    )
    told = events(frames)
    assert told[0]["prompt_token_ids"] == [1, 2]
    assert [event["choices"][0]["token_ids"] for event in told] == [[], [5, 6], [7]]


def test_choices_turn_tokens_into_text(detokenizer: Detokenizer, prompts: PromptBuilder) -> None:
    request = text_request()
    choices = choices_of(request, detokenizer)
    deltas = fed(choices, request, tokens_of(ids_of(prompts, "hello 漢字")))
    assert "".join(delta.text for delta in deltas) == "hello 漢字"
    assert not any("�" in delta.text for delta in deltas)
    assert deltas[-1].finish_reason == "length"
    assert request.all_finished.is_set()


def test_the_end_token_is_counted_and_not_shown(
    detokenizer: Detokenizer, prompts: PromptBuilder, card: ModelCard
) -> None:
    request = text_request()
    choices = choices_of(request, detokenizer)
    ids = [*ids_of(prompts, "ab"), card.eos_token_ids[0]]
    deltas = fed(choices, request, tokens_of(ids, finish="stop"))
    assert "".join(delta.text for delta in deltas) == "ab"
    assert choices.completion_tokens == len(ids)


def test_a_stop_string_ends_the_choice_and_later_tokens_are_dropped(
    detokenizer: Detokenizer, prompts: PromptBuilder
) -> None:
    request = text_request(branches=2)
    choices = choices_of(request, detokenizer, stops=["lo w"])
    deltas = fed(choices, request, tokens_of(ids_of(prompts, "hello world"), finish=""))
    assert "".join(delta.text for delta in deltas) == "hel"
    assert deltas[-1].finish_reason == "stop"
    assert request.stopped_early
    assert not request.all_finished.is_set()  # the other choice goes on
    request.deliver([token(5, 99)])  # the worker does not know yet; positions do not matter any more
    assert len(request.generated[0]) < 99


def test_a_held_back_stop_prefix_is_shown_at_the_end(detokenizer: Detokenizer, prompts: PromptBuilder) -> None:
    request = text_request()
    choices = choices_of(request, detokenizer, stops=["lol"])
    deltas = fed(choices, request, tokens_of(ids_of(prompts, "hello")))
    assert "".join(delta.text for delta in deltas) == "hello"


def test_a_stop_string_within_min_tokens_does_not_count(detokenizer: Detokenizer, prompts: PromptBuilder) -> None:
    request = text_request(min_tokens=4)
    choices = choices_of(request, detokenizer, stops=["a"])
    ids = ids_of(prompts, "aa") + ids_of(prompts, "bb") + ids_of(prompts, "xa") + ids_of(prompts, "zz")
    deltas = fed(choices, request, tokens_of(ids))
    text = "".join(delta.text for delta in deltas)
    assert text.startswith("aabb")
    assert text.endswith("x")


def test_logprobs_join_to_the_text_and_have_one_entry_per_token(
    detokenizer: Detokenizer, prompts: PromptBuilder, card: ModelCard
) -> None:
    request = text_request()
    choices = choices_of(request, detokenizer, logprobs=True)
    ids = [*ids_of(prompts, "hé漢"), card.eos_token_ids[0]]
    write = writer()
    frames = "".join(write.frames(delta) for delta in fed(choices, request, tokens_of(ids, finish="stop")))
    entries = [
        entry
        for event in events(frames)
        for choice in event["choices"]
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    assert len(entries) == len(ids)
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "hé漢"
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 1 for entry in entries)
    assert entries[-1]["top_logprobs"][0]["token"] == "<|im_end|>"


def test_a_logprob_of_nothing_is_the_floor(detokenizer: Detokenizer) -> None:
    request = text_request()
    choices = choices_of(request, detokenizer, logprobs=True)
    (delta,) = choices.feed([Token(id=5, logprob=float("-inf"), choice=0, position=0)])
    assert delta.logprobs[0]["logprob"] == -9999.0
    json.dumps(delta.logprobs, allow_nan=False)
