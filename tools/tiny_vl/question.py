"""A question about a scene and its one right answer, before it is put into words."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, and what must be answered.

    topic: the phrasings' name in the phrasebook; fields: what their slots hold
    needs: the figures (places in the scene) that the answer describes
    reveals: the figures whose colour and shape question and answer give away together; a later question that needs
        one of them could be answered from the text alone
    orders: tells how figures lie to each other
    tells_all: leaves nothing to ask
    """

    kind: str
    topic: str
    answer: str
    fields: Mapping[str, str] = field(default_factory=dict)
    needs: frozenset[int] = frozenset()
    reveals: frozenset[int] = frozenset()
    orders: bool = False
    tells_all: bool = False


def leaks(asked: list[Question], question: Question) -> bool:
    """Whether the questions before give the answer away."""
    return any(
        earlier.tells_all
        or (earlier.topic, earlier.fields) == (question.topic, question.fields)
        or (earlier.orders and question.topic.startswith("is-"))
        or (earlier.topic.startswith("is-") and question.orders)
        or bool(earlier.reveals & question.needs)
        for earlier in asked
    )
