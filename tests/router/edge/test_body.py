"""What is known of a body before anyone parses it."""

import random

import pytest
from starlette.requests import Request
from starlette.types import Message

from triptych.errors import Overloaded
from triptych.router.edge.body import Body, num_found, num_value_signs, read_body
from triptych.router.edge.budget import ByteBudget


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


class Upload:
    """A request whose body comes piece by piece, telling the budget's state as each is asked for."""

    def __init__(self, budget: ByteBudget, pieces: list[bytes], declared: int | None = None) -> None:
        headers = [] if declared is None else [(b"content-length", str(declared).encode())]
        self.http = Request({"type": "http", "method": "POST", "headers": headers}, self._receive)
        self.held: list[int] = []
        self._budget = budget
        self._pieces = pieces

    async def _receive(self) -> Message:
        self.held.append(self._budget.held_bytes)
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def read(self) -> bytes:
        with self._budget.holding() as holding:
            return (await read_body(self.http, 1 << 30, 5.0, holding)).data


@pytest.mark.anyio
async def test_a_body_that_would_not_fit_is_turned_away_unread() -> None:
    budget = ByteBudget(1000)
    upload = Upload(budget, [b"x" * 1001], declared=1001)
    with pytest.raises(Overloaded):
        await upload.read()
    assert upload.held == []
    assert budget.held_bytes == 0


@pytest.mark.anyio
async def test_a_declared_body_is_held_before_it_comes() -> None:
    budget = ByteBudget(1000)
    upload = Upload(budget, [b"x" * 400, b"x" * 200], declared=600)
    assert await upload.read() == b"x" * 600
    assert upload.held == [600, 600]
    assert budget.held_bytes == 0


@pytest.mark.anyio
async def test_of_a_long_body_no_more_is_held_than_has_come_and_a_little_ahead() -> None:
    mib = 1 << 20
    upload = Upload(ByteBudget(100 * mib), [bytes(mib)] * 10, declared=10 * mib)
    assert len(await upload.read()) == 10 * mib
    assert [held // mib for held in upload.held] == [4, 4, 4, 4, 4, 9, 9, 9, 9, 9]


@pytest.mark.anyio
async def test_a_body_of_undeclared_length_is_held_as_it_comes() -> None:
    budget = ByteBudget(1000)
    upload = Upload(budget, [b"x" * 400] * 3)
    with pytest.raises(Overloaded):
        await upload.read()
    assert upload.held == [0, 400, 800]
    assert budget.held_bytes == 0
