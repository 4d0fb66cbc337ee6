"""What the client sees of each choice: its text, logprobs and finish, as the tokens come."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from triptych.journey import Token
from triptych.metrics import RouterMetrics
from triptych.router.pipeline.detokenize import Detokenizer, StopScanner
from triptych.router.pipeline.request import Request

LOWEST_LOGPROB = -9999.0  # JSON has no infinity


@dataclass(slots=True)
class ToolCallDelta:
    """What some text added to one tool call of a choice.

    id, name:  in the first delta of a call, and nowhere else
    arguments: a piece of the JSON text, as the model wrote it
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


class AnswerParser(Protocol):
    """Tells the text of one choice from the calls in it, as the text comes."""

    @property
    def has_calls(self) -> bool:
        """Whether a call has come."""

    @property
    def in_call(self) -> bool:
        """Whether what comes next belongs to a call, whatever it is."""

    def feed(self, text: str) -> tuple[str, list[ToolCallDelta]]:
        """What some text adds to the content, and to calls."""

    def flush(self, was_cut: bool) -> tuple[str, list[ToolCallDelta]]:
        """What was held back, now that no text follows.

        was_cut: the answer would have gone on
        """


@dataclass(slots=True)
class Delta:
    """What some tokens added to one choice.

    token_names:   of `logprobs`, token by token: as it is called among alternatives, where special ones have a name
    text_logprobs: those of `logprobs` whose tokens are no part of a call
    """

    index: int
    text: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    token_names: list[str] = field(default_factory=list)
    text_logprobs: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str = ""
    stop: str = ""  # the stop string that ended it
    num_tokens: int = 0  # of this choice so far

    def add(self, later: "Delta") -> None:
        """What came later becomes part of this; pieces of one tool call become one."""
        self.text += later.text
        for call in later.tool_calls:
            if call.index < len(self.tool_calls):
                self.tool_calls[call.index].arguments += call.arguments
            else:
                self.tool_calls.append(call)
        self.token_ids += later.token_ids
        self.logprobs += later.logprobs
        self.token_names += later.token_names
        self.text_logprobs += later.text_logprobs
        self.finish_reason = later.finish_reason
        self.stop = later.stop
        self.num_tokens = later.num_tokens


