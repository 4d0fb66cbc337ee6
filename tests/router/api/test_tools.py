"""Tools: what a request's tools and choice come to, and calls told from text however it is cut into pieces."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from triptych.errors import InvalidRequest
from triptych.grammar.spec import tool_calls
from triptych.router.api.choices import ToolCallDelta
from triptych.router.api.schema import Chat
from triptych.router.api.tools.definition import Tool
from triptych.router.api.tools.parser import ToolCallParser
from triptych.router.api.tools.rules import OutputRules

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "weather"}}


def strict(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "function": {**tool["function"], "strict": True}}


def rules(**fields: Any) -> OutputRules:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **fields}
    return Chat.parse(json.dumps(body).encode()).rules


def read(pieces: Sequence[str], *, was_cut: bool = False, must_call: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls of a text that comes in these pieces; what each delta has to keep to is checked."""
    parser = ToolCallParser(must_call)
    content, names, arguments, ids = "", [], [], set()
    for said, calls in [*map(parser.feed, pieces), parser.flush(was_cut)]:
        content += said
        for call in calls:
            if call.name:
                assert call.index == len(names)
                assert call.id.startswith("call_")
                names.append(call.name)
                arguments.append("")
                ids.add(call.id)
            else:
                assert not call.id
            arguments[call.index] += call.arguments
    assert len(ids) == len(names)
    assert parser.has_calls == bool(names)
    return content, list(zip(names, arguments, strict=True))


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_tools_are_told_to_the_prompt_as_they_are() -> None:
    chosen = rules(tools=[WEATHER, NOW])
    assert chosen.tools == (Tool("weather", "of a city", SCHEMA), Tool("now"))
    assert [tool.described for tool in chosen.tools] == [WEATHER, NOW]


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}])
def test_an_answer_that_may_call_tools_is_left_alone_where_none_is_strict(fields: dict[str, Any]) -> None:
    chosen = rules(tools=[WEATHER, NOW], **fields)
    assert chosen.grammar is None
    assert chosen.by_prompt
    assert isinstance(chosen.make_parser and chosen.make_parser(), ToolCallParser)


@pytest.mark.parametrize(
    ("fields", "tools", "required", "parallel"),
    [
        ({"tool_choice": "required"}, [("weather", SCHEMA), ("now", None)], True, True),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [("weather", SCHEMA), ("now", None)], True, False),
        ({"tool_choice": NAMED}, [("weather", SCHEMA)], True, False),
        ({"tools": [strict(WEATHER), NOW]}, [("weather", SCHEMA), ("now", None)], False, True),
        ({"parallel_tool_calls": False}, [("weather", None), ("now", None)], False, False),
    ],
)
def test_what_a_call_must_keep_to_is_a_grammar(
    fields: dict[str, Any], tools: list[Any], required: bool, parallel: bool
) -> None:
    chosen = rules(**{"tools": [WEATHER, NOW], **fields})
    assert chosen.grammar == tool_calls(tools, required=required, parallel=parallel)
    assert chosen.by_prompt is not required
    assert isinstance(chosen.make_parser and chosen.make_parser(), ToolCallParser)
    chosen.check()


def test_with_choice_none_tools_are_told_and_not_called() -> None:
    chosen = rules(tools=[WEATHER], tool_choice="none")
    assert chosen.tools
    assert chosen.grammar is chosen.make_parser is None
    assert not chosen.by_prompt


def test_tools_too_large_to_be_sane_are_refused() -> None:
    large = {"type": "function", "function": {"name": "f", "description": "x" * (1 << 20)}}
    with pytest.raises(InvalidRequest, match="bytes of JSON"):
        rules(tools=[large])


def test_a_call_is_told_with_the_text_before_it() -> None:
    text = "Let me see.\n" + call("weather", '{"city":  "Ulm"}') + "\n" + call("now", "{}") + "\n"
    assert read([text]) == ("Let me see.", [("weather", '{"city":  "Ulm"}'), ("now", "{}")])


def test_arguments_come_piece_by_piece_and_the_name_before_them() -> None:
    parser = ToolCallParser()
    assert parser.feed('<tool_call>\n{"name": "f", "argu') == ("", [])
    content, calls = parser.feed('ments": {"a"')
    assert content == ""
    assert [(each.index, each.name, each.arguments) for each in calls] == [(0, "f", ""), (0, "", '{"a"')]
    assert parser.feed(': "}') == ("", [ToolCallDelta(0, arguments=': "}')])
    assert parser.feed('"}}\n</tool_call>') == ("", [ToolCallDelta(0, arguments='"}')])
    assert parser.flush() == ("", [])


def test_no_beginning_of_a_call_is_shown_as_content() -> None:
    parser = ToolCallParser()
    shown = [parser.feed(piece)[0] for piece in ("a <too", "l", "_call", ">")]
    assert shown == ["a", "", "", ""]
    parser = ToolCallParser()
    shown = [parser.feed(piece)[0] for piece in ("a <too", "th> b")]
    assert "".join(shown) == "a <tooth> b"


