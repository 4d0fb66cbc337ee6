"""From a chat request to how its tokens are chosen."""

import secrets
from collections.abc import Mapping, Sequence

import numpy as np

from triptych.errors import ContextTooLong, InvalidRequest
from triptych.grammar.spec import Grammar
from triptych.models.card import ModelCard
from triptych.router.api.schema import ChatRequest
from triptych.sampling import LARGEST_BIAS, Sampling

# Less is greedy: no checkpoint's own default lies below, and no difference of logits is lost above.
LEAST_TEMPERATURE = 1e-7
# The likeliest of fewer than a million ids has a greater share than this, and alone passes this and anything less.
LEAST_TOP_P = 1e-6


def sampling_for(request: ChatRequest, card: ModelCard, max_tokens: int, grammar: Grammar | None = None) -> Sampling:
    """What the client asks for; what it leaves open is the model's own, then the API's default.

    Numbers are rounded to float32, as every tier after the router sees them. A temperature below LEAST_TEMPERATURE
    is greedy, a top_p below LEAST_TOP_P is LEAST_TOP_P.
    Raises InvalidRequest for a logit bias the vocabulary does not have and for min_tokens above max_tokens.
    """
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidRequest(f"min_tokens is {min_tokens}, max_tokens {max_tokens}", param="min_tokens")
    defaults = card.default_sampling
    temperature = _chosen(request.temperature, defaults, "temperature", 1.0)
    return Sampling(
        temperature=_single(temperature if temperature >= LEAST_TEMPERATURE else 0.0),
        top_p=_single(max(LEAST_TOP_P, _chosen(request.top_p, defaults, "top_p", 1.0))),
        top_k=max(0, int(_chosen(request.top_k, defaults, "top_k", 0))),  # −1 means off too
        min_p=_single(_chosen(request.min_p, defaults, "min_p", 0.0)),
        seed=_seed(request.seed),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=bool(request.ignore_eos),
        stop_token_ids=card.eos_token_ids,
        logprobs=bool(request.logprobs),
        top_logprobs=request.top_logprobs or 0,
        presence_penalty=_single(request.presence_penalty or 0.0),
        frequency_penalty=_single(request.frequency_penalty or 0.0),
        repetition_penalty=_single(_chosen(request.repetition_penalty, defaults, "repetition_penalty", 1.0)),
        logit_bias=_logit_bias(request.logit_bias or {}, card.vocab_size),
        grammar=grammar,
    )


def max_tokens_for(
    request: ChatRequest, prompt_tokens: int, max_model_len: int, default: int, image_tokens: Sequence[int] = ()
) -> int:
    """Tokens to generate at most; what the client leaves open is `default`, or, where that is 0, all that is left.

    image_tokens: prompt tokens of each image, for the message
    Raises ContextTooLong.
    """
    asked, left = request.asked_max_tokens, max_model_len - prompt_tokens
    if asked is not None and asked > left:
        raise ContextTooLong(
            f"This model's maximum context length is {max_model_len} tokens. However, you requested "
            f"{prompt_tokens + asked} tokens ({prompt_tokens} in the messages, {asked} in the completion). "
            f"Please reduce the length of the messages or completion.{_images_share(image_tokens)}",
            param="messages",
        )
    if left < 1:
        raise prompt_too_long(str(prompt_tokens), max_model_len, _images_share(image_tokens))
    return asked if asked is not None else min(left, default or left)


def _images_share(image_tokens: Sequence[int]) -> str:
    """What to shrink, where images take most of the room."""
    if not image_tokens:
        return ""
    most = max(range(len(image_tokens)), key=image_tokens.__getitem__)
    return f" Images take {sum(image_tokens)} tokens, image {most} alone {image_tokens[most]}: send smaller ones."


def prompt_too_long(prompt_tokens: str, max_model_len: int, advice: str = "") -> ContextTooLong:
    return ContextTooLong(
        f"This model's maximum context length is {max_model_len} tokens. However, your messages resulted in "
        f"{prompt_tokens} tokens. Please reduce the length of the messages.{advice}",
        param="messages",
    )


def _chosen(asked: float | None, defaults: Mapping[str, float], name: str, otherwise: float) -> float:
    return asked if asked is not None else defaults.get(name, otherwise)


def _single(value: float) -> float:
    return float(np.float32(value))


def _seed(asked: int | None) -> int:
    """64 bits without a sign, as the wire has them; a random seed where none is asked for."""
    return secrets.randbits(64) if asked is None else asked % (1 << 64)


def _logit_bias(asked: Mapping[str, float], vocab_size: int) -> dict[int, float]:
    bias = {}
    for key, value in asked.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10) or int(key) >= vocab_size:
            raise InvalidRequest(
                f"logit_bias has the key {key[:40]!r}, expected a token id from 0 to {vocab_size - 1}",
                param=f"logit_bias.{key[:40]}",
            )
        if not -LARGEST_BIAS <= value <= LARGEST_BIAS:
            raise InvalidRequest(f"logit_bias of {key} is {value}, expected -100 to 100", param=f"logit_bias.{key}")
        bias[int(key)] = _single(value)
    return bias
