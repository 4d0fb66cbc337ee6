"""The chat request as strangers send it: types, ranges and defaults checked, everything unknown ignored."""

from collections.abc import Callable
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from triptych.errors import InvalidRequest
from triptych.router.api.chat_fields import IGNORED, MESSAGE, NESTED, REFUSED, TOOL, or_null
from triptych.router.api.choices import AnswerParser
from triptych.router.api.form_fields import FormFields
from triptych.router.api.messages import MOST_MESSAGES, MOST_PARTS, Message, read_messages
from triptych.router.api.sampling_fields import Number, SamplingFields, Whole, sized
from triptych.router.api.tools.definition import MOST_TOOLS, chat_function, read_tools
from triptych.router.api.tools.rules import CHOICES, NO_RULES, OutputRules, read_tool_choice, rules_for
from triptych.sampling import LARGEST_REPETITION_PENALTY, LEAST_REPETITION_PENALTY, MOST_BRANCHES, MOST_TOP_LOGPROBS

__all__ = ["IGNORED", "NESTED", "REFUSED", "Chat", "ChatRequest", "invalid_request"]

MOST_STOPS = 16
MOST_BIASES = 1024
_LONGEST_STEP = 64  # characters of a path that an error repeats


class StreamOptions(BaseModel):
    """What a stream carries besides text; sub-keys we do not know are ignored."""

    include_usage: StrictBool | None = Field(None, description="a last chunk with usage and no choices")
    continuous_usage_stats: StrictBool | None = Field(None, description="usage in every chunk")


class ChatRequest(FormFields, SamplingFields):
    """Body of POST /v1/chat/completions; a field that is null counts as absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, arbitrary_types_allowed=True)

    model: str = Field(description="the served model's name; another one is a 404")
    messages: Annotated[
        Any,
        WithJsonSchema({"type": "array", "minItems": 1, "maxItems": MOST_MESSAGES, "items": MESSAGE}),
    ] = Field(description="the conversation: texts, or lists of text and image_url parts")
    n: Annotated[Whole | None, Field(ge=1, le=MOST_BRANCHES)] = Field(None, description="number of answers")
    max_tokens: Annotated[Whole | None, Field(ge=1)] = Field(
        None, description="older name of max_completion_tokens, which wins"
    )
    max_completion_tokens: Annotated[Whole | None, Field(ge=1)] = Field(
        None, description="tokens of each answer at most; all that the context leaves if absent"
    )
    stop: Annotated[str | list[str] | None, sized(MOST_STOPS)] = Field(
        None, description=f"a text, or up to {MOST_STOPS}, that ends an answer"
    )
    presence_penalty: Annotated[Number | None, Field(ge=-2, le=2)] = Field(
        None, description="taken from tokens that the answer has had"
    )
    frequency_penalty: Annotated[Number | None, Field(ge=-2, le=2)] = Field(None, description="the same for each time")
    repetition_penalty: Annotated[Number | None, Field(ge=LEAST_REPETITION_PENALTY, le=LARGEST_REPETITION_PENALTY)] = (
        Field(None, description="above 1: against tokens of prompt and answer")
    )
    logit_bias: Annotated[dict[str, Number] | None, sized(MOST_BIASES)] = Field(
        None, description=f"from token ids to -100..100, up to {MOST_BIASES} of them"
    )
    logprobs: StrictBool | None = Field(None, description="log probabilities with each token")
    top_logprobs: Annotated[Whole | None, Field(ge=0, le=MOST_TOP_LOGPROBS)] = Field(
        None, description="those of so many alternatives; with logprobs true"
    )
    stream_options: StreamOptions | None = Field(None, description="with stream true")
    tools: Annotated[Any, or_null({"type": "array", "minItems": 1, "maxItems": MOST_TOOLS, "items": TOOL})] = Field(
        None, description="functions that the model may call"
    )
    tool_choice: Annotated[
        Any, or_null({"anyOf": [{"enum": list(CHOICES)}, {"type": "object", "required": ["type", "function"]}]})
    ] = Field(None, description="none, auto, required, or one function by name")
    parallel_tool_calls: StrictBool | None = Field(None, description="false: at most one call; true if absent")
    return_token_ids: StrictBool | None = Field(None, description="token ids beside the text")
    mm_processor_kwargs: dict[str, Any] | None = Field(
        None, description="options of the model's image processor, those it knows"
    )

    # Refused; see REFUSED.
    functions: Any = Field(None, description=REFUSED["functions"])
    function_call: Any = Field(None, description=REFUSED["function_call"])

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

    prompt: in place of messages, text or token ids that no template goes over
    rules:  what form answers must have, and which tools they may call
    """

    def __init__(
        self,
        request: ChatRequest,
        messages: tuple[Message, ...],
        *,
        prompt: str | tuple[int, ...] | None = None,
        rules: OutputRules = NO_RULES,
    ) -> None:
        self.request = request
        self.messages = messages
        self.prompt = prompt
        self.rules = rules

    @property
    def make_parser(self) -> Callable[[], AnswerParser] | None:
        """For answers that may hold tool calls."""
        return self.rules.make_parser

    def forget_messages(self) -> None:
        """Once a run has them: images as text, tens of megabytes, would be held uncounted until the answer ends."""
        self.messages, self.request.messages = (), []

    @classmethod
    def parse(cls, body: bytes, most_images: int = MOST_PARTS) -> Self:
        """Raises InvalidRequest with the dotted path of the field at fault."""
        try:
            request = ChatRequest.model_validate_json(body)
        except ValidationError as error:
            raise invalid_request(error) from None
        _check_together(request)
        return cls(request, read_messages(request.messages, most_images), rules=_rules(request))


def _check_together(request: ChatRequest) -> None:
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options is only allowed with stream true", param="stream_options")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("top_logprobs is only allowed with logprobs true", param="top_logprobs")
    for name, why in REFUSED.items():
        if getattr(request, name) not in (None, [], "none"):
            raise InvalidRequest(f"{name}: {why}", param=name)


def _rules(request: ChatRequest) -> OutputRules:
    constraint = request.constraint()
    if request.tools is None and request.tool_choice in (None, "none", "auto"):  # nearly always
        return NO_RULES if constraint is None else OutputRules(constraint.grammar, constraint.param)
    if request.tools == []:
        raise InvalidRequest("tools is an empty list; leave it out, or offer some", param="tools")
    tools = read_tools(request.tools, "tools", chat_function)
    choice = read_tool_choice(request.tool_choice, bool(tools), request.parallel_tool_calls is not False)
    return rules_for(tools, choice, constraint)


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
            name = step[:_LONGEST_STEP]  # a key of the client's own may be megabytes
            path += f".{name}" if path else name
    return path
