"""Questions whose answers must have a form, and engines that hold them to it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from triptych.grammar.compiler import GrammarCompiler, compiler_of
from triptych.grammar.spec import Grammar
from triptych.journey import Token
from triptych.models.card import ModelCard


def schema(rules: Mapping[str, Any]) -> Grammar:
    return Grammar("json_schema", json.dumps(rules))


def compiler_for(card: ModelCard) -> GrammarCompiler:
    return compiler_of(card.folder, card.vocab_size, card.eos_token_ids)


def text_of(card: ModelCard, tokens: Sequence[Token]) -> str:
    """Of an answer that has ended by itself."""
    assert tokens[-1].finish_reason == "stop", tokens[-1]
    ids = [token.id for token in tokens[:-1]]
    text: str = Tokenizer.from_file(str(card.folder / "tokenizer.json")).decode(ids, skip_special_tokens=False)
    return text
