"""How tokens are chosen: what a request may ask for, and within which limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from triptych.errors import InvalidRecord
from triptych.grammar.spec import Grammar

MOST_BRANCHES = 8  # choices of one request
MOST_TOP_LOGPROBS = 20
LARGEST_BIAS = 100.0
LEAST_REPETITION_PENALTY = 0.01
LARGEST_REPETITION_PENALTY = 100.0

_MOST_UINT32 = (1 << 32) - 1

# Both ends belong to them, as float32, which is what the wire carries. Within them no product, quotient or sum with
# logits of any sane model leaves float32.
SAMPLING_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (0, _MOST_UINT32),
    "min_p": (0, 1),
    "seed": (0, (1 << 64) - 1),
    "max_tokens": (1, _MOST_UINT32),
    "min_tokens": (0, _MOST_UINT32),
    "top_logprobs": (0, MOST_TOP_LOGPROBS),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (float(np.float32(LEAST_REPETITION_PENALTY)), LARGEST_REPETITION_PENALTY),
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. Randomness is a function of (seed, choice, position) alone.

    Raises InvalidRecord for a number outside its range; NaN is outside every range.
    """

    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()  # includes the model's end tokens
    logprobs: bool = False
    top_logprobs: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: Grammar | None = None  # decides where the answer may end, ahead of min_tokens and ignore_eos

    def __post_init__(self) -> None:
        for name, (least, most) in SAMPLING_RANGES.items():
            _require_range(name, getattr(self, name), least, most)
        if self.top_p == 0:
            raise InvalidRecord("sampling has top_p 0, expected more: nothing would be left to draw")
        if self.min_tokens > self.max_tokens:
            raise InvalidRecord(f"sampling has min_tokens {self.min_tokens}, max_tokens {self.max_tokens}")
        for id, bias in self.logit_bias.items():
            _require_range(f"logit_bias of {id}", bias, -LARGEST_BIAS, LARGEST_BIAS)


def _require_range(what: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidRecord(f"sampling has {what} {value}, expected {least:g} to {most:g}")
