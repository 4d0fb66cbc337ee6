"""Every topology gives the tokens that transformers' own generate gives, over HTTP."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from tests.journey.clusters import Answer, Running, Variation
from tests.journey.conversations import Conversation, conversations
from tests.reference import Answer as Wanted
from tests.reference import Reference, compare
from triptych.config import TOPOLOGIES

TOKENS = 48
SEEDED = {"temperature": 1.0, "seed": 11, "n": 2}

# Each topology with both models and both chunk sizes, in as few clusters as that takes.
VARIATIONS = [Variation(topology, "random", 17) for topology in TOPOLOGIES]
VARIATIONS += [Variation(topology, "random", 4096) for topology in TOPOLOGIES]
VARIATIONS += [Variation("e+p+d", "embedded", 17), Variation("epd", "embedded", 4096)]
EMBEDDED_REST = [Variation("ep+d", "embedded", 4096), Variation("e+pd", "embedded", 17)]

every_cluster = pytest.mark.parametrize("cluster", VARIATIONS + EMBEDDED_REST, indirect=True, ids=str)


@pytest.fixture(scope="module")
def wanted(checkpoint_folders: dict[str, Path]) -> Callable[[str, Conversation], Wanted]:
    """The reference's answer to a conversation, computed once for all clusters."""
    answers: dict[tuple[str, str], Wanted] = {}

    @cache
    def reference(model: str) -> Reference:
        return Reference(checkpoint_folders[model])

    def answer(model: str, conversation: Conversation) -> Wanted:
        key = (model, repr(conversation.messages))
        if key not in answers:
            answers[key] = reference(model).generate(conversation.messages, conversation.pictures, TOKENS)
        return answers[key]

    return answer


@every_cluster
def test_sixteen_requests_at_once_get_the_tokens_of_generate(
    cluster: Running, wanted: Callable[[str, Conversation], Wanted]
) -> None:
    asked = [*conversations(0), *conversations(1), *conversations(2)][:16]
    replies: list[list[Answer]] = cluster.together([partial(cluster.answers, c.messages, TOKENS) for c in asked])
    ties = 0
    for conversation, (reply,) in zip(asked, replies, strict=True):
        reference = wanted(cluster.variation.model, conversation)
        assert reply.prompt_tokens == len(reference.prompt_ids), conversation.name
        ties += compare(reference, reply.token_ids, reply.logprobs).near_tie
    assert ties <= len(asked) * TOKENS / 1000


@every_cluster
def test_one_request_alone_gets_the_same_tokens_again(
    cluster: Running, wanted: Callable[[str, Conversation], Wanted]
) -> None:
    for conversation in conversations(0)[1:4]:
        (reply,) = cluster.answers(conversation.messages, TOKENS)
        compare(wanted(cluster.variation.model, conversation), reply.token_ids, reply.logprobs)


SEEDED_ANSWERS: dict[str, list[tuple[int, ...]]] = {}


@every_cluster
def test_seeded_sampling_gives_the_same_tokens_in_every_topology(cluster: Running) -> None:
    asked = conversations(0)
    replies = [
        tuple(answer.token_ids)
        for conversation in asked
        for answer in cluster.answers(conversation.messages, TOKENS, **SEEDED)
    ]
    assert replies[0] != replies[1], "two choices of one request must differ"
    first = SEEDED_ANSWERS.setdefault(cluster.variation.model, replies)
    assert replies == first