class Choices:
    """Turns a request's tokens into deltas; tells the request when a stop string has come."""

    def __init__(
        self,
        request: Request,
        detokenizer: Detokenizer,
        metrics: RouterMetrics,
        stops: Sequence[str],
        wants_logprobs: bool,
        make_parser: Callable[[], AnswerParser] | None = None,
    ) -> None:
        """make_parser: for answers that may hold tool calls; one for each choice"""
        self._request = request
        self._metrics = metrics
        self._detokenizer = detokenizer
        branches = range(request.prepared.branches)
        self._streams = [detokenizer.stream() for _ in branches]
        self._scanners = [StopScanner(stops) for _ in branches]
        self._parsers = [make_parser() for _ in branches] if make_parser is not None else None
        self._sorters = [_LogprobSorter() for _ in branches]
        self._num_tokens = [0 for _ in branches]
        self._finished = [False for _ in branches]
        self._wants_logprobs = wants_logprobs
        self._min_tokens = request.prepared.sampling.min_tokens
        self._came_at = [0.0 for _ in branches]  # each choice's latest token, on time.perf_counter
        self._has_begun = False

    @property
    def completion_tokens(self) -> int:
        """Of all choices so far."""
        return sum(self._num_tokens)

    def feed(self, tokens: Sequence[Token]) -> list[Delta]:
        """One delta per choice that has new tokens, in order of their first token."""
        if len(tokens) == 1 and not self._finished[tokens[0].choice]:  # nearly always
            delta = Delta(tokens[0].choice)
            self._observe_pace(tokens[0].choice, 1)
            self._add(tokens[0], delta)
            return [delta]
        deltas: dict[int, Delta] = {}
        for token in tokens:
            if not self._finished[token.choice]:
                self._add(token, deltas.setdefault(token.choice, Delta(token.choice)))
        for choice, delta in deltas.items():
            self._observe_pace(choice, len(delta.token_ids))
        return list(deltas.values())

    def _observe_pace(self, choice: int, num_tokens: int) -> None:
        """Tokens that have come together, or waited for a client that does not read, share the time since the last."""
        timeline, before, now = self._request.timeline, self._came_at[choice], self._request.delivered_at
        self._came_at[choice] = now
        if not before:
            first = timeline.since_start() if timeline.first_token is None else timeline.first_token
            if not self._has_begun:
                self._metrics.observe("triptych:time_to_first_token_seconds", first)
            self._has_begun = True
            num_tokens, before = num_tokens - 1, timeline.started_at + first
        for _ in range(num_tokens):
            self._metrics.observe("triptych:inter_token_latency_seconds", max(0.0, now - before) / num_tokens)

    def _add(self, token: Token, delta: Delta) -> None:
        stream, scanner = self._streams[token.choice], self._scanners[token.choice]
        self._num_tokens[token.choice] += 1
        delta.num_tokens = self._num_tokens[token.choice]
        delta.token_ids.append(token.id)
        if self._wants_logprobs:
            self._add_logprob(token, delta)
        text = "" if token.finish_reason == "stop" else stream.feed(token.id)  # an end token is not part of the text
        if token.finish_reason:
            text += stream.flush()
        if delta.num_tokens <= self._min_tokens and not token.finish_reason:
            self._say(delta, text)  # too early for a stop string
            return
        self._say(delta, scanner.feed(text))
        if scanner.found:
            delta.finish_reason, delta.stop = "stop", scanner.which
            self._request.stop_choice(token.choice)
        elif token.finish_reason:
            self._say(delta, scanner.flush())
            delta.finish_reason = token.finish_reason
        if delta.finish_reason:
            self._end_calls(delta)
            self._finished[token.choice] = True
            self._metrics.count("triptych:request_success_total", finished_reason=delta.finish_reason)

    def _say(self, delta: Delta, text: str) -> None:
        if self._parsers is not None:
            parser = self._parsers[delta.index]
            was_in_call = parser.in_call
            text, calls = parser.feed(text)
            delta.tool_calls += calls
            if self._wants_logprobs:
                self._sorters[delta.index].heard(delta, bool(text), bool(calls) or was_in_call or parser.in_call)
        delta.text += text

    def _end_calls(self, delta: Delta) -> None:
        if self._parsers is None:
            return
        parser = self._parsers[delta.index]
        was_cut = delta.finish_reason == "length" or bool(delta.stop)
        text, calls = parser.flush(was_cut)
        delta.text += text
        delta.tool_calls += calls
        self._sorters[delta.index].end(delta, bool(text), bool(calls))
        if delta.finish_reason == "stop" and parser.has_calls:
            delta.finish_reason = "tool_calls"

    def _add_logprob(self, token: Token, delta: Delta) -> None:
        """The chosen token's bytes join to the text; among the alternatives, special tokens show."""
        entry = self._entry(token.id, token.logprob, with_specials=False)
        entry["top_logprobs"] = [self._entry(id_, logprob, with_specials=True) for id_, logprob in token.top]
        delta.logprobs.append(entry)
        delta.token_names.append(self._entry(token.id, token.logprob, with_specials=True)["token"])
        if self._parsers is None:
            delta.text_logprobs.append(entry)
        else:
            self._sorters[delta.index].undecided.append(entry)

    def _entry(self, token_id: int, logprob: float, with_specials: bool) -> dict[str, Any]:
        data = self._detokenizer.token_bytes(token_id, with_specials)
        text = data.decode(errors="replace")
        return {"token": text, "logprob": logprob if logprob > LOWEST_LOGPROB else LOWEST_LOGPROB, "bytes": list(data)}


class _LogprobSorter:
    """Tells tokens of an answer's text from those of its calls, the same however many come at once.

    A token that shows nothing may be the beginning of either: what follows tells.
    """

    def __init__(self) -> None:
        self.undecided: list[dict[str, Any]] = []
        self._is_text = True  # what was decided last

    def heard(self, delta: Delta, has_text: bool, has_call: bool) -> None:
        """What the latest token has brought to a delta, or is within."""
        if has_text or has_call:
            self._is_text = has_text
            self._decide(delta)

    def end(self, delta: Delta, has_text: bool, has_call: bool) -> None:
        """No token follows; what was held back turned out to be this."""
        if has_text or has_call:
            self._is_text = has_text
        self._decide(delta)

    def _decide(self, delta: Delta) -> None:
        if self._is_text:
            delta.text_logprobs += self.undecided
        self.undecided = []
