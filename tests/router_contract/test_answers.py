"""Cases P1 to P14 of the contract: what an answer and a stream look like."""

from typing import Any

import pytest
from PIL import Image
from transformers import AutoProcessor

from tests.checkpoints import EMBEDDED
from tests.journey.messages import text, user
from tests.router_contract.errors import error_of
from tests.served import MOST_IMAGES, PICTURES, PictureSite, Served, shown

COLOUR = "What colour is the shape?"


def test_P1_an_image_and_text_get_an_answer(served: Served) -> None:
    (choice,) = served.answer(shown(), COLOUR, max_tokens=10)["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"] == "red"
    assert choice["finish_reason"] == "stop"
    long = served.answer(shown(), COLOUR, max_tokens=10, ignore_eos=True)
    assert long["choices"][0]["finish_reason"] == "length"
    assert long["usage"]["completion_tokens"] == 10


def test_P2_a_url_and_a_data_uri_of_one_image_are_alike(served: Served, site: PictureSite) -> None:
    remote = {"type": "image_url", "image_url": {"url": f"{site.url}/red-circle.png"}}
    by_url, by_data = (served.answer(part, "What is in the image?", logprobs=True) for part in (remote, shown()))
    assert by_url["usage"]["prompt_tokens"] == by_data["usage"]["prompt_tokens"]
    assert by_url["choices"] == by_data["choices"]


@pytest.mark.parametrize("name", ["red-circle.png", "chart.png", "sign-cafe.jpg"])
def test_P3_prompt_tokens_are_the_processors_own_count(served: Served, name: str) -> None:
    processor = AutoProcessor.from_pretrained(EMBEDDED, local_files_only=True)
    plain = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": COLOUR}]}]
    prompt = processor.apply_chat_template(plain, add_generation_prompt=True, tokenize=False)
    picture = Image.open(PICTURES / name).convert("RGB")
    expected = len(processor(text=[prompt], images=[picture])["input_ids"][0])
    usage = served.answer(shown(name), COLOUR)["usage"]
    assert usage["prompt_tokens"] == expected
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_P4_both_names_of_the_token_limit_mean_the_same(served: Served) -> None:
    old, new = (
        served.text("hello", ignore_eos=True, **{"max_tokens": None, name: 10})
        for name in ("max_tokens", "max_completion_tokens")
    )
    assert old == new


def test_P5_a_stream_says_what_the_whole_answer_says(served: Served) -> None:
    (whole,) = served.answer(shown(), "What is in the image?")["choices"]
    choices = [choice for chunk in served.chunks(shown(), "What is in the image?") for choice in chunk["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == whole["message"]["content"]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == [whole["finish_reason"]]


def test_P6_the_first_chunk_has_the_role_and_all_have_one_id(served: Served) -> None:
    chunks = served.chunks(shown(), COLOUR, n=2)
    for index in (0, 1):
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert deltas[0]["role"] == "assistant"
        assert not any("role" in delta for delta in deltas[1:])
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert isinstance(chunks[0]["created"], int)


def test_P7_usage_is_the_last_chunk_for_those_who_ask(served: Served) -> None:
    *chunks, last = served.chunks(shown(), COLOUR, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] > 16
    assert last["usage"]["completion_tokens"] > 0
    assert not any(chunk.get("usage") for chunk in chunks)


@pytest.mark.parametrize("options", [None, {}])
def test_P8_usage_is_told_to_nobody_else(served: Served, options: Any) -> None:
    chunks = served.chunks(shown(), COLOUR, stream_options=options)
    assert all(chunk["choices"] for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)


@pytest.mark.parametrize("stream", [False, None])
def test_P9_stream_options_without_a_stream_are_refused(served: Served, stream: Any) -> None:
    response = served.chat("hello", stream=stream, stream_options={"include_usage": True})
    assert error_of(response)["param"] == "stream_options"


def test_P10_continuous_usage_grows_up_to_the_total(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    chunks = served.chunks("hello", max_tokens=12, ignore_eos=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 12
    assert chunks[-1]["choices"] == []


def test_P11_two_images_are_told_apart_by_their_order(served: Served) -> None:
    names = ("red-circle.png", "sign-tea.png")
    same = [shown(names[0]), shown(names[0])]
    assert len(served.answer(*same, "Do both images say the same?")["choices"]) == 1
    forth = served.answer(shown(names[0]), shown(names[1]), "What?", return_token_ids=True, logprobs=True)
    back = served.answer(shown(names[1]), shown(names[0]), "What?", return_token_ids=True, logprobs=True)
    assert forth["usage"]["prompt_tokens"] == back["usage"]["prompt_tokens"]
    assert forth["choices"][0]["logprobs"] != back["choices"][0]["logprobs"]


def test_P12_too_many_images_are_refused_and_the_next_request_is_answered(served: Served) -> None:
    error = error_of(served.chat(*[shown()] * (MOST_IMAGES + 1), "How many?"))
    assert str(MOST_IMAGES) in error["message"]
    assert served.text("hello")


def test_P13_an_image_may_be_spoken_of_again(served: Served) -> None:
    messages = [
        user(shown(), COLOUR),
        {"role": "assistant", "content": [text("red")]},
        user("What shape is this?"),
    ]
    assert "circle" in served.text(messages=messages)


def test_P14_text_in_parts_is_text_in_a_string(served: Served) -> None:
    words = [("system", "Be brief."), ("user", "hello"), ("assistant", "Hello!"), ("user", "What are you?")]
    strings = [{"role": role, "content": said} for role, said in words]
    parts = [{"role": role, "content": [text(said)]} for role, said in words]
    one, other = (served.answer(messages=messages, return_token_ids=True) for messages in (strings, parts))
    assert one["prompt_token_ids"] == other["prompt_token_ids"]
    assert one["choices"] == other["choices"]
