"""KV of an equal beginning is used again, images included; a prompt may have more rows than fit anywhere at once."""

import os
import signal
import threading
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.journey.clusters import ANSWER_SECONDS, Answer, Running, Variation
from tests.journey.conversations import Conversation, conversation, picture
from tests.reference import Answer as Wanted
from tests.reference import Reference, compare
from triptych.journey import Role

TOKENS = 24
LARGEST = (448, 448)  # pixels that make the most rows the random model takes, 256
MANY = 12
EVERY = [Variation(topology) for topology in ("e+p+d", "epd", "e+pd", "ep+d")]
# Landing memory and arena for two items: twelve of them go through in twelve windows.
TIGHT = [Variation(topology, chunk_tokens=300, room_for_items=2) for topology in ("e+p+d", "epd")]

# KV for two of the requests below: what one has left makes room for the next but one.
SCARCE = [Variation(topology, kv_blocks=26) for topology in ("e+p+d", "e+pd")]

every_cluster = pytest.mark.parametrize("cluster", EVERY, indirect=True, ids=str)
tight_cluster = pytest.mark.parametrize("cluster", TIGHT, indirect=True, ids=str)
scarce_cluster = pytest.mark.parametrize("cluster", SCARCE, indirect=True, ids=str)


@pytest.fixture(scope="module")
def reference(checkpoint_folders: dict[str, Path]) -> Any:
    """What transformers answers, once per conversation."""
    model = Reference(checkpoint_folders["random"])

    @cache
    def answer(name: str) -> Wanted:
        asked = CONVERSATIONS[name]
        return model.generate(asked.messages, asked.pictures, TOKENS)

    return answer


def about(name: str, *seeds: int, words: str = "What do these pictures have in common, if anything?") -> Conversation:
    return conversation(name, [*(picture(seed, (168, 140)) for seed in seeds), words])


CONVERSATIONS = {
    asked.name: asked
    for asked in (
        about("first", 501, 502),
        about("longer", 501, 502, 503),
        about("another picture", 504, 502),
        about("other order", 502, 501),
        about("sent once", 511, 512),
        about("turn", 521),
        conversation(
            "next turn",
            [picture(521, (168, 140)), "What do these pictures have in common, if anything?"],
            ["They are bright."],
            ["Which is brighter?"],
        ),
        about("other words", 501, 502, words="Which of these pictures is the brighter one?"),
        conversation("many", ["Look: ", *(picture(600 + n, LARGEST) for n in range(MANY)), "How many?"]),
        conversation("many more", ["See: ", *(picture(700 + n, LARGEST) for n in range(MANY)), "How many?"]),
    )
}


def ask(cluster: Running, reference: Any, name: str) -> Answer:
    """The answer, which is transformers' own whatever was cached."""
    (answer,) = cluster.answers(CONVERSATIONS[name].messages, TOKENS)
    compare(reference(name), answer.token_ids, answer.logprobs)
    return answer


def encoder_work(cluster: Running) -> float:
    """All that encoders were ever asked for: made, found, joined."""
    names = ("encoder_items_encoded_total", "encoder_cache_hits_total", "encoder_cache_joins_total")
    return sum(cluster.gauge(name, Role.ENCODE) for name in names)


def kv_tokens(cluster: Running) -> tuple[float, float]:
    """Prompt tokens whose KV was sent to decode, and that were not, because it was there."""
    return cluster.gauge("kv_sent_tokens_total", Role.DECODE), cluster.gauge("kv_kept_tokens_total", Role.DECODE)


def before_first_image(name: str, reference: Any) -> int:
    """Tokens of the prompt ahead of its first image."""
    ids = reference(name).prompt_ids
    return next(place for place in range(len(ids)) if ids[place : place + 30] == ids[place : place + 1] * 30)


@every_cluster
def test_an_equal_request_finds_its_kv_and_asks_no_encoder(cluster: Running, reference: Any) -> None:
    first = ask(cluster, reference, "first")
    cluster.seconds_until_idle(10)
    work = encoder_work(cluster)
    again = ask(cluster, reference, "first")
    assert encoder_work(cluster) == work
    assert again.token_ids == first.token_ids
    assert again.cached_tokens > first.prompt_tokens - 2 * 16
    assert cluster.gauge("prefix_hit_tokens_total", Role.PREFILL) >= again.cached_tokens
    cluster.seconds_until_idle(10)


@every_cluster
def test_kv_that_decode_has_is_not_sent_again(cluster: Running, reference: Any) -> None:
    before = kv_tokens(cluster)
    first = ask(cluster, reference, "sent once")
    sent, kept = kv_tokens(cluster)
    ask(cluster, reference, "sent once")
    sent_again, kept_again = kv_tokens(cluster)
    tail = first.prompt_tokens - (first.prompt_tokens - 1) // 16 * 16
    apart = "+d" in cluster.variation.topology
    assert sent_again - sent == (tail if apart else 0)
    assert kept_again - kept == first.prompt_tokens - tail
    assert sent - before[0] == (first.prompt_tokens - (kept - before[1]) if apart else 0)
    assert kept - before[1] < 60, "neither of its pictures was there"
    three = cluster.answers(CONVERSATIONS["sent once"].messages, TOKENS, n=3)
    assert {answer.token_ids for answer in three} == {first.token_ids}
    assert kv_tokens(cluster)[1] - kept_again == first.prompt_tokens - tail
    cluster.seconds_until_idle(10)


