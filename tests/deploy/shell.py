"""Commands of ours and of Ray's that files and pages name: found in their shell text, held against the programs."""

import argparse
import contextlib
import io
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray.scripts.scripts
import yaml

from triptych.cli import build_parser

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
_ENDS = set("();<>|&")  # tokens of these alone end a command
_BEFORE = {"exec", "setsid", "nohup", "while", "until", "if", "then", "do", "else", "!"}  # a command follows
_IMAGE = re.compile(r"^triptych:[\w.]+$")  # docker run … triptych:0.1.0 serve: what follows is for our command
_ASSIGNMENT = re.compile(r"^\w+=")


def commands_in(text: str, program: str) -> Iterator[list[str]]:
    """Arguments of each call of a program in a shell's text, quoted scripts within it included."""
    for words in _simple_commands(text):
        yield from (inner for word in words if " " in word for inner in commands_in(word, program))
        while words and (words[0] in _BEFORE or _ASSIGNMENT.match(words[0])):
            words = words[1:]
        if words[:2] == ["docker", "run"] and program == "triptych":
            yield from (words[at + 1 :] for at, word in enumerate(words) if _IMAGE.match(word))
        elif words and words[0].rpartition("/")[2] == program:
            yield words[1:]


def _simple_commands(text: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for token in lexer:
        if set(token) <= _ENDS:
            yield words
            words = []
        else:
            words.append(token)
    yield words


def refusal_of_ours(arguments: Sequence[str]) -> str:
    """What our command line says to these arguments; empty where it takes them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            build_parser().parse_args(arguments)
    except (SystemExit, argparse.ArgumentError) as end:
        return "" if getattr(end, "code", 2) == 0 else said.getvalue().strip().splitlines()[-1]
    return ""


def refusal_of_rays(arguments: Sequence[str]) -> str:
    """The same of Ray's, for its commands and the names of their options."""
    commands: dict[str, Any] = ray.scripts.scripts.cli.commands
    name, *rest = arguments
    if name not in commands:
        return f"ray has no command {name}"
    known = {option for parameter in commands[name].params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if word.startswith("-")]
    wrong = [option for option in given if option not in known]
    return f"ray {name} has no {', '.join(wrong)}" if wrong else ""


def shell_of_page(text: str) -> Iterator[str]:
    """Of a Markdown page: lines of indented and fenced blocks, with their continuations, and `code` within lines."""
    fenced = re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    (\S.*)$", rest, re.MULTILINE)
    for block in fenced:
        yield from block.replace("\\\n", " ").splitlines()
    yield from indented
    yield from re.findall(r"`((?:triptych|ray) [^`]+)`", rest)


def shell_of_comments(text: str) -> Iterator[str]:
    """Commands that stand, indented, in a file's comments."""
    yield from re.findall(r"^# {3,}(\S.*)$", text, re.MULTILINE)


def texts_of(value: object) -> Iterator[str]:
    """All texts of a document, at whatever depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for each in value.values() for text in texts_of(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in texts_of(each))


def documents_of(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_text()))


def shell_of_yaml(file: Path) -> Iterator[str]:
    """Texts that run in a shell, by the keys under which they stand, and commands in comments."""
    yield from shell_of_comments(file.read_text())
    for document in documents_of(file):
        yield from _below(document, lambda key: key.endswith("_commands") or key == "args")


def _below(value: object, wanted: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from texts_of(inner) if wanted(key) else _below(inner, wanted)
    elif isinstance(value, list):
        for inner in value:
            yield from _below(inner, wanted)
