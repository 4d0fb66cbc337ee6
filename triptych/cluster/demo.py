"""`triptych demo`: start a server, ask about pictures, show each answer and where its time went."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from triptych.client import Client, image_part, print_timeline, text_part
from triptych.cluster.supervisor import Supervisor
from triptych.config import load_settings
from triptych.errors import ConfigError

_MAX_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Question:
    """One line of questions.json."""

    images: tuple[Path, ...]
    question: str
    answer: str


def run(arguments: argparse.Namespace) -> int:
    """0 when every answer is as expected, 1 otherwise."""
    console = Console(highlight=False)
    questions = read_questions(arguments.pictures)
    settings = load_settings(flags={"router.port": 0, "serve.topology": arguments.topology})
    supervisor = Supervisor(settings, lambda text: console.print(text, style="dim"))
    try:
        client = Client(f"http://127.0.0.1:{supervisor.start()}")
        model = client.first_model()
        right = [_ask(console, client, model, question) for question in questions]
    finally:
        supervisor.stop()
    console.print(f"{sum(right)} of {len(right)} answers are as expected")
    return 0 if all(right) else 1


def read_questions(folder: Path) -> list[Question]:
    """The questions marked for the demo. Raises ConfigError where the folder has none."""
    try:
        entries: Sequence[Mapping[str, Any]] = json.loads((folder / "questions.json").read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {folder / 'questions.json'}: {error}; name a folder with --pictures") from error
    return [
        Question(tuple(folder / name for name in entry["images"]), entry["question"], entry["answer"])
        for entry in entries
        if entry["demo"]
    ]


def _ask(console: Console, client: Client, model: str, question: Question) -> bool:
    content = [*(image_part(str(path)) for path in question.images), text_part(question.question)]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": _MAX_TOKENS,
        "temperature": 0,
    }
    answer = client.ask(body)
    right = answer.text.strip() == question.answer
    console.print()
    console.print(" + ".join(path.name for path in question.images), style="bold")
    console.print(f"  {question.question}")
    console.print(f"  {answer.text.strip()}", style="green" if right else "red")
    if not right:
        console.print(f"  expected: {question.answer}")
    print_timeline(answer.stages)
    return right