@pytest.mark.parametrize(
    "text",
    [
        "plain",
        "  spaces stay  ",
        " <tool_call>no JSON</tool_call> and on",
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": 5}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": "f", "arg',
        "<tool_call",
        "</tool_call>",
    ],
)
def test_what_is_no_call_goes_out_to_the_letter(text: str) -> None:
    assert read([text]) == read(list(text)) == (text, [])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\n{",
        '<tool_call>\n{"na',
        '<tool_call>{"name": "f", "arguments": ',
        "<tool_call>{}</tool_",
    ],
)
def test_the_beginning_of_a_call_that_is_cut_off_is_no_content(text: str) -> None:
    is_open = not text.startswith("<tool_call>{}")
    assert read([text], was_cut=True) == read(list(text), was_cut=True) == ("" if is_open else text, [])
    assert read(list("So: " + text), was_cut=True, must_call=True)[0].strip() == "So:"


def test_a_call_that_must_come_is_not_shown_by_its_first_letters_and_text_is() -> None:
    assert read(["<tool"], was_cut=True, must_call=True) == ("", [])
    assert read(["1 <"], was_cut=True) == ("1 <", [])
    assert read(["<tool_call>no JSON"], was_cut=True) == ("<tool_call>no JSON", [])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"arguments": {"q":  1}, "name": "f"}</tool_call>', '{"q":  1}'),
        ('<tool_call>{"name": "f", "parameters": {"q": 1}}</tool_call>', '{"q": 1}'),
        ('<tool_call>{"name": "f", "arguments": "{\\"q\\": 1}"}</tool_call>', '{"q": 1}'),
        ('<tool_call>{"name": "f"}</tool_call>', "{}"),
        ('<tool_call>{"name": "f", "arguments": {"q": 1}</tool_call>', '{"q": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"q": 1}}', '{"q": 1}'),
        ('<tool_call>{"id": 1, "name": "f", "arguments": {"q": 1}}', '{"q": 1}'),
        ('<tool_call>{"name": "f", "arguments": {"q": "</tool_call>"}}</tool_call>', '{"q": "</tool_call>"}'),
        ('<tool_call>{"name": "f", "arguments": {"q": "\\\\\\"}"}}</tool_call>', '{"q": "\\\\\\"}"}'),
        ('<tool_call>{"name": "f", "arguments": {"q": 1', '{"q": 1'),
    ],
)
def test_calls_in_other_wordings_are_understood(text: str, arguments: str) -> None:
    assert read([text]) == read(list(text)) == ("", [("f", arguments)])


ATOMS = (
    *("<tool_call>", "</tool_call>", "<", "\n", " ", " " * 300, '"', "\\", "{", "}", "[", "]", ",", "x", "ä🙂"),
    *('{"name": "f", "arguments": ', '{"arguments": {"k":1}, "name": "g"}', '{"a": "', '"}', '"arguments": "{}"'),
)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_make_no_difference(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(500):
        text = "".join(rng.choices(ATOMS, k=rng.randrange(12)))
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(8)))
        pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read([text]) == read(pieces) == read(list(text)), text


@pytest.mark.parametrize("seed", range(4))
def test_calls_that_are_written_down_are_read_back(seed: int) -> None:
    rng = random.Random(seed)

    def some_json(depth: int) -> Any:
        kind = rng.randrange(6 if depth else 3)
        if kind < 3:
            return ("".join(rng.choices('ab"\\{}[]</>äтoolcall_\n', k=rng.randrange(8))), rng.random(), None)[kind]
        if kind == 3:
            return [some_json(depth - 1) for _ in range(rng.randrange(3))]
        return {str(some_json(0)): some_json(depth - 1) for _ in range(rng.randrange(3))}

    for _ in range(500):
        calls = [
            (f"tool_{rng.randrange(9)}", json.dumps({"a": some_json(3)}, ensure_ascii=rng.random() < 0.5))
            for _ in range(rng.randrange(4))
        ]
        content = rng.choice(("", "So:", "1 < 2 {"))
        text = "\n".join([*([content] if content else []), *(call(*each) for each in calls)])
        pieces, at = [], 0
        while at < len(text):
            pieces.append(text[at : at + rng.randrange(1, 9)])
            at += len(pieces[-1])
        assert read(pieces) == (content, calls)


def test_an_endless_run_of_spaces_or_of_an_open_call_costs_no_time() -> None:
    for beginning, piece in (("", " "), ("<tool_call>", "x"), ('<tool_call>{"name": "f", "arguments": {"a": "', "y")):
        content, calls = read([beginning, *[piece] * 20_000])
        assert len(content) + sum(len(arguments) for _, arguments in calls) >= 20_000
