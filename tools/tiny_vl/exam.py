"""Fresh questions with known answers, asked over HTTP of a server that speaks OpenAI's chat completions."""

import asyncio
import base64
import io
import json
import random
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tools.tiny_vl.chat import messages
from tools.tiny_vl.conversations import draw_sample
from tools.tiny_vl.draw import with_noise
from tools.tiny_vl.scenes import Sample

LONGEST_ANSWER = 32  # tokens; a right answer has at most two dozen characters
_REQUEST_SECONDS = 120.0
_T = TypeVar("_T")


class ServerFailed(Exception):
    """The server is not there, refuses, or speaks something else; the message is one line that says which."""


@dataclass(frozen=True, slots=True)
class Question:
    """A sample as a client sends it: its pictures with their noise laid over them."""

    sample: Sample
    images: tuple[Image.Image, ...]


@dataclass(frozen=True, slots=True)
class Asking:
    """How replies are wanted.

    max_tokens: of a reply
    top_logprobs: how many likely first tokens to tell of, at most 20
    mark: text that goes into each picture's file: it changes no pixel, but makes the picture another one to a cache
    in_flight: requests under way at once
    """

    max_tokens: int = LONGEST_ANSWER
    top_logprobs: int = 0
    mark: str = ""
    in_flight: int = 16


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back.

    ended: the model ended its turn itself
    first: the likeliest first tokens, by their bytes, with their log-probabilities
    """

    sample: Sample
    text: str
    ended: bool
    first: Mapping[bytes, float]

    @property
    def is_right(self) -> bool:
        """Whether it is the one right answer, to the letter, and nothing behind it."""
        return self.ended and self.text == self.sample.turns[-1].answer


def draw_question(kind: str, seed: int, index: int, held_out: bool = False) -> Question:
    """Question `index` of a kind: a function of its arguments alone, drawn from a stream that training has none of.

    held_out: only with phrasings and typefaces that training keeps away from
    """
    rng = random.Random(f"exam {seed} {kind} {index}")
    sample = draw_sample(kind, rng, held_out_phrasing=held_out, held_out_fonts=held_out)
    return Question(sample, tuple(with_noise(picture, rng) for picture in sample.pictures))


def ask_all(url: str, questions: Iterable[Question], asking: Asking | None = None) -> list[Reply]:
    """Greedy replies in the order of the questions, which are taken, and so drawn, as they are needed.

    Raises ServerFailed.
    """
    return _finished(url, _ask_all(url, questions, asking or Asking()))


def model_at(url: str) -> str:
    """The name of the model that a server serves, the first if it has several.

    Raises ServerFailed.
    """

    async def ask() -> str:
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS)) as session:
            return await _first_model(session)

    return _finished(url, ask())


def distance(reply: Reply, other: Reply) -> float:
    """Largest difference, in nats, of a likely first token's log-probability between two replies; at the least that.

    What only one of them lists has, in the other, no more than the last one listed there.
    """
    return max(_one_sided(reply.first, other.first), _one_sided(other.first, reply.first))


def _finished(url: str, work: Coroutine[Any, Any, _T]) -> _T:
    try:
        return asyncio.run(work)
    except Exception as error:
        first: Exception = error
        while isinstance(first, ExceptionGroup):
            first = first.exceptions[0]
        if isinstance(first, ServerFailed):
            raise ServerFailed(f"{url}: {first}") from None
        if isinstance(first, (aiohttp.ClientError, OSError)):  # a timeout is an OSError
            said = " ".join(str(first).split()) or type(first).__name__
            raise ServerFailed(f"{url} does not answer: {said}") from first
        raise


async def _ask_all(url: str, questions: Iterable[Question], asking: Asking) -> list[Reply]:
    replies: dict[int, Reply] = {}
    numbered = enumerate(questions)
    timeout = aiohttp.ClientTimeout(total=_REQUEST_SECONDS)
    connector = aiohttp.TCPConnector(limit=asking.in_flight)
    async with aiohttp.ClientSession(url.rstrip("/"), timeout=timeout, connector=connector) as session:
        model = await _first_model(session)

        async def work(numbered: Iterator[tuple[int, Question]]) -> None:
            for index, question in numbered:
                replies[index] = await _ask(session, model, question, asking)

        async with asyncio.TaskGroup() as group:
            for _ in range(asking.in_flight):
                group.create_task(work(numbered))
    return [replies[index] for index in range(len(replies))]


async def _first_model(session: aiohttp.ClientSession) -> str:
    async with session.get("/v1/models") as response:
        with _understood():
            return str((await _json(response))["data"][0]["id"])


async def _ask(session: aiohttp.ClientSession, model: str, question: Question, asking: Asking) -> Reply:
    urls = [_data_uri(image, asking.mark) for image in question.images]
    body: dict[str, Any] = {"model": model, "messages": messages(question.sample, urls), "temperature": 0}
    body["max_tokens"] = asking.max_tokens
    if asking.top_logprobs:
        body |= {"logprobs": True, "top_logprobs": asking.top_logprobs}
    async with session.post("/v1/chat/completions", json=body) as response:
        answer = await _json(response)
    with _understood():
        choice = answer["choices"][0]
        first = choice["logprobs"]["content"][0]["top_logprobs"] if asking.top_logprobs else ()
        return Reply(
            sample=question.sample,
            text=choice["message"]["content"],
            ended=choice["finish_reason"] == "stop",
            first={bytes(entry["bytes"]): entry["logprob"] for entry in first},
        )


async def _json(response: aiohttp.ClientResponse) -> Any:
    said = await response.text(errors="replace")
    if response.status != 200:
        raise ServerFailed(f"{response.url.path} answered {response.status}: {' '.join(said.split())[:300]}")
    with _understood():
        return json.loads(said)


@contextmanager
def _understood() -> Iterator[None]:
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ServerFailed(
            f"answered something else than OpenAI's API says ({type(error).__name__}: {error})"
        ) from error


def _one_sided(first: Mapping[bytes, float], second: Mapping[bytes, float]) -> float:
    least = min(second.values())
    return max(
        abs(logprob - second[token]) if token in second else max(0.0, logprob - least)
        for token, logprob in first.items()
    )


def _data_uri(image: Image.Image, mark: str) -> str:
    notes = PngInfo()
    if mark:
        notes.add_text("mark", mark)
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=1, pnginfo=notes)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
