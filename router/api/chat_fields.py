"""Fields of the chat request that are told of and not checked by its class: for the description of the API."""

from collections.abc import Mapping
from typing import Any

from pydantic import WithJsonSchema

from triptych.router.api.messages import LONGEST_UUID, ROLES
from triptych.router.api.tools.formats import FORMATS, MOST_CHOICES

IGNORED: Mapping[str, str] = {
    "user": "accepted and ignored",
    "store": "nothing is stored",
    "metadata": "accepted and ignored",
    "service_tier": "there is one",
    "prompt_cache_key": "prompts are cached by what they hold; see `cache_salt`",
    "prompt_cache_options": "accepted and ignored",
    "safety_identifier": "accepted and ignored",
    "reasoning_effort": "accepted and ignored",
    "verbosity": "accepted and ignored",
    "modalities": "answers are text",
    "prediction": "accepted and ignored",
    "media_io_kwargs": "never passed on",
    "chat_template_kwargs": "never passed on",
    "chat_template": "templates are the server's",
    "skip_special_tokens": "special tokens have no text",
    "guided_decoding_backend": "there is one",
    "guided_whitespace_pattern": "accepted and ignored",
    "kv_transfer_params": "for use inside a cluster; dropped",
    "ec_transfer_params": "for use inside a cluster; dropped",
}
REFUSED: Mapping[str, str] = {
    "functions": "of an older API; use tools",
    "function_call": "of an older API; use tool_choice",
}

FORMAT = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": list(FORMATS)},
        "json_schema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "schema": {"type": "object"}, "strict": {"type": "boolean"}},
        },
    },
}
TOOL = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                "description": {"type": "string"},
                "parameters": {"type": "object"},
                "strict": {"type": "boolean"},
            },
        },
    },
}
MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]},
    },
}


def or_null(schema: dict[str, Any]) -> WithJsonSchema:
    """For the description of the API: what is checked by hand, so that faults are named by their path."""
    return WithJsonSchema({"anyOf": [schema, {"type": "null"}]})


# What is read by hand, inside of the fields above.
NESTED: Mapping[str, str] = {
    "messages[].role": "`system`, `developer` (the same), `user`, `assistant`, `tool`",
    "messages[].content": "a text, or a list of parts; may be null for an assistant",
    "messages[].content[].type": "`text` and `image_url`; others are refused",
    "messages[].content[].text": "the text of a text part",
    "messages[].content[].image_url.url": "http, https or data URL; file URL below a media root",
    "messages[].content[].image_url.detail": "`auto`, `low`, `high` or `original`",
    "messages[].content[].uuid": f"beside an image, up to {LONGEST_UUID} characters; later, the image may be left out",
    "messages[].tool_calls[].id": "of a call that the assistant has made",
    "messages[].tool_calls[].function.name": "the tool that was called",
    "messages[].tool_calls[].function.arguments": "JSON text",
    "messages[].tool_call_id": "the call that a message of role `tool` answers",
    "messages[].name": "ignored: but for role `tool`, of which it is the tool's name",
    "messages[].refusal": "ignored: accepted",
    "response_format.type": "`text`, `json_object` or `json_schema`",
    "response_format.json_schema.schema": "what answers keep to; `$schema` and `title` in it are ignored",
    "response_format.json_schema.name": "ignored: accepted",
    "response_format.json_schema.strict": "ignored: answers always keep to the schema",
    "tools[].type": "`function`; others are refused",
    "tools[].function.name": "up to 64 letters, digits, `_` and `-`",
    "tools[].function.description": "told to the model",
    "tools[].function.parameters": "JSON schema of the arguments",
    "tools[].function.strict": "arguments keep to the schema also under tool_choice auto; else they always do",
    "structured_outputs.json": "a JSON schema, as object or text",
    "structured_outputs.regex": "of the whole answer",
    "structured_outputs.choice": f"up to {MOST_CHOICES} texts, one of which is the answer",
    "structured_outputs.grammar": "a Lark or GBNF grammar",
    "structured_outputs.json_object": "true: any JSON object",
    "structured_outputs.structural_tag": "refused: use tools with strict true",
}
