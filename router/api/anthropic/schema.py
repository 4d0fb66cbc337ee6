"""The body of POST /v1/messages and of /v1/messages/count_tokens."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from triptych.router.api.completions.schema import Stop
from triptych.router.api.sampling_fields import SamplingFields, Whole

_OBJECTS = {"type": "array", "items": {"type": "object"}}

Messages = Annotated[Any, WithJsonSchema({**_OBJECTS, "minItems": 1})]
System = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, _OBJECTS, {"type": "null"}]})]

IGNORED: Mapping[str, str] = {
    "metadata": "accepted and ignored",
    "thinking": "accepted and ignored: models served here answer at once",
    "service_tier": "accepted and ignored",
    "cache_control": "here and in blocks: every prompt is cached anyway",
    "inference_geo": "accepted and ignored",
    "speed": "accepted and ignored",
    "context_management": "accepted and ignored",
    "betas": "accepted and ignored, as the header `anthropic-beta`",
}
REFUSED: Mapping[str, str] = {
    "container": "there are no containers here; leave it out",
    "mcp_servers": "this server runs no tools; leave it out",
}
# What `read_messages` and its like take, beside the schema. By path, as in the request.
BLOCK_FIELDS: Mapping[str, str] = {
    "messages[].role": "user or assistant; system is taken as well",
    "messages[].content": "a text, or a list of blocks",
    "messages[].content[].type": "`text`, `image`, `tool_use`, `tool_result`; `thinking` and `redacted_thinking` "
    "are passed over; others, as `document`, are refused",
    "messages[].content[].text": "of a `text` block",
    "messages[].content[].source": "of an `image`: `{type: base64, media_type, data}` or `{type: url, url}`",
    "messages[].content[].source.file_id": "refused: this server keeps no files",
    "messages[].content[].id": "of a `tool_use`",
    "messages[].content[].name": "of a `tool_use`",
    "messages[].content[].input": "of a `tool_use`: an object",
    "messages[].content[].tool_use_id": "of a `tool_result`",
    "messages[].content[].content": "of a `tool_result`: a text, or `text` and `image` blocks",
    "messages[].content[].is_error": "of a `tool_result`: ignored, say it in the content",
    "tools[].type": "`custom`, or left out; tools that run at the server are refused",
    "tools[].name": "up to 64 letters, digits, `_` and `-`",
    "tools[].description": "told to the model",
    "tools[].input_schema": "JSON schema of the input",
    "tools[].strict": "inputs keep to the schema",
    "tool_choice.type": "`auto`, `any`, `tool` or `none`",
    "tool_choice.name": "of `tool`",
    "tool_choice.disable_parallel_tool_use": "at most one call",
    "output_config.format": "`{type: json_schema, schema}`; the rest of output_config is ignored",
}


class CountRequest(BaseModel):
    """What makes a prompt. A field that is null counts as absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str = Field(description="the served model's name; another one is a 404")
    messages: Messages = Field(description="the conversation")
    system: System = Field(None, description="a text, or a list of `text` blocks")
    tools: Annotated[
        Any,
        WithJsonSchema({"anyOf": [_OBJECTS, {"type": "null"}]}),
        Field(description="functions the model may call"),
    ] = None
    tool_choice: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]}),
        Field(description="whether it has to, and which"),
    ] = None
    output_config: Annotated[
        Any,
        WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "null"}]}),
        Field(description="format of the answer"),
    ] = None
    mm_processor_kwargs: dict[str, Any] | None = Field(None, description="of the model's image processor, as for chat")
    container: Any = Field(None, description=REFUSED["container"])
    mcp_servers: Any = Field(None, description=REFUSED["mcp_servers"])


class MessagesRequest(CountRequest, SamplingFields):
    max_tokens: Annotated[Whole, Field(ge=1, description="tokens to generate at most")]
    stop_sequences: Stop = Field(None, description="texts before which the answer ends")
