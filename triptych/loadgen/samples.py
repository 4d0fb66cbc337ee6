"""One exchange read strictly: what it measured, or why it counts as an error. Definitions: measures.py."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from triptych.loadgen.exchange import Exchange
from triptych.loadgen.options import BenchOptions
from triptych.loadgen.sse import BrokenStream, Event, read_events

_DELTA_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls")


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times in seconds, relative to its own first byte unless said otherwise."""

    sent: float  # after the run's first byte
    lateness: float
    ended: float
    chunks: tuple[float, ...] = ()  # arrival of each content chunk; the finish chunk's where there is none
    last: float = 0.0  # arrival of the last token
    output_tokens: int = 0
    prompt_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        return self.chunks[0]

    @property
    def tpot(self) -> float | None:
        """None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.last - self.chunks[0]) / (self.output_tokens - 1)

    def attains(self, options: BenchOptions) -> bool:
        if self.error or self.output_tokens != options.max_tokens:
            return False
        if options.slo_ttft_seconds is not None and self.ttft > options.slo_ttft_seconds:
            return False
        if options.slo_e2e_seconds is not None and self.ended > options.slo_e2e_seconds:
            return False
        return self.tpot is None or options.slo_tpot_seconds is None or self.tpot <= options.slo_tpot_seconds

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {"sent": round(self.sent, 6), "e2e": round(self.ended, 6)}
        if self.error:
            return record | {"error": self.error}
        tpot = None if self.tpot is None else round(self.tpot, 6)
        record |= {"ttft": round(self.ttft, 6), "tpot": tpot}
        return record | {"output_tokens": self.output_tokens, "prompt_tokens": self.prompt_tokens}


def judge(exchange: Exchange, origin: float) -> Sample:
    """Read what came back, strictly.  origin: first byte of the run, on the exchange's clock."""
    start = exchange.sent or exchange.due
    sample = Sample(start - origin, start - exchange.due, exchange.ended - start, error=exchange.failure)
    if exchange.failure:
        return sample
    answer = _Answer()
    try:
        for event in read_events(exchange.pieces):
            answer.take(event)
        answer.check_complete()
    except BrokenStream as error:
        return dataclasses.replace(sample, error=f"stream: {error}")
    return dataclasses.replace(
        sample,
        ended=answer.done - start,
        chunks=tuple(at - start for at in answer.chunks or [answer.finished]),
        last=max([*answer.chunks, answer.finished]) - start,
        output_tokens=answer.output_tokens or max(1, len(answer.chunks)),
        prompt_tokens=answer.prompt_tokens,
    )


class _Answer:
    """One answer, put together from its events."""

    def __init__(self) -> None:
        self.chunks: list[float] = []
        self.finished = 0.0
        self.done = 0.0
        self.output_tokens = 0
        self.prompt_tokens = 0

    def take(self, event: Event) -> None:
        """Raises BrokenStream for an error frame and for anything a chat stream must not hold."""
        if self.done:
            raise BrokenStream("an event behind [DONE]")
        if event.name == "error":
            raise BrokenStream(f"error frame: {event.data}")
        if event.data == "[DONE]":
            self.done = event.at
            return
        try:
            chunk = json.loads(event.data)
            if chunk.get("error"):
                raise BrokenStream(f"error frame: {event.data}")
            self._take_usage(chunk.get("usage") or {})
            for choice in chunk.get("choices") or ():
                self._take_choice(choice, event.at)
        except (ValueError, TypeError, AttributeError) as error:
            raise BrokenStream(f"not a chat chunk: {event.data[:200]}") from error

    def _take_usage(self, usage: dict[str, Any]) -> None:
        self.output_tokens = int(usage.get("completion_tokens") or self.output_tokens)
        self.prompt_tokens = int(usage.get("prompt_tokens") or self.prompt_tokens)

    def _take_choice(self, choice: dict[str, Any], at: float) -> None:
        delta = choice.get("delta") or {}
        finishes = bool(choice.get("finish_reason"))
        if any(delta.get(name) for name in _DELTA_TEXTS) or not (finishes or delta.get("role")):
            self.chunks.append(at)
        if finishes:
            self.finished = at

    def check_complete(self) -> None:
        if not self.finished:
            raise BrokenStream("no finish_reason")
        if not self.done:
            raise BrokenStream("no [DONE]")
