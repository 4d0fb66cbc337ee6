"""The body of POST /v1/responses. Nothing is kept between requests: what was said before comes with each."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictBool, WithJsonSchema

from triptych.router.api.sampling_fields import SamplingFields, Whole, sized
from triptych.sampling import MOST_TOP_LOGPROBS

MOST_METADATA = 16
MOST_TOLD_BYTES = 1 << 20  # of JSON, of each field that a response repeats: a stream has it three times
LOGPROBS_INCLUDED = "message.output_text.logprobs"

# What an answer repeats, within OpenAI's bounds.
_Name = Annotated[str, Field(max_length=64)]
_Told = Annotated[str, Field(max_length=512)]

Input = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                {"type": "array", "minItems": 1, "items": {"type": "object"}},
            ]
        }
    ),
]

IGNORED: Mapping[str, str] = {
    "store": "answered with false: nothing is stored",
    "reasoning": "accepted and ignored",
    "max_tool_calls": "for tools that run at the server, of which there are none",
    "service_tier": "accepted and ignored",
    "safety_identifier": "accepted and ignored",
    "prompt_cache_key": "accepted and ignored; use cache_salt to keep caches apart",
    "prompt_cache_options": "accepted and ignored",
    "prompt_cache_retention": "accepted and ignored",
    "stream_options": "accepted and ignored: nothing is padded, and usage always comes with the last event",
    "truncation": "nothing is ever cut off; what is too long is refused",
    "context_management": "accepted and ignored",
}
REFUSED: Mapping[str, str] = {
    "previous_response_id": "this server keeps no responses; send the whole conversation as input",
    "conversation": "this server keeps no conversations; send the whole conversation as input",
    "background": "this server answers at once; leave it out",
    "prompt": "this server keeps no prompt templates; send input and instructions",
    "moderation": "there is no moderation here; leave it out",
}
# What `read_input` and its like take, beside the schema. By path, as in the request.
ITEM_FIELDS: Mapping[str, str] = {
    "input[].type": "`message` (also if left out), `function_call`, `function_call_output`; `reasoning` is passed over",
    "input[].role": "of a message: user, assistant, system or developer",
    "input[].content": "of a message: a text, or a list of parts",
    "input[].content[].type": "`input_text`, `output_text`, `refusal` or `input_image`",
    "input[].content[].text": "of a text part",
    "input[].content[].image_url": "of an `input_image`: an http(s) URL or a data URI, as a plain string",
    "input[].content[].detail": "of an `input_image`: auto (if left out), low, high or original",
    "input[].content[].file_id": "refused: this server keeps no files",
    "input[].call_id": "of a function call, and of its output",
    "input[].name": "of a function call",
    "input[].arguments": "of a function call: JSON text",
    "input[].output": "of a function's output: a text, or a list of `input_text` and `input_image` parts",
    "tools[].type": "`function`; others, which would run at the server, are refused",
    "tools[].name": "up to 64 letters, digits, `_` and `-`",
    "tools[].description": "told to the model",
    "tools[].parameters": "JSON schema of the arguments",
    "tools[].strict": "arguments keep to the schema",
    "text.format": "`text`, `json_object`, or `json_schema` with name, schema and strict",
    "text.verbosity": "ignored: answers are as long as they are",
}


class ResponsesRequest(SamplingFields):
    """A field that is null counts as absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str = Field(description="the served model's name; another one is a 404")
    input: Input = Field(description="a text, or a list of items: messages, function calls, their outputs")
    instructions: str | None = Field(None, description="a system message before all others")
    max_output_tokens: Annotated[
        Whole | None, Field(ge=1, description="tokens to generate at most; all that fit if left out")
    ] = None
    tools: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "null"}]}),
        Field(description="functions the model may call"),
    ] = None
    tool_choice: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}, {"type": "null"}]}),
        Field(description='none, auto, required, or `{"type": "function", "name": ...}`'),
    ] = None
    parallel_tool_calls: StrictBool | None = Field(None, description="false: at most one call; true if left out")
    text: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]}),
        Field(description="format of the answer"),
    ] = None
    include: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]}),
        Field(description=f"`{LOGPROBS_INCLUDED}`; other entries are ignored"),
    ] = None
    top_logprobs: Annotated[
        Whole | None, Field(ge=0, le=MOST_TOP_LOGPROBS, description="log probabilities of so many likeliest tokens")
    ] = None
    metadata: Annotated[dict[_Name, _Told] | None, sized(MOST_METADATA)] = Field(
        None,
        description=f"up to {MOST_METADATA} texts, told again in the answer",
        json_schema_extra={"maxProperties": MOST_METADATA},
    )
    user: _Told | None = Field(None, description="told again in the answer")
    mm_processor_kwargs: dict[str, Any] | None = Field(None, description="of the model's image processor, as for chat")
    # Refused; see REFUSED.
    previous_response_id: Any = Field(None, description=REFUSED["previous_response_id"])
    conversation: Any = Field(None, description=REFUSED["conversation"])
    background: Any = Field(None, description=REFUSED["background"])
    prompt: Any = Field(None, description=REFUSED["prompt"])
    moderation: Any = Field(None, description=REFUSED["moderation"])
