"""Answers under a grammar: of its form, the same however they are scheduled, and nobody else's affair."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from bench.grammar_schemas import PERSON, SCHEMAS
from tests.engine.grammars import compiler_for, schema, text_of
from tests.engine.rig import GREEDY, PATIENCE_SECONDS, Asked, PromptSink, running
from tests.engine.test_crowded import answer
from tests.engine.test_pipeline import answers, told
from triptych.errors import Cancelled, InvalidRequest
from triptych.grammar.compiler import GrammarCompiler
from triptych.grammar.spec import Grammar, tool_calls
from triptych.journey import new_request_id
from triptych.models.base import LanguageModel
from triptych.models.card import ModelCard
from triptych.sampling import Sampling


@pytest.fixture(scope="module")
def grammars(card: ModelCard) -> Iterator[GrammarCompiler]:
    compiler = compiler_for(card)
    yield compiler
    compiler.close()


def under(card: ModelCard, grammar: Grammar, **wishes: Any) -> Sampling:
    given: dict[str, Any] = {"temperature": 1.0, "max_tokens": 220, "stop_token_ids": card.eos_token_ids, **wishes}
    return Sampling(grammar=grammar, **given)


def test_two_hundred_samples_of_twenty_schemas_are_all_valid(
    model: LanguageModel, card: ModelCard, text: Asked, grammars: GrammarCompiler
) -> None:
    questions = [
        replace(text, sampling=under(card, schema(rules), seed=seed)) for rules in SCHEMAS for seed in range(10)
    ]
    assert len(SCHEMAS) == 20
    with running(model, grammars=grammars, pipeline="on", max_sequences=32, kv_bytes=32 << 20) as pair:
        batches = [answers(pair, questions[begin : begin + 25]) for begin in range(0, len(questions), 25)]
        given = [each for batch in batches for each in batch]
    for number, each in enumerate(given):
        jsonschema.validate(json.loads(text_of(card, each[0])), SCHEMAS[number // 10])
    assert len({text_of(card, each[0]) for each in given}) > 100


FORMS = (
    schema(PERSON),
    schema(SCHEMAS[2]),
    Grammar("regex", "[a-f]{3,30}(-[0-9]{1,4})?"),
    Grammar("choice", '["yes", "no", "neither of them"]'),
    Grammar("lark", 'start: item ("," item)*\nitem: /[a-z]{1,3}/ | "(" start ")"'),
)
WISHES: Sequence[dict[str, Any]] = (
    {"temperature": 0.0},
    {"seed": 5, "top_p": 0.9, "frequency_penalty": 1.5, "presence_penalty": -1.0},
    {"temperature": 0.0, "repetition_penalty": 1.3, "top_logprobs": 3, "min_tokens": 9},
    {"seed": 7, "top_k": 30, "ignore_eos": True, "logit_bias": {70: 2.0}},
)


@pytest.mark.parametrize("graphs", ["off", "on"], ids=["eager", "recorded"])
def test_an_answer_does_not_depend_on_steps_that_are_launched_ahead(
    model: LanguageModel, card: ModelCard, text: Asked, image: Asked, grammars: GrammarCompiler, graphs: str
) -> None:
    questions = [
        replace(asked, sampling=under(card, form, max_tokens=40, **wishes), branches=branches)
        for asked, branches in ((text, 1), (image, 2))
        for form, wishes in zip((*FORMS, FORMS[0]), (*WISHES, *WISHES), strict=False)
    ] + [text]
    with running(model, grammars=grammars, pipeline="off") as pair:
        alone = [told(pair.answer(asked)) for asked in questions]
    with running(model, grammars=grammars, split=False, pipeline="on", graphs=graphs, max_sequences=25) as pair:
        together = answers(pair, questions)
    assert [told(each) for each in together] == alone


@pytest.mark.parametrize("seed", [1, 2])
def test_another_worker_goes_on_in_the_grammar_from_the_tokens_alone(
    model: LanguageModel, card: ModelCard, text: Asked, grammars: GrammarCompiler, seed: int
) -> None:
    asked = replace(text, sampling=under(card, schema(PERSON), seed=seed))
    with running(model, grammars=grammars, pipeline="on") as pair:
        whole = pair.answer(asked)[0]
        for cut in (1, len(whole) // 2, len(whole) - 1):
            again = pair.answer(replace(asked, generated=tuple(token.id for token in whole[:cut])))[0]
            assert [token.id for token in again] == [token.id for token in whole[cut:]]
            assert again[-1].finish_reason == "stop"


@pytest.mark.parametrize("swap_blocks", [0, 100], ids=lambda count: f"swap-{count}")
def test_who_has_made_room_goes_on_in_its_grammar(
    model: LanguageModel, card: ModelCard, text: Asked, grammars: GrammarCompiler, swap_blocks: int
) -> None:
    form = Grammar("regex", "[a-z ]{240,260}")
    questions = [replace(text, sampling=under(card, form, seed=seed, max_tokens=100)) for seed in range(6)]
    with running(model, grammars=grammars) as pair:
        alone = [[token.id for token in pair.answer(asked)[0]] for asked in questions]
    block_bytes = model.kv.block_bytes(16)
    room = {"kv_bytes": 2 * questions[0].num_blocks * block_bytes, "swap_bytes": swap_blocks * block_bytes}
    with running(model, grammars=grammars, pipeline="on", decode_margin_tokens=1, **room) as pair:
        with ThreadPoolExecutor(len(questions)) as pool:
            assert list(pool.map(lambda asked: answer(pair, asked), questions)) == alone
        gauges = pair.decode.snapshot()
        assert gauges["preemptions_swapped_total" if swap_blocks else "preemptions_ended_total"] > 0


def test_an_answer_ends_with_its_grammar_whatever_else_was_wished(
    model: LanguageModel, card: ModelCard, text: Asked, grammars: GrammarCompiler
) -> None:
    form = Grammar("regex", "[0-9]{4}")
    with running(model, grammars=grammars) as pair:
        for wishes in ({}, {"ignore_eos": True}, {"min_tokens": 100}):
            tokens = pair.answer(replace(text, sampling=under(card, form, **wishes)))[0]
            assert text_of(card, tokens).isdigit()


def test_where_a_grammar_may_end_or_go_on_the_answer_goes_on_if_it_shall(
    model: LanguageModel, card: ModelCard, text: Asked, grammars: GrammarCompiler
) -> None:
    form = Grammar("regex", "[0-9]+")
    ends = dict.fromkeys(card.eos_token_ids, 100.0)  # would end at once
    with running(model, grammars=grammars) as pair:
        short = pair.answer(replace(text, sampling=under(card, form, logit_bias=ends)))[0]
        assert [token.finish_reason for token in short] == ["", "stop"]
        late = pair.answer(replace(text, sampling=under(card, form, logit_bias=ends, min_tokens=7)))[0]
        assert (len(late), late[-1].finish_reason) == (8, "stop")
        never = under(card, form, logit_bias=ends, ignore_eos=True, max_tokens=20)
        endless = pair.answer(replace(text, sampling=never))[0]
        assert (len(endless), endless[-1].finish_reason) == (20, "length")


def test_tools_are_called_in_their_form_or_not_at_all(
    model: LanguageModel, card: ModelCard, text: Asked, grammars: GrammarCompiler
) -> None:
    say = {"type": "object", "properties": {"number": {"enum": [1, 2]}}, "required": ["number"]}
    say["additionalProperties"] = False
    form = tool_calls([("look", PERSON), ("say", say)], required=True, parallel=False)
    with running(model, grammars=grammars) as pair:
        for seed in range(6):
            said = text_of(card, pair.answer(replace(text, sampling=under(card, form, seed=seed)))[0])
            call = json.loads(said.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"))
            jsonschema.validate(call["arguments"], {"look": PERSON, "say": say}[call["name"]])


def test_a_bad_grammar_fails_alone(
    model: LanguageModel, card: ModelCard, text: Asked, grammars: GrammarCompiler
) -> None:
    good, bad = Grammar("choice", '["yes"]'), Grammar("regex", "(unclosed")
    with running(model, grammars=grammars) as pair:
        begun = pair.begin(replace(text, sampling=under(card, good)))
        sink = PromptSink()
        asked = replace(text, sampling=under(card, bad))
        pair.prefill.prefill(asked.prefill_job(new_request_id()), sink)
        with pytest.raises(InvalidRequest, match="unclosed group"):
            sink.result()
        asked = replace(text, sampling=under(card, good))
        pair.decode.decode(asked.decode_job(*begun), pair.sink)
        assert text_of(card, pair.sink.answer(*begun)[0]) == "yes"


def test_a_dead_end_found_on_the_way_ends_its_own_request_alone(
    model: LanguageModel, card: ModelCard, text: Asked, grammars: GrammarCompiler
) -> None:
    dead = Grammar("lark", 'start: /[a-z]{3}/ <|im_start|> "x"')  # a special token is never allowed
    with running(model, grammars=grammars, pipeline="on") as pair:
        asked = [replace(text, sampling=under(card, dead)), text]
        begun = [(each, *pair.begin(each)) for each in asked]
        for each, request_id, first in begun:
            pair.decode.decode(each.decode_job(request_id, first), pair.sink)
        with pytest.raises(InvalidRequest, match="leaves no token"):
            pair.sink.answer(*begun[0][1:])
        assert len(pair.sink.answer(*begun[1][1:])[0]) == GREEDY.max_tokens


def test_a_request_that_leaves_while_its_grammar_compiles_never_comes_in(
    model: LanguageModel, card: ModelCard, text: Asked
) -> None:
    compiler = compiler_for(card)
    release = hold_threads(compiler)
    with running(model, grammars=compiler) as pair:
        sink, request_id = PromptSink(), new_request_id()
        asked = replace(text, sampling=under(card, Grammar("choice", '["yes"]')))
        pair.prefill.prefill(asked.prefill_job(request_id), sink)
        assert not pair.prefill.idle()
        assert len(pair.answer(text)[0]) == GREEDY.max_tokens, "others were held up"
        pair.cancel(request_id)
        with pytest.raises(Cancelled):
            sink.result()
        release()
    compiler.close()


def hold_threads(compiler: GrammarCompiler) -> Callable[[], None]:
    """Keep its threads busy until what this returns is called."""
    held = threading.Event()
    for _ in range(2):
        compiler._threads.submit(held.wait, PATIENCE_SECONDS)
    return held.set