@every_cluster
def test_a_next_turn_sends_what_is_new_in_it(cluster: Running, reference: Any) -> None:
    asked = ask(cluster, reference, "turn")
    sent, kept = kv_tokens(cluster)
    longer = ask(cluster, reference, "next turn")
    sent_more, kept_more = kv_tokens(cluster)
    assert kept_more - kept >= asked.prompt_tokens // 16 * 16 - 16, "but for what ends the first prompt"
    if "+d" in cluster.variation.topology:
        assert sent_more - sent == longer.prompt_tokens - (kept_more - kept)


@scarce_cluster
def test_kv_that_had_to_make_room_is_sent_again_and_answers_stay_right(cluster: Running, reference: Any) -> None:
    names = ["first", "another picture", "other order"]
    for _ in range(2):
        for name in names:
            ask(cluster, reference, name)
    cluster.together([partial(ask, cluster, reference, name) for name in names * 2])
    cluster.seconds_until_idle(10)


@every_cluster
def test_only_pictures_behind_the_cached_beginning_are_encoded(cluster: Running, reference: Any) -> None:
    ask(cluster, reference, "first")
    cluster.seconds_until_idle(10)
    work = encoder_work(cluster)
    longer = ask(cluster, reference, "longer")
    assert longer.cached_tokens > 60, "two pictures of 30 rows are in it"
    assert encoder_work(cluster) <= work + 2, "the third, and the second where a block reaches over its end"
    other = ask(cluster, reference, "other words")
    assert other.cached_tokens > 60
    cluster.seconds_until_idle(10)


@every_cluster
@pytest.mark.parametrize("name", ["another picture", "other order"])
def test_equal_text_with_another_picture_finds_nothing_of_the_picture(
    cluster: Running, reference: Any, name: str
) -> None:
    ask(cluster, reference, "first")
    cluster.seconds_until_idle(10)
    answer = ask(cluster, reference, name)
    assert answer.cached_tokens <= before_first_image(name, reference)


@tight_cluster
def test_twelve_pictures_go_through_room_for_two(cluster: Running, reference: Any) -> None:
    answer = ask(cluster, reference, "many")
    assert answer.prompt_tokens > MANY * 256
    assert cluster.gauge("encoder_cache_evictions_total", Role.ENCODE) >= MANY - 2
    cluster.seconds_until_idle(10)
    work = encoder_work(cluster)
    again = ask(cluster, reference, "many")
    assert again.cached_tokens > MANY * 256
    assert encoder_work(cluster) == work
    cluster.seconds_until_idle(10)


@tight_cluster
def test_many_such_prompts_at_once_share_the_room_and_all_end_well(cluster: Running, reference: Any) -> None:
    names = ["many more", "many more", "many", "first", "longer"]
    for name in names:
        reference(name)  # ahead of time, for two cores do not compute both at once in time
    cluster.together([partial(ask, cluster, reference, name) for name in names])
    cluster.seconds_until_idle(10)


@pytest.mark.parametrize("cluster", TIGHT[:1], indirect=True, ids=str)
def test_an_encoder_killed_between_windows_costs_no_wrong_answer(cluster: Running, reference: Any) -> None:
    messages = conversation("killed", [*(picture(800 + n, LARGEST) for n in range(MANY)), "How many?"]).messages
    address = next(address for address in cluster.addresses() if Role.ENCODE in address.roles)
    body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    encoded = cluster.gauge("encoder_items_encoded_total", Role.ENCODE)
    replies: list[Any] = []
    thread = threading.Thread(target=lambda: replies.append(cluster.post(body, timeout=ANSWER_SECONDS)))
    thread.start()
    deadline = time.monotonic() + 30
    while cluster.gauge("encoder_items_encoded_total", Role.ENCODE) < encoded + 3:
        assert time.monotonic() < deadline, "the encoder was not asked for the second window"
    os.kill(address.pid, signal.SIGKILL)
    thread.join(timeout=ANSWER_SECONDS)
    (reply,) = replies
    deadline = time.monotonic() + 60
    while not any(a.worker_id == address.worker_id and a.pid != address.pid for a in cluster.addresses()):
        assert time.monotonic() < deadline, "the encoder did not come back"
        time.sleep(0.1)
    (after,) = cluster.answers(messages, TOKENS)
    assert reply.status_code in (200, 500, 502, 503, 504), reply.text
    if reply.status_code == 200:
        assert tuple(reply.json()["choices"][0]["token_ids"]) == after.token_ids
    cluster.seconds_until_idle(20)
