"""Whether what a grammar allows is what its schema says: answers drawn at random, held against the schema itself."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jsonschema
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

_LONGEST_ANSWER = 250  # tokens; longer ones are not counted

# What schemas say seldom, and libraries leave out: each should be kept to, or refused.
SELDOM: Sequence[Mapping[str, Any]] = (
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 3, "maxItems": 3},
    {"type": "string", "maxLength": 3, "not": {"const": "a"}, "enum": ["a", "b"]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 5}, {"type": "integer", "minimum": 3, "maximum": 9}]},
    {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "minItems": 2, "maxItems": 2},
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "dependentRequired": {"a": ["b"]}},
    {"type": "integer", "minimum": 0, "maximum": 99, "multipleOf": 7},
    {"allOf": [{"type": "integer", "minimum": 5, "maximum": 50}, {"type": "integer", "maximum": 9}]},
    {"if": {"const": 1}, "then": False, "else": True, "enum": [1, 2]},
)


class Masked(Protocol):
    """A grammar being followed, as bench/grammar.py has it."""

    def mask(self, into: NDArray[np.int32]) -> None: ...

    def accept(self, token: int) -> bool: ...


def verdicts(
    compile: Callable[[str], Masked],
    tokenizer: dict[str, Any],
    end: int,
    schemas: Sequence[Mapping[str, Any]],
    draws: int,
) -> dict[str, int]:
    """How many schemas are kept to in all answers, broken by one, or refused when they are compiled."""
    found = {"kept": 0, "broken": 0, "refused": 0}
    read = Tokenizer.from_str(json.dumps(tokenizer))
    for place, schema in enumerate(schemas):
        try:
            answers = [
                _drawn(compile(json.dumps(schema)), read, end, random.Random(f"{place} {n}")) for n in range(draws)
            ]
        except (ValueError, RuntimeError):
            found["refused"] += 1
            continue
        is_kept = all(_is_valid(answer, schema) for answer in answers if answer is not None)
        found["kept" if is_kept else "broken"] += 1
    return found


def _drawn(follower: Masked, read: Tokenizer, end: int, rng: random.Random) -> str | None:
    """An answer that ends by itself; where it may, it ends every third time."""
    mask = np.zeros(-(-read.get_vocab_size() // 32), dtype=np.int32)
    said: list[int] = []
    while len(said) < _LONGEST_ANSWER:
        follower.mask(mask)
        ids: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
        if end in ids and (len(ids) == 1 or rng.random() < 0.3):
            text: str = read.decode(said, skip_special_tokens=False)
            return text
        said.append(rng.choice([id for id in ids if id != end]))
        follower.accept(said[-1])
    return None


def _is_valid(answer: str, schema: Mapping[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(answer), schema)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True
