"""Tokens and how they are to be sampled, to messages and back."""

from triptych.grammar.spec import Grammar
from triptych.journey import Token
from triptych.pb import common_pb2 as pb
from triptych.sampling import Sampling


def token_to_pb(token: Token) -> pb.Token:
    return pb.Token(
        id=token.id,
        logprob=token.logprob,
        finish_reason=token.finish_reason,
        top=[pb.TopLogprob(id=id_, logprob=logprob) for id_, logprob in token.top],
        choice=token.choice,
        position=token.position,
    )


def token_from_pb(message: pb.Token) -> Token:
    return Token(
        id=message.id,
        logprob=message.logprob,
        choice=message.choice,
        position=message.position,
        finish_reason=message.finish_reason,
        top=tuple((entry.id, entry.logprob) for entry in message.top) if message.top else (),  # rarely asked for
    )


def sampling_to_pb(sampling: Sampling) -> pb.Sampling:
    return pb.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
        logprobs=sampling.logprobs,
        top_logprobs=sampling.top_logprobs,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict(sampling.logit_bias),
        grammar=pb.Grammar(kind=asked.kind, text=asked.text) if (asked := sampling.grammar) is not None else None,
    )


def sampling_from_pb(message: pb.Sampling) -> Sampling:
    return Sampling(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        stop_token_ids=tuple(message.stop_token_ids),
        logprobs=message.logprobs,
        top_logprobs=message.top_logprobs,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty,
        logit_bias=dict(message.logit_bias),
        grammar=_grammar_from_pb(message.grammar) if message.HasField("grammar") else None,
    )


def _grammar_from_pb(message: pb.Grammar) -> Grammar:
    return Grammar(message.kind, message.text)
