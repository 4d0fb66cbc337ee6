"""Whatever comes, the router answers or refuses it, soon, and holds on to nothing."""

import copy
import json
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.checkpoints import EMBEDDED
from tests.fuzz import strategies as ours
from tests.fuzz.conftest import Target

CHAT = "/v1/chat/completions"
MIB = 1 << 20
CASES = {"bodies": 1500, "bytes": 500, "nesting": 200, "text": 600, "files": 900, "urls": 400, "others": 900}
WARM_UP = 300
# Where memory is compared from: by then every code path has been gone and every pool has its size.
MOST_GROWN = 48 * MIB


def test_cases_are_many() -> None:
    assert sum(CASES.values()) >= 5000


@pytest.fixture(scope="module")
def flat(target: Target) -> Any:
    """Memory after the first cases against memory after the last."""
    for count in range(WARM_UP):
        target.post(CHAT, json=request(f"word {count} " * (count % 50)))
    before = target.resident_bytes()
    yield
    end = time.monotonic() + 10
    while (grown := target.resident_bytes() - before) > MOST_GROWN:
        assert time.monotonic() < end, f"{grown / MIB:.0f} MiB more after {target.cases} cases"
        time.sleep(0.1)


def request(content: Any, **fields: Any) -> dict[str, Any]:
    return {"model": ours.MODEL, "messages": [{"role": "user", "content": content}], **fields}


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


@pytest.mark.usefixtures("flat")
@settings(max_examples=CASES["bodies"])
@given(ours.bodies())
def test_bodies_that_are_nearly_right(target: Target, body: dict[str, Any]) -> None:
    target.post(CHAT, content=encoded(body))


@pytest.mark.usefixtures("flat")
@settings(max_examples=CASES["bytes"])
@given(ours.bodies().map(encoded), st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), max_size=4))
def test_bytes_that_are_nearly_json(target: Target, body: bytes, edits: list[tuple[float, bytes]]) -> None:
    for where, data in edits:
        place = int(where * len(body))
        body = body[:place] + data + body[place + 1 :]
    target.post(CHAT, content=body)


@pytest.mark.usefixtures("flat")
@settings(max_examples=CASES["nesting"])
@given(st.integers(1, 4000), st.sampled_from(["[", '{"a":', '[{"a":[', "1", '"\\u', "\\", "-", "1e9", " "]))
def test_nesting_and_repeats_do_not_hurt(target: Target, times: int, piece: str) -> None:
    body = encoded(request("hello"))[:-1] + b', "x": ' + (piece * times).encode() + b"}"
    target.post(CHAT, content=body)


@pytest.fixture(scope="module")
def special_ids() -> set[int]:
    added = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).get_added_tokens_decoder()
    return {number for number, token in added.items() if token.special}


@pytest.mark.usefixtures("flat")
@settings(max_examples=CASES["text"])
@given(st.sampled_from(["user", "assistant", "system"]), st.lists(ours.texts, min_size=1, max_size=3))
def test_text_stays_text(target: Target, special_ids: set[int], role: str, said: list[str]) -> None:
    """Special tokens of a prompt are the template's: as many as with a plain word in the text's place."""

    def specials(words: list[str]) -> Counter[int]:
        image = {"type": "image_url", "image_url": {"url": ours.data_uri(ours.FILES["png"])}}
        parts = [{"type": "text", "text": word} for word in words]
        messages = [{"role": role, "content": parts}, {"role": "user", "content": [image, *parts]}]
        body = {"model": ours.MODEL, "messages": messages, "max_tokens": 1, "return_token_ids": True}
        response = target.post(CHAT, content=encoded(body))
        assert response.status_code == 200, response.text
        return Counter(number for number in response.json()["prompt_token_ids"] if number in special_ids)

    key = role, len(said)
    if key not in _SPECIALS_OF_PLAIN:
        _SPECIALS_OF_PLAIN[key] = specials(["word"] * len(said))
    assert specials(said) == _SPECIALS_OF_PLAIN[key]


_SPECIALS_OF_PLAIN: dict[tuple[str, int], Counter[int]] = {}


@pytest.mark.usefixtures("flat")
@settings(max_examples=CASES["files"])
@given(st.lists(ours.images(), min_size=1, max_size=3), st.booleans())
def test_files_that_are_nearly_images(target: Target, files: list[bytes], stream: bool) -> None:
    content = [{"type": "image_url", "image_url": {"url": ours.data_uri(data)}} for data in files]
    response = target.post(CHAT, json=request(content, max_tokens=2, stream=stream))
    assert response.status_code in (200, 400, 413)


@pytest.mark.usefixtures("flat")
@settings(max_examples=CASES["urls"])
@given(ours.urls)
def test_urls_of_every_kind(target: Target, url: str) -> None:
    body = request([{"type": "image_url", "image_url": {"url": url}}], max_tokens=2)
    assert target.post(CHAT, content=encoded(body)).status_code in (200, 400, 413)


_PATHS = {
    "/v1/completions": ("prompt",),
    "/v1/responses": ("input", "instructions", "tools", "tool_choice", "text"),
    "/v1/messages": ("messages", "system", "tools", "tool_choice", "max_tokens"),
    "/v1/messages/count_tokens": ("messages", "system"),
    "/tokenize": ("prompt", "messages", "add_special_tokens"),
    "/detokenize": ("tokens",),
}


@pytest.mark.usefixtures("flat")
@settings(max_examples=CASES["others"])
@given(st.sampled_from(sorted(_PATHS)), ours.bodies(), st.data())
def test_other_endpoints(target: Target, path: str, body: dict[str, Any], data: st.DataObject) -> None:
    body = copy.copy(body)
    for name in _PATHS[path]:
        right = ours.messages if name in ("messages", "input") else ours.texts
        body[name] = data.draw(ours.or_junk(right))
    if path == "/v1/messages":
        body["max_tokens"] = data.draw(ours.or_junk(st.integers(0, 5)))
    target.post(path, content=encoded(body))
