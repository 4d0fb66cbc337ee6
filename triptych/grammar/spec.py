"""What form an answer must have, as requests and messages carry it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from triptych.errors import InvalidRequest

KINDS = frozenset({"json_schema", "json_object", "regex", "choice", "lark", "structural"})
MOST_GRAMMAR_BYTES = 128 * 1024  # what a client may make every worker compile
MOST_TOOLS = 128


@dataclass(frozen=True, slots=True)
class Grammar:
    """The form of one answer; its text means something only together with its kind.

    json_schema: a JSON schema            json_object: empty
    regex:       of the whole answer      choice:      a JSON list of strings, one of which is the answer
    lark:        a grammar, Lark or GBNF  structural:  text with calls of tools in it, see `tool_calls`
    Raises InvalidRequest for another kind, and for more text than is taken. Whether it makes sense: `check_grammar`.
    """

    kind: str
    text: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidRequest(f"a grammar is of kind {self.kind!r}, expected one of {', '.join(sorted(KINDS))}")
        num_bytes = len(self.text.encode(errors="replace"))
        if num_bytes > MOST_GRAMMAR_BYTES:
            raise InvalidRequest(f"a grammar has {num_bytes} bytes, at most {MOST_GRAMMAR_BYTES} are taken")


def tool_calls(
    tools: Sequence[tuple[str, Mapping[str, Any] | None]],
    *,
    required: bool,
    parallel: bool,
    begin: str = "<tool_call>",
    end: str = "</tool_call>",
) -> Grammar:
    """Answers that call these tools, as Hermes and Qwen write it: BEGIN, a line of JSON with name and arguments, END.

    tools:    each one's name and the schema of its arguments; None: any object
    required: the answer begins with a call and is nothing but calls; else calls may come anywhere in free text, which
              cannot have `begin` in it without being one
    parallel: whether more than one may be made; if not, nothing follows the first
    Arguments are objects, also where a schema does not say so. Raises InvalidRequest for one that says otherwise.
    Tags are matched as text: whether a tokenizer has tokens of their own for them does not matter.
    """
    listed = [{"name": name, "parameters": _of_object(name, rules or {})} for name, rules in tools]
    asked = {"required": required, "parallel": parallel, "begin": begin, "end": end, "tools": listed}
    return Grammar("structural", json.dumps(asked, ensure_ascii=False))


def _of_object(name: str, rules: Mapping[str, Any]) -> dict[str, Any]:
    kind = rules.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise InvalidRequest(f"the parameters of tool {name!r} are of another type than object")
    return {**rules, "type": "object"}
