"""How an answer is drawn: what every API that generates takes, by the same names and within the same bounds."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from pydantic_core import PydanticCustomError


def _no_boolean(value: Any) -> Any:
    """JSON's true is not a number, though Python thinks so."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "expected a number")
    return value


def sized(most: int) -> BeforeValidator:
    """Of a list or an object. Sizes first: the library looks at every element, and keeps what is wrong with each."""

    def check(value: Any) -> Any:
        if isinstance(value, list | dict) and len(value) > most:
            raise PydanticCustomError("size", f"{len(value)} entries, expected at most {most}")
        return value

    return BeforeValidator(check)


Whole = Annotated[int, BeforeValidator(_no_boolean)]
Number = Annotated[float, BeforeValidator(_no_boolean)]


class SamplingFields(BaseModel):
    """OpenAI's and Anthropic's names where they have one, else vLLM's. A field that is null counts as absent."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    stream: StrictBool | None = Field(None, description="server-sent events in place of one body")
    temperature: Annotated[Number | None, Field(ge=0, le=2)] = Field(
        None, description="0 takes the likeliest token; the model's own default, else 1"
    )
    top_p: Annotated[Number | None, Field(gt=0, le=1)] = Field(None, description="share of probability drawn from")
    top_k: Annotated[Whole | None, Field(ge=-1, le=1 << 30)] = Field(
        None, description="so many of the likeliest tokens are drawn from; 0 and -1: all"
    )
    min_p: Annotated[Number | None, Field(ge=0, le=1)] = Field(
        None, description="least probability, as a share of the likeliest token's"
    )
    seed: Annotated[Whole | None, Field(ge=-(1 << 63), lt=1 << 63)] = Field(
        None, description="the same one gives the same answer; drawn anew if absent"
    )
    min_tokens: Annotated[Whole | None, Field(ge=0)] = Field(
        None, description="no end and no stop string before so many tokens"
    )
    ignore_eos: StrictBool | None = Field(None, description="true: the model's end token ends nothing")
    priority: Annotated[Whole | None, Field(ge=-(1 << 31), lt=1 << 31)] = Field(
        None, description="lower is served first where memory is short; 0 if absent"
    )
    cache_salt: Annotated[str | None, Field(min_length=1, max_length=256)] = Field(
        None, description="nothing cached is shared with requests of another salt"
    )

    def sampling(self) -> dict[str, Any]:
        """These fields, for the question that all APIs come to."""
        return {name: getattr(self, name) for name in SamplingFields.model_fields}
