"""Requests for tests of what happens behind HTTP."""

from collections.abc import Sequence

from triptych.journey import Token, new_request_id
from triptych.multimodal.layout import TextPart, lay_out
from triptych.router.observe.timeline import Timeline
from triptych.router.pipeline.request import Prepared, Request
from triptych.sampling import Sampling


def text_request(
    token_ids: Sequence[int] = (1, 2, 3), branches: int = 1, max_tokens: int = 16, min_tokens: int = 0
) -> Request:
    prepared = Prepared(
        layout=lay_out([TextPart(tuple(token_ids))]),
        media=(),
        sampling=Sampling(temperature=0.0, max_tokens=max_tokens, min_tokens=min_tokens),
        branches=branches,
        image_params=(),
    )
    return Request(new_request_id(), prepared, Timeline())


def token(id_: int, position: int, choice: int = 0, finish: str = "") -> Token:
    return Token(id=id_, logprob=-0.5, choice=choice, position=position, finish_reason=finish, top=((id_, -0.5),))


def tokens_of(ids: Sequence[int], choice: int = 0, finish: str = "length") -> list[Token]:
    last = len(ids) - 1
    return [token(id_, index, choice, finish if index == last else "") for index, id_ in enumerate(ids)]
