"""How much a request has taken, as every API tells it in its own words."""

from dataclasses import dataclass

from triptych.router.pipeline.request import Request


@dataclass(frozen=True, slots=True)
class Usage:
    """Numbers of tokens. Of the prompt's, some are embedding rows of images, and some were cached."""

    prompt_tokens: int
    completion_tokens: int
    image_tokens: int
    cached_tokens: int


def usage_of(request: Request, completion_tokens: int) -> Usage:
    return Usage(request.prompt_tokens, completion_tokens, request.image_tokens, request.cached_tokens)
