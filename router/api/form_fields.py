"""Which form an answer must have, by all the names that clients have for it."""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from triptych.router.api.chat_fields import FORMAT, or_null
from triptych.router.api.tools.formats import (
    Constraint,
    only_one,
    read_guided,
    read_response_format,
    read_structured_outputs,
)


class FormFields(BaseModel):
    """Fields of a request; OpenAI's name first, then vLLM's of today and before."""

    response_format: Annotated[Any, or_null(FORMAT)] = Field(
        None, description="text, json_object, or json_schema, to which answers keep; not beside tools"
    )
    structured_outputs: Annotated[Any, or_null({"type": "object"})] = Field(
        None, description="one of json, regex, choice, grammar, json_object, to which answers keep"
    )
    guided_json: Annotated[Any, or_null({"anyOf": [{"type": "object"}, {"type": "string"}]})] = Field(
        None, description="older name of structured_outputs.json"
    )
    guided_regex: Annotated[Any, or_null({"type": "string"})] = Field(
        None, description="older name of structured_outputs.regex"
    )
    guided_choice: Annotated[Any, or_null({"type": "array", "items": {"type": "string"}})] = Field(
        None, description="older name of structured_outputs.choice"
    )
    guided_grammar: Annotated[Any, or_null({"type": "string"})] = Field(
        None, description="older name of structured_outputs.grammar"
    )

    def constraint(self) -> Constraint | None:
        """The form that answers must have, whichever field asks for it. Raises InvalidRequest where several do."""
        format = read_response_format(self.response_format, "response_format")
        guided = {name: getattr(self, f"guided_{name}") for name in ("json", "regex", "choice", "grammar")}
        structured = read_structured_outputs(self.structured_outputs, "structured_outputs")
        return only_one([*([format] if format else []), *structured, *read_guided(guided)])
