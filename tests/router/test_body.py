"""What is known of a body before anyone parses it."""

import random

import pytest

from triptych.router.body import Body, num_found, num_value_signs


@pytest.mark.parametrize("seed", range(20))
def test_signs_are_counted_as_they_are(seed: int) -> None:
    rng = random.Random(seed)
    alphabet = rng.choice((b'a,[{"', b"A" * 200 + b",", b"xyz", b"[", b",[{"))
    piece = bytes(rng.choices(alphabet, k=rng.randrange(5000)))
    assert num_value_signs(piece) == sum(map(piece.count, (b",", b"[", b"{")))


def test_nothing_is_looked_for_behind_as_many_as_are_wanted() -> None:
    assert num_found(b"a,b,c,", b",", 2) == 2
    assert num_found(b"a,b,c,", b",", 9) == 3
    assert num_found(b"", b",", 9) == 0


def body_of(text: bytes) -> Body:
    return Body(text, num_value_signs(text))


def test_images_are_parsed_at_once_and_what_takes_a_parser_long_is_not() -> None:
    image = b'{"url":"' + b"A" * (2 << 20) + b'"}'
    assert body_of(image).is_quickly_parsed
    assert body_of(b"[" * 100).is_quickly_parsed  # short
    assert not body_of(b'"' + b"\\u00e9" * 10_000 + b'"').is_quickly_parsed
    assert not body_of(b"[" + b"0," * 10_000 + b"0]").is_quickly_parsed
    assert not body_of(image * 5).is_quickly_parsed
