"""Which tokens a grammar leaves, with the embedded model's tokenizer and with one that has tool tags as tokens."""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from triptych.errors import InvalidRequest
from triptych.grammar.added_tokens import _as_bytes
from triptych.grammar.compiler import GrammarCompiler, compiler_of
from triptych.grammar.matcher import GrammarMatcher, MaskMaker, allowed_ids
from triptych.grammar.spec import Grammar, tool_calls
from triptych.models.folder import EMBEDDED_MODEL, resolve_folder
from triptych.sampling import Sampling

VOCAB_SIZE, END = 1600, 2


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(resolve_folder(EMBEDDED_MODEL, lambda line: None) / "tokenizer.json"))


@pytest.fixture(scope="module")
def tagged(tokenizer: Tokenizer) -> Tokenizer:
    """As Qwen2.5-VL: `<tool_call>` is an added token that is not special."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.add_tokens([AddedToken("<tool_call>", special=False), AddedToken("</tool_call>", special=False)])
    return copy


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = compiler_of(resolve_folder(EMBEDDED_MODEL, lambda line: None), VOCAB_SIZE, [END])
    yield made
    made.close()


def matcher(compiler: GrammarCompiler, grammar: Grammar, said: Sequence[int] = (), **wishes: Any) -> GrammarMatcher:
    given: dict[str, Any] = {"stop_token_ids": (END,), "max_tokens": 99, **wishes}
    return compiler.matchers(Sampling(grammar=grammar, **given), [said]).result()[0]


def allowed(of: GrammarMatcher) -> list[int]:
    (mask,) = MaskMaker().masks([of])
    of.finish(mask)
    return allowed_ids(mask)


def test_ends_are_allowed_where_the_grammar_may_end(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    one = tokenizer.encode("7").ids
    assert END not in allowed(matcher(compiler, Grammar("regex", "[0-9]{1,2}")))
    assert set(one) | {END} <= set(allowed(matcher(compiler, Grammar("regex", "[0-9]{1,2}"), one)))
    assert allowed(matcher(compiler, Grammar("regex", "[0-9]{1,2}"), one * 2)) == [END]


def test_a_request_may_have_ends_of_its_own(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    (seven,) = tokenizer.encode("7").ids
    other = matcher(compiler, Grammar("regex", "[0-9]+"), [seven], stop_token_ids=(seven, 3))
    left = allowed(other)
    assert {seven, 3} <= set(left), "it may end"
    assert seven not in allowed(matcher(compiler, Grammar("regex", "[0-9]+"), stop_token_ids=(seven, 3)))
    assert END not in left


@pytest.mark.parametrize("wishes", [{"ignore_eos": True}, {"min_tokens": 50}])
def test_where_ends_are_unwanted_they_are_left_only_when_nothing_else_is(
    compiler: GrammarCompiler, tokenizer: Tokenizer, wishes: dict[str, Any]
) -> None:
    one, grammar = tokenizer.encode("7").ids, Grammar("regex", "[0-9]{1,2}")
    assert END not in allowed(matcher(compiler, grammar, one, **wishes))
    assert allowed(matcher(compiler, grammar, one * 2, **wishes)) == [END]


def test_special_tokens_and_rows_without_a_token_are_never_allowed(compiler: GrammarCompiler) -> None:
    free = allowed(matcher(compiler, Grammar("regex", r"(.|\n)*")))
    assert set(free) & {0, 1, 3, 4, 5, 6} == set()
    assert END in free
    assert max(free) < 1533
    with pytest.raises(InvalidRequest, match="leaves no token"):
        allowed(matcher(compiler, Grammar("lark", 'start: <|im_start|> "a"')))
    with pytest.raises(InvalidRequest, match="leaves no token"):
        allowed(matcher(compiler, Grammar("json_schema", '{"$ref": "#"}')))


def test_tokens_that_do_not_fit_are_refused(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="cannot be continued"):
        matcher(compiler, Grammar("choice", '["yes"]'), tokenizer.encode("no").ids)


def test_masks_made_together_are_those_made_alone(compiler: GrammarCompiler) -> None:
    grammars = [Grammar("choice", json.dumps([word, "other"])) for word in ("yes", "no", "red", "blue", "ä", "1")]
    matchers = [matcher(compiler, grammar) for grammar in grammars]
    alone = np.concatenate([MaskMaker().masks([each]) for each in matchers])
    assert np.array_equal(MaskMaker().masks(matchers), alone)


def test_a_grammar_is_compiled_once_however_many_ask(compiler: GrammarCompiler) -> None:
    grammar = Grammar("json_object", "")
    asked = [compiler.matchers(Sampling(grammar=grammar, stop_token_ids=(END,)), [()]) for _ in range(20)]
    wait(asked)
    assert compiler.num_compiled == 1
    assert len({id(each.result()[0].matcher) for each in asked}) == 20


def test_compiled_grammars_are_bounded(compiler: GrammarCompiler) -> None:
    for number in range(140):
        compiler.expect(Grammar("regex", f"a{{{number + 1}}}"))
    matcher(compiler, Grammar("regex", "last"))
    assert compiler.num_compiled <= 128


CALL = '\n{"name": "look", "arguments": {"at": 5}}\n</tool_call>'
LOOK = ("look", {"type": "object", "properties": {"at": {"type": "integer"}}, "additionalProperties": False})


@pytest.fixture(params=["plain", "tagged"])
def spelled(request: pytest.FixtureRequest, tokenizer: Tokenizer, tagged: Tokenizer, tmp_path: Path) -> Iterator[Any]:
    """Whether a text is an answer: ids of the text are followed token by token, the end included."""
    used = tokenizer if request.param == "plain" else tagged
    used.save(str(tmp_path / "tokenizer.json"))
    made = compiler_of(tmp_path, VOCAB_SIZE, [END])
    assert (len(used.encode("<tool_call>").ids) == 1) == (request.param == "tagged")

    def fits(grammar: Grammar, text: str) -> bool:
        now = matcher(made, grammar)
        said: list[int] = []
        for id in [*used.encode(text, add_special_tokens=False).ids, END]:
            now.follow(said)
            if id not in allowed(now):
                return False
            said.append(id)
        return True

    yield fits
    made.close()


def test_free_text_may_hold_calls(spelled: Callable[[Grammar, str], bool]) -> None:
    many = tool_calls([LOOK, ("say", None)], required=False, parallel=True)
    once = tool_calls([LOOK], required=False, parallel=False)
    for grammar in (many, once):
        assert spelled(grammar, "No call at all, <tool> or </tool_call>.")
        assert spelled(grammar, f"Let me see.\n<tool_call>{CALL}")
        assert not spelled(grammar, "A <tool_call> that is none")
        assert not spelled(grammar, f"<tool_call>{CALL.replace('look', 'book')}")
        assert not spelled(grammar, f"<tool_call>{CALL.replace('5', 'five')}")
    assert spelled(many, f"<tool_call>{CALL}\n<tool_call>{CALL} and so on")
    assert not spelled(once, f"<tool_call>{CALL}\n<tool_call>{CALL}")


def test_where_a_call_is_required_there_is_nothing_else(spelled: Callable[[Grammar, str], bool]) -> None:
    many = tool_calls([LOOK, ("say", None)], required=True, parallel=True)
    once = tool_calls([LOOK], required=True, parallel=False)
    for grammar in (many, once):
        assert spelled(grammar, f"<tool_call>{CALL}")
        assert not spelled(grammar, "No call at all.")
        assert not spelled(grammar, f"Let me see.<tool_call>{CALL}")
        assert not spelled(grammar, "")
    assert spelled(many, f"<tool_call>{CALL}\n<tool_call>{CALL.replace('look', 'say')}")
    assert not spelled(once, f"<tool_call>{CALL}\n<tool_call>{CALL}")


def test_bytes_are_spelled_as_byte_level_vocabularies_spell_them() -> None:
    text = "".join(map(chr, range(0x250)))
    assert _as_bytes(text) == "".join(bytes_to_unicode()[byte] for byte in text.encode())
