"""What the endpoints that take JSON are, for the API's description and its page in docs/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from pydantic import BaseModel

from triptych.router.api import schema as chat
from triptych.router.api import tokenize
from triptych.router.api.anthropic import schema as anthropic
from triptych.router.api.completions import schema as completions
from triptych.router.api.responses import schema as responses

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Described:
    """One endpoint.

    ignored: fields that clients send and nobody reads, with what that means
    refused: fields of the schema that are there to be refused, with what to do
    nested:  by path, what is checked by hand: parts, items, blocks, tools
    """

    path: str
    summary: str
    request: type[BaseModel]
    ignored: Mapping[str, str] = field(default_factory=lambda: _NONE)
    refused: Mapping[str, str] = field(default_factory=lambda: _NONE)
    nested: Mapping[str, str] = field(default_factory=lambda: _NONE)
    streams: bool = False
    has_images: bool = False


POSTS: Sequence[Described] = (
    Described(
        "/v1/chat/completions",
        "An answer to a conversation with images, in OpenAI's shape",
        chat.ChatRequest,
        chat.IGNORED,
        chat.REFUSED,
        chat.NESTED,
        streams=True,
        has_images=True,
    ),
    Described(
        "/v1/completions",
        "The continuation of one or several texts, without a chat template",
        completions.CompletionRequest,
        completions.IGNORED,
        completions.REFUSED,
        streams=True,
    ),
    Described(
        "/v1/responses",
        "An answer as OpenAI's newer API words it; nothing is stored",
        responses.ResponsesRequest,
        responses.IGNORED,
        responses.REFUSED,
        responses.ITEM_FIELDS,
        streams=True,
        has_images=True,
    ),
    Described(
        "/v1/messages",
        "An answer as Anthropic's API words it",
        anthropic.MessagesRequest,
        anthropic.IGNORED,
        anthropic.REFUSED,
        anthropic.BLOCK_FIELDS,
        streams=True,
        has_images=True,
    ),
    Described(
        "/v1/messages/count_tokens",
        "How many tokens the prompt of such a message has, images included",
        anthropic.CountRequest,
        anthropic.IGNORED,
        anthropic.REFUSED,
        has_images=True,
    ),
    Described("/tokenize", "The token ids of a text or of a conversation", tokenize.TokenizeRequest, tokenize.IGNORED),
    Described("/detokenize", "The text of token ids", tokenize.DetokenizeRequest),
)
