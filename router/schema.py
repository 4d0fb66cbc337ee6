"""The chat request as strangers send it: types, ranges and defaults checked, everything unknown ignored."""

from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from triptych.errors import InvalidRequest
from triptych.router.choices import AnswerParser
from triptych.router.messages import MOST_PARTS, Message, read_messages
from triptych.sampling import LARGEST_REPETITION_PENALTY, LEAST_REPETITION_PENALTY, MOST_BRANCHES, MOST_TOP_LOGPROBS

MOST_STOPS = 16
MOST_BIASES = 1024


def _no_boolean(value: Any) -> Any:
    """JSON's true is not a number, though Python thinks so."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "expected a number")
    return value


Whole = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean)]


class StreamOptions(BaseModel):
    """What a stream carries besides text; sub-keys we do not know are ignored."""

    include_usage: StrictBool | None = None
    continuous_usage_stats: StrictBool | None = None


class ResponseFormat(BaseModel):
    type: str


class ChatRequest(BaseModel):
    """Body of POST /v1/chat/completions; a field that is null counts as absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, arbitrary_types_allowed=True)

    model: str
    messages: Any
    n: Annotated[Whole | None, Field(ge=1, le=MOST_BRANCHES)] = None
    max_tokens: Annotated[Whole | None, Field(ge=1)] = None
    max_completion_tokens: Annotated[Whole | None, Field(ge=1)] = None
    min_tokens: Annotated[Whole | None, Field(ge=0)] = None
    ignore_eos: StrictBool | None = None
    temperature: Annotated[Number | None, Field(ge=0, le=2)] = None
    top_p: Annotated[Number | None, Field(gt=0, le=1)] = None
    top_k: Annotated[Whole | None, Field(ge=-1, le=1 << 30)] = None
    min_p: Annotated[Number | None, Field(ge=0, le=1)] = None
    seed: Annotated[Whole | None, Field(ge=-(1 << 63), lt=1 << 63)] = None
    stop: str | list[str] | None = None
    presence_penalty: Annotated[Number | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[Number | None, Field(ge=-2, le=2)] = None
    repetition_penalty: Annotated[Number | None, Field(ge=LEAST_REPETITION_PENALTY, le=LARGEST_REPETITION_PENALTY)] = (
        None
    )
    logit_bias: dict[str, Number] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[Whole | None, Field(ge=0, le=MOST_TOP_LOGPROBS)] = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: StrictBool | None = None
    priority: Annotated[Whole | None, Field(ge=-(1 << 31), lt=1 << 31)] = None
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: Any = None
    tool_choice: Any = None

    # Sizes first: the library looks at every element, and has something to say about each wrong one.
    @field_validator("stop", "logit_bias", mode="before")
    @classmethod
    def _check_size(cls, value: Any, info: ValidationInfo) -> Any:
        kind, most = (list, MOST_STOPS) if info.field_name == "stop" else (dict, MOST_BIASES)
        if isinstance(value, kind) and len(value) > most:
            raise PydanticCustomError("size", f"{len(value)} entries, expected at most {most}")
        return value

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: str | list[str] | None) -> list[str]:
        stops = [stop] if isinstance(stop, str) else stop or []
        if not all(stops):
            raise PydanticCustomError("stop", "an empty stop string")
        return stops

    @property
    def stops(self) -> list[str]:
        return self.stop if isinstance(self.stop, list) else []

    @property
    def asked_max_tokens(self) -> int | None:
        """The newer name wins."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def includes_usage(self) -> bool:
        """In a stream."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


class Chat:
    """A checked request with its messages: the question of every endpoint that generates.

    prompt:      in place of messages, text or token ids that no template goes over
    make_parser: for answers that may hold tool calls
    """

    def __init__(
        self,
        request: ChatRequest,
        messages: tuple[Message, ...],
        *,
        prompt: str | tuple[int, ...] | None = None,
        make_parser: Callable[[], AnswerParser] | None = None,
    ) -> None:
        self.request = request
        self.messages = messages
        self.prompt = prompt
        self.make_parser = make_parser

    @classmethod
    def parse(cls, body: bytes, most_images: int = MOST_PARTS) -> Self:
        """Raises InvalidRequest with the dotted path of the field at fault."""
        try:
            request = ChatRequest.model_validate_json(body)
        except ValidationError as error:
            raise invalid_request(error) from None
        _check_together(request)
        return cls(request, read_messages(request.messages, most_images))


def _check_together(request: ChatRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is only allowed with stream true", param="stream_options")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs is only allowed with logprobs true", param="top_logprobs")
    if request.tools is not None or request.tool_choice not in (None, "none"):
        raise InvalidRequest(
            "tools are not supported by this server", param="tools" if request.tools is not None else "tool_choice"
        )
    if request.response_format is not None and request.response_format.type != "text":
        raise InvalidRequest(
            f"response_format.type is {request.response_format.type[:40]!r}; this server supports text",
            param="response_format.type",
        )


def invalid_request(error: ValidationError) -> InvalidRequest:
    """The first fault; values are not repeated, they may be megabytes."""
    details = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if details["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {details['msg'].removeprefix('Invalid JSON: ')}")
    param = _path(details)
    if not param:
        return InvalidRequest("the body is not a JSON object")
    return InvalidRequest(f"{param}: {details['msg']}", param=param)


def _path(details: ErrorDetails) -> str:
    path = ""
    for step in details["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step not in ("str", "list[str]", "[key]"):  # which branch of a union it was is our business
            path += f".{step}" if path else step
    return path
