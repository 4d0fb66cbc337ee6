"""The body of POST /v1/completions: prompts as text or as token ids, no chat template."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StrictBool, WithJsonSchema

from triptych.router.api.form_fields import FormFields
from triptych.router.api.sampling_fields import Number, SamplingFields, Whole, sized
from triptych.router.api.schema import MOST_BIASES, MOST_STOPS, StreamOptions
from triptych.sampling import LARGEST_REPETITION_PENALTY, LEAST_REPETITION_PENALTY, MOST_BRANCHES

MOST_PROMPTS = 64
MOST_CHOICES = 128  # of all prompts together
MOST_LOGPROBS = 5
DEFAULT_MAX_TOKENS = 16  # as OpenAI's

Prompt = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "minItems": 1, "maxItems": MOST_PROMPTS, "items": {"type": "string", "minLength": 1}},
                {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MOST_PROMPTS,
                    "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
                },
            ]
        }
    ),
]
Stop = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "maxItems": MOST_STOPS, "items": {"type": "string", "minLength": 1}},
                {"type": "null"},
            ]
        }
    ),
]

IGNORED: Mapping[str, str] = {
    "user": "accepted and ignored",
    "metadata": "accepted and ignored",
    "add_special_tokens": "nothing is ever added to a prompt",
    "skip_special_tokens": "special tokens have no text",
}
REFUSED: Mapping[str, str] = {
    "suffix": "text is only continued, not filled in; leave it out",
    "best_of": "must equal n, or be left out: no choices are made and thrown away",
}


class CompletionRequest(FormFields, SamplingFields):
    """A field that is null counts as absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    model: str = Field(description="the served model's name; another one is a 404")
    prompt: Prompt = Field(
        description=f"a text, token ids, or a list of up to {MOST_PROMPTS} of either; "
        "each is answered `n` times, and choices are numbered through"
    )
    n: Annotated[Whole | None, Field(ge=1, le=MOST_BRANCHES, description="answers to each prompt")] = None
    max_tokens: Annotated[
        Whole | None, Field(ge=1, description=f"tokens to generate at most; {DEFAULT_MAX_TOKENS} if left out")
    ] = None
    stop: Stop = Field(None, description=f"a text or up to {MOST_STOPS}, before which the answer ends")
    presence_penalty: Annotated[Number | None, Field(ge=-2, le=2, description="for tokens that have come")] = None
    frequency_penalty: Annotated[Number | None, Field(ge=-2, le=2, description="for each time they have come")] = None
    repetition_penalty: Annotated[
        Number | None,
        Field(ge=LEAST_REPETITION_PENALTY, le=LARGEST_REPETITION_PENALTY, description="a factor; 1 is none"),
    ] = None
    logit_bias: Annotated[dict[str, Number] | None, sized(MOST_BIASES)] = Field(
        None, description="by token id, -100 to 100", json_schema_extra={"maxProperties": MOST_BIASES}
    )
    logprobs: Annotated[
        Whole | None, Field(ge=0, le=MOST_LOGPROBS, description="log probabilities of so many likeliest tokens")
    ] = None
    echo: StrictBool | None = Field(None, description="the prompt before the answer; not together with logprobs")
    stream_options: StreamOptions | None = Field(None, description="only with stream")
    return_token_ids: StrictBool | None = Field(None, description="token_ids and prompt_token_ids beside each choice")
    suffix: Any = Field(None, description=REFUSED["suffix"])
    best_of: Any = Field(None, description=REFUSED["best_of"])
